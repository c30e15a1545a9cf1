// Loads directories of families, resolves inheritance, and selects the family for a config.
#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "sender/export/mcore/family.h"

namespace deltawire::mcore {
namespace {

namespace fs = std::filesystem;

template <typename T>
void Inherit(T& own, const T& parent) {
  if (own.empty()) own = parent;
}

const std::string& NameOf(const Param& param) { return param.mcore.forms.front().front(); }

bool SameParam(const Param& a, const Param& b) {
  return a.scope == b.scope && NameOf(a) == NameOf(b);
}

/// Puts the parent's entries before the child's own.
template <typename T>
void Append(std::vector<T>& own, const std::vector<T>& parent) {
  own.insert(own.begin(), parent.begin(), parent.end());
}

/// Fills in what `child` takes from `parent`. A parameter of the child replaces all of the parent's
/// of the same name, at the place of the first.
Status Extend(const Family& parent, Family& child) {
  Inherit(child.names.layer_mcore, parent.names.layer_mcore);
  Inherit(child.names.layer_hf, parent.names.layer_hf);
  Inherit(child.names.mtp_mcore, parent.names.mtp_mcore);
  Inherit(child.names.mtp_hf, parent.names.mtp_hf);
  Inherit(child.names.mtp_inner, parent.names.mtp_inner);
  Inherit(child.names.root, parent.names.root);
  Inherit(child.names.mcore_root, parent.names.mcore_root);
  Inherit(child.names.strip, parent.names.strip);
  child.dims.insert(parent.dims.begin(), parent.dims.end());
  child.texts.insert(parent.texts.begin(), parent.texts.end());
  child.listed.insert(parent.listed.begin(), parent.listed.end());
  Append(child.copies, parent.copies);
  Append(child.rules, parent.rules);
  Append(child.passthrough, parent.passthrough);
  Append(child.not_trained, parent.not_trained);
  Append(child.not_exported, parent.not_exported);

  for (const std::string& name : child.without) {
    const bool known = std::any_of(parent.params.begin(), parent.params.end(),
                                   [&](const Param& p) { return NameOf(p) == name; });
    if (!known) {
      return Errorf(StatusCode::kInvalidArgument, "{}: without names \"{}\", which \"{}\" lacks",
                    child.source, name, child.extends);
    }
  }
  std::vector<Param> own;
  std::swap(own, child.params);
  std::vector<bool> placed(own.size(), false);
  for (const Param& inherited : parent.params) {
    bool replaced = std::find(child.without.begin(), child.without.end(), NameOf(inherited)) !=
                    child.without.end();
    for (size_t i = 0; i < own.size(); ++i) {
      if (!SameParam(own[i], inherited)) continue;
      replaced = true;
      if (!placed[i]) child.params.push_back(own[i]);
      placed[i] = true;
    }
    if (!replaced) child.params.push_back(inherited);
  }
  for (size_t i = 0; i < own.size(); ++i) {
    if (!placed[i]) child.params.push_back(own[i]);
  }
  return absl::OkStatus();
}

/// Turns each Copy into a parameter that makes the other tensor from the same rows.
Status AddCopies(Family& family) {
  std::vector<Param> added;
  for (const Copy& copy : family.copies) {
    const size_t before = added.size();
    for (const Param& param : family.params) {
      if (param.drop || param.parts.size() != 1 || param.parts[0].hf != copy.of) continue;
      added.push_back(param);
      added.back().when = fmt::format("({}) && ({})", param.when, copy.when);
      added.back().parts[0].hf = copy.hf;
      added.back().parts[0].only_listed = true;
      added.back().copy = true;
    }
    if (added.size() == before) {
      return Errorf(StatusCode::kInvalidArgument,
                    "{}: a copy of \"{}\", which no parameter makes alone", family.source, copy.of);
    }
  }
  Append(added, family.params);
  family.params = std::move(added);
  return absl::OkStatus();
}

/// Replaces the family's own {NAME}s by their texts, and refuses unknown ones.
class TextExpander {
 public:
  explicit TextExpander(Family& family) : family_(family) {}

  Status All() {
    for (Param& param : family_.params) {
      for (auto& form : param.mcore.forms) {
        for (std::string& name : form) DW_RETURN_IF_ERROR(Expand(name, {"n", "k", "e"}));
      }
      for (Part& part : param.parts) {
        DW_RETURN_IF_ERROR(Expand(part.hf, {"n", "l", "e", "L", "root"}));
      }
    }
    for (auto& [unused, name] : family_.listed) {
      DW_RETURN_IF_ERROR(Expand(name, {"n", "l", "L", "root", "layer"}));
    }
    Names& names = family_.names;
    for (std::string* name : {&names.layer_mcore, &names.mtp_mcore}) {
      DW_RETURN_IF_ERROR(Expand(*name, {"n", "k"}));
    }
    for (std::string& name : names.mtp_inner) DW_RETURN_IF_ERROR(Expand(name, {"n", "i"}));
    for (std::string* name : {&names.layer_hf, &names.mtp_hf}) {
      DW_RETURN_IF_ERROR(Expand(*name, {"n", "l", "L", "root"}));
    }
    return absl::OkStatus();
  }

 private:
  Status Expand(std::string& name, std::initializer_list<std::string_view> later) const {
    const std::string written = name;
    int expansions = 0;
    for (size_t at = name.find('{'); at != std::string::npos; at = name.find('{', at)) {
      const size_t end = std::min(name.find('}', at), name.size());
      const std::string inside = name.substr(at + 1, end - at - 1);
      if (std::find(later.begin(), later.end(), inside) != later.end()) {
        ++at;
        continue;
      }
      const auto text = family_.texts.find(inside);
      if (text == family_.texts.end() || ++expansions > 100) {
        return Errorf(StatusCode::kInvalidArgument,
                      "{}: \"{}\": {{{}}} is neither in [texts] nor "
                      "one of {{{}}}",
                      family_.source, written, inside, fmt::join(later, "}, {"));
      }
      name.replace(at, end + 1 - at, text->second);
    }
    return absl::OkStatus();
  }

  Family& family_;
};

class Resolver {
 public:
  explicit Resolver(const std::map<std::string, Family>& read) : read_(read) {}

  Status Resolve(const std::string& name) {
    if (done_.contains(name)) return absl::OkStatus();
    Family family = read_.at(name);
    if (!under_way_.insert(name).second) {
      return Errorf(StatusCode::kInvalidArgument, "{}: family \"{}\" extends itself", family.source,
                    name);
    }
    if (!family.includes.empty()) {
      const auto included = read_.find(family.includes);
      if (included == read_.end()) {
        return Errorf(StatusCode::kInvalidArgument, "{}: includes \"{}\", which no file defines",
                      family.source, family.includes);
      }
      // `without` is about what it extends.
      std::vector<std::string> without;
      std::swap(without, family.without);
      DW_RETURN_IF_ERROR(Extend(included->second, family));
      std::swap(without, family.without);
    }
    if (family.extends.empty()) {
      Family base;
      base.names = DefaultNames();
      DW_RETURN_IF_ERROR(Extend(base, family));
    } else {
      if (!read_.contains(family.extends)) {
        return Errorf(StatusCode::kInvalidArgument, "{}: extends \"{}\", which no file defines",
                      family.source, family.extends);
      }
      DW_RETURN_IF_ERROR(Resolve(family.extends));
      DW_RETURN_IF_ERROR(Extend(done_.at(family.extends), family));
    }
    for (const char* dim : kRequiredDims) {
      if (!family.dims.contains(dim)) {
        return Errorf(StatusCode::kInvalidArgument, "{}: family \"{}\" wants [dims] {}",
                      family.source, name, dim);
      }
    }
    done_.emplace(name, std::move(family));
    return absl::OkStatus();
  }
  StatusOr<std::map<std::string, Family>> Take() {
    for (auto& [unused, family] : done_) {
      DW_RETURN_IF_ERROR(AddCopies(family));
      DW_RETURN_IF_ERROR(TextExpander(family).All());
    }
    return std::move(done_);
  }

 private:
  const std::map<std::string, Family>& read_;
  std::map<std::string, Family> done_;
  std::set<std::string> under_way_;
};

bool AnyOf(const std::vector<std::string>& wanted, const std::vector<std::string>& has) {
  return std::any_of(wanted.begin(), wanted.end(), [&](const std::string& w) {
    return std::find(has.begin(), has.end(), w) != has.end();
  });
}

/// How many of a family's conditions `config` meets: -1 when it fails one, 0 when there is none.
StatusOr<int> Fit(const Family& family, const HfConfig& config) {
  int conditions = 0;
  if (!family.model_types.empty()) {
    if (!AnyOf(family.model_types, config.model_types())) return -1;
    ++conditions;
  }
  if (!family.architectures.empty()) {
    if (!AnyOf(family.architectures, config.architectures())) return -1;
    ++conditions;
  }
  if (!family.when.empty() && conditions > 0) {
    Scope scope(config, family.dims);
    DW_ASSIGN_OR_RETURN(const bool holds, scope.IsTrue(family.when));
    if (!holds) return -1;
    ++conditions;
  }
  return conditions;
}

}  // namespace

Names DefaultNames() {
  Names names;
  names.layer_mcore = "decoder.layers.{k}.";
  names.layer_hf = "{root}layers.{n}.";
  names.mtp_mcore = "mtp.layers.{n}.";
  names.mtp_hf = "{root}layers.{l}.";
  names.mtp_inner = {"transformer_layer.", "mtp_model_layer."};
  names.root = {"model."};
  return names;
}

bool MatchesPattern(std::string_view pattern, std::string_view text) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == text;
  if (!text.starts_with(pattern.substr(0, star))) return false;
  pattern.remove_prefix(star + 1);
  text.remove_prefix(star);
  for (size_t skip = 0; skip <= text.size(); ++skip) {
    if (MatchesPattern(pattern, text.substr(skip))) return true;
  }
  return false;
}

StatusOr<FamilySet> FamilySet::Load(std::span<const fs::path> dirs) {
  std::map<std::string, Family> read;
  for (const BuiltinFamily& builtin : BuiltinFamilies()) {
    DW_ASSIGN_OR_RETURN(Family family, ParseFamily(builtin.text, std::string(builtin.file)));
    read.insert_or_assign(family.name, std::move(family));
  }
  for (const fs::path& dir : dirs) {
    std::error_code error;
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(dir, error)) {
      if (entry.path().extension() == ".toml") files.push_back(entry.path());
    }
    if (error) {
      return Errorf(StatusCode::kNotFound, "model families in {}: {}", dir.string(),
                    error.message());
    }
    std::sort(files.begin(), files.end());
    std::set<std::string> here;
    for (const fs::path& file : files) {
      std::ifstream in(file, std::ios::binary);
      std::ostringstream text;
      text << in.rdbuf();
      if (!in) return Errorf(StatusCode::kNotFound, "{} cannot be read", file.string());
      DW_ASSIGN_OR_RETURN(Family family, ParseFamily(text.view(), file.string()));
      if (!here.insert(family.name).second) {
        return Errorf(StatusCode::kInvalidArgument, "{}: family \"{}\" is also in {}",
                      file.string(), family.name, read.at(family.name).source);
      }
      read.insert_or_assign(family.name, std::move(family));
    }
  }
  Resolver resolver(read);
  for (const auto& [name, family] : read) DW_RETURN_IF_ERROR(resolver.Resolve(name));
  FamilySet set;
  DW_ASSIGN_OR_RETURN(set.families_, resolver.Take());
  return set;
}

StatusOr<const Family*> FamilySet::Select(const HfConfig& config, const std::string& name) const {
  const auto known = [&] {
    std::string text;
    for (const auto& [family, unused] : families_) {
      text += fmt::format("{}{}", text.empty() ? "" : ", ", family);
    }
    return text;
  };
  if (!name.empty()) {
    const auto it = families_.find(name);
    if (it != families_.end()) return &it->second;
    return Errorf(StatusCode::kNotFound, "no model family \"{}\"; known: {}", name, known());
  }
  const auto extends = [&](const Family* child, const Family* parent) {
    while (!child->extends.empty()) {
      child = &families_.at(child->extends);
      if (child == parent) return true;
    }
    return false;
  };
  const Family* best = nullptr;
  const Family* rival = nullptr;  // fits as well as the best, and neither extends the other
  int best_fit = 0;
  for (const auto& [unused, family] : families_) {
    DW_ASSIGN_OR_RETURN(const int fit, Fit(family, config));
    if (fit <= 0 || fit < best_fit) continue;
    if (fit == best_fit && best != nullptr) {
      if (extends(best, &family)) continue;
      if (!extends(&family, best)) {
        rival = &family;
        continue;
      }
    }
    best = &family;
    best_fit = fit;
    rival = nullptr;
  }
  if (rival != nullptr) {
    return Errorf(StatusCode::kInvalidArgument,
                  "model families \"{}\" and \"{}\" both fit this config.json; name one",
                  best->name, rival->name);
  }
  if (best != nullptr) return best;
  const auto& types = config.model_types();
  return Errorf(StatusCode::kNotFound,
                "no model family fits model_type \"{}\"; name one of {}, or write a file "
                "(docs/model_families.md)",
                types.empty() ? "" : types.front(), known());
}

}  // namespace deltawire::mcore
