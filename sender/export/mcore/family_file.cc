// Reads a family's TOML. docs/model_families.md explains the keys.
#include <toml++/toml.h>

#include <algorithm>

#include "common/base/similar_word.h"
#include "sender/export/mcore/family.h"

namespace deltawire::mcore {
namespace {

/// Reads the keys of one table, remembers the first error, and knows which keys were asked for.
class Reader {
 public:
  Reader(const toml::table& table, const std::string& file, Status* status)
      : table_(table), file_(file), status_(status) {}

  Status Error(const toml::node& node, std::string_view what) const {
    return Errorf(StatusCode::kInvalidArgument, "{}:{}: {}", file_, node.source().begin.line, what);
  }
  void Fail(const toml::node& node, std::string_view what) const {
    if (status_->ok()) *status_ = Error(node, what);
  }

  const toml::node* Find(std::string_view key) {
    known_.emplace_back(key);
    return table_.get(key);
  }
  void String(std::string_view key, std::string* to) {
    const toml::node* node = Find(key);
    if (node == nullptr) return;
    if (const auto* text = node->as_string()) {
      *to = text->get();
    } else {
      Fail(*node, fmt::format("{} wants a text", key));
    }
  }
  /// A text, a whole number or a boolean, as the text of an expression.
  void Expression(std::string_view key, std::string* to) {
    if (const toml::node* node = Find(key)) *to = ExpressionText(key, *node);
  }
  std::string ExpressionText(std::string_view key, const toml::node& node) const {
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* number = node.as_integer()) return std::to_string(number->get());
    if (const auto* truth = node.as_boolean()) return truth->get() ? "1" : "0";
    Fail(node, fmt::format("{} wants an expression", key));
    return "0";
  }
  void Bool(std::string_view key, bool* to) {
    const toml::node* node = Find(key);
    if (node == nullptr) return;
    if (const auto* truth = node->as_boolean()) {
      *to = truth->get();
    } else {
      Fail(*node, fmt::format("{} wants true or false", key));
    }
  }
  /// A list of texts, or a single text.
  void Strings(std::string_view key, std::vector<std::string>* to) {
    if (const toml::node* node = Find(key)) *to = StringList(key, *node);
  }
  std::vector<std::string> StringList(std::string_view key, const toml::node& node) const {
    std::vector<std::string> out;
    const auto* list = node.as_array();
    if (list == nullptr) return {ExpressionText(key, node)};
    for (const toml::node& item : *list) out.push_back(ExpressionText(key, item));
    return out;
  }
  void DTypeOf(std::string_view key, std::optional<DType>* to) {
    std::string name;
    String(key, &name);
    if (name.empty()) return;
    const StatusOr<DType> dtype = ParseDType(name);
    if (dtype.ok()) {
      *to = *dtype;
    } else {
      Fail(*table_.get(key), MessageOf(dtype.status()));
    }
  }
  void Spelt(std::string_view key, Spelling* to) {
    const toml::node* node = Find(key);
    if (node == nullptr) return;
    const toml::table* forms = node->as_table();
    if (forms == nullptr) {
      *to = {Spelling::By::kNothing, {StringList(key, *node)}};
      return;
    }
    const auto form = [&](const char* name) {
      const toml::node* texts = forms->get(name);
      return texts != nullptr ? StringList(key, *texts) : std::vector<std::string>{};
    };
    for (const auto& [by, first, second] :
         {std::tuple{Spelling::By::kSpec, "te", "local"},
          std::tuple{Spelling::By::kExperts, "grouped", "sequential"}}) {
      if (forms->size() == 2 && !form(first).empty() && !form(second).empty()) {
        *to = {by, {form(first), form(second)}};
        return;
      }
    }
    Fail(*node,
         fmt::format("{} wants a text, a list, {{te, local}} or {{grouped, sequential}}", key));
  }
  /// Reports a key that was never asked for: most likely a typing error.
  void RefuseOthers() const {
    for (const auto& [key, node] : table_) {
      if (std::find(known_.begin(), known_.end(), key.str()) == known_.end()) {
        Fail(node, fmt::format("unknown key \"{}\"{}", key.str(),
                               DidYouMean(key.str(), {known_.begin(), known_.end()})));
      }
    }
  }

 private:
  const toml::table& table_;
  const std::string& file_;
  Status* status_;
  std::vector<std::string> known_;
};

Part ReadPart(const toml::table& table, const std::string& file, Status* status) {
  Part part;
  Reader in(table, file, status);
  in.String("hf", &part.hf);
  in.Expression("rows", &part.rows);
  in.Expression("at", &part.at);
  in.Expression("runs", &part.runs);
  in.Expression("pitch", &part.pitch);
  in.Expression("repeat", &part.repeat);
  in.Bool("filled", &part.filled);
  in.Bool("zero", &part.zero);
  in.DTypeOf("dtype", &part.dtype);
  in.Bool("only_listed", &part.only_listed);
  in.RefuseOthers();
  if (part.hf.empty() != part.zero) {
    in.Fail(table, "a part wants hf, the name of its tensor, or zero = true");
  }
  return part;
}

std::optional<ParamScope> ScopeOf(std::string_view name) {
  if (name == "layer") return ParamScope::kLayer;
  if (name == "expert") return ParamScope::kExpert;
  if (name == "embedding") return ParamScope::kEmbedding;
  if (name == "final_norm") return ParamScope::kFinalNorm;
  if (name == "head") return ParamScope::kHead;
  if (name == "mtp") return ParamScope::kMtp;
  if (name == "tower") return ParamScope::kTower;
  return std::nullopt;
}

void ReadParts(Reader& in, const toml::table& table, const std::string& file, Param* param,
               Status* status) {
  Part only;
  in.String("hf", &only.hf);
  in.Expression("rows", &only.rows);
  in.Bool("only_listed", &only.only_listed);
  const toml::node* list = in.Find("parts");
  if (list == nullptr) {
    if (!only.hf.empty()) param->parts.push_back(only);
  } else if (const toml::array* parts = list->as_array(); parts != nullptr && only.hf.empty()) {
    for (const toml::node& node : *parts) {
      if (const toml::table* part = node.as_table()) {
        param->parts.push_back(ReadPart(*part, file, status));
        if (param->parts.back().rows.empty()) param->parts.back().rows = only.rows;
      } else {
        in.Fail(node, "parts wants tables");
      }
    }
  } else {
    in.Fail(*list, "a parameter has either hf or parts, a list of tables");
  }
  if (param->parts.empty() && !param->drop) {
    in.Fail(table, "a parameter wants hf, parts or drop = true");
  }
}

Param ReadParam(const toml::table& table, const std::string& file, Status* status) {
  Param param;
  param.source = fmt::format("{}:{}", file, table.source().begin.line);
  Reader in(table, file, status);
  in.Spelt("mcore", &param.mcore);
  if (param.mcore.forms.empty() || param.mcore.forms.front().empty()) {
    in.Fail(table, "a parameter wants mcore, its name there");
    param.mcore.forms = {{""}};
  }
  std::string scope = "layer";
  in.String("scope", &scope);
  if (const auto found = ScopeOf(scope)) {
    param.scope = *found;
  } else {
    in.Fail(table, fmt::format("scope \"{}\" is none of layer, expert, embedding, final_norm, "
                               "head, mtp, tower",
                               scope));
  }
  in.Expression("when", &param.when);
  in.Expression("repeat", &param.repeat);
  param.split = {Spelling::By::kNothing, {{"none"}}};
  in.Spelt("split", &param.split);
  for (const std::vector<std::string>& form : param.split.forms) {
    const std::string split = form.size() == 1 ? form.front() : "";
    if (split != "none" && split != "rows" && split != "columns") {
      in.Fail(table, fmt::format("split \"{}\" is none of none, rows, columns", split));
    }
  }
  in.Expression("cols", &param.cols);
  in.Bool("drop", &param.drop);
  ReadParts(in, table, file, &param, status);
  in.Expression("groups", &param.groups);
  in.Bool("per_shard", &param.per_shard);
  in.Expression("block", &param.block);
  in.Bool("padded", &param.padded);
  in.Expression("packed", &param.packed);
  in.Bool("swap_halves", &param.swap_halves);
  in.Expression("transpose", &param.transpose);
  in.Strings("shape", &param.shape);
  in.DTypeOf("dtype", &param.dtype);
  std::string add = "0";
  in.Expression("add", &add);
  if (add != "0" && add != "1" && add != "-1") in.Fail(table, "add is -1, 0 or 1");
  param.add = add == "1" ? 1 : add == "-1" ? -1 : 0;
  in.RefuseOthers();
  return param;
}

void ReadNames(const toml::table& table, const std::string& file, Names* names, Status* status) {
  Reader in(table, file, status);
  in.String("layer_mcore", &names->layer_mcore);
  in.String("layer_hf", &names->layer_hf);
  in.Strings("mtp_inner", &names->mtp_inner);
  in.String("mtp_mcore", &names->mtp_mcore);
  in.String("mtp_hf", &names->mtp_hf);
  in.Strings("root", &names->root);
  in.String("mcore_root", &names->mcore_root);
  in.Strings("strip", &names->strip);
  in.RefuseOthers();
}

/// Calls `read` with every table of the list `key`.
template <typename Read>
void EachTable(Reader& in, std::string_view key, const Read& read) {
  const toml::node* list = in.Find(key);
  if (list == nullptr) return;
  const toml::array* tables = list->as_array();
  if (tables == nullptr) return in.Fail(*list, fmt::format("{} wants a list of tables", key));
  for (const toml::node& node : *tables) {
    if (const toml::table* table = node.as_table()) {
      read(*table);
    } else {
      in.Fail(node, fmt::format("{} wants tables", key));
    }
  }
}

Passthrough ReadPassthrough(const toml::table& table, const std::string& file, Status* status) {
  Passthrough pass;
  Reader keys(table, file, status);
  keys.Strings("mcore", &pass.mcore);
  keys.String("newer", &pass.newer);
  keys.String("hf", &pass.hf);
  keys.RefuseOthers();
  if (pass.mcore.empty() || pass.hf.empty()) keys.Fail(table, "passthrough wants mcore and hf");
  return pass;
}

Copy ReadCopy(const toml::table& table, const std::string& file, Status* status) {
  Copy copy;
  Reader keys(table, file, status);
  keys.String("of", &copy.of);
  keys.String("hf", &copy.hf);
  keys.Expression("when", &copy.when);
  keys.RefuseOthers();
  if (copy.of.empty() || copy.hf.empty()) keys.Fail(table, "a copy wants of and hf");
  return copy;
}

Rule ReadRule(const toml::table& table, const std::string& file, Status* status) {
  Rule rule;
  Reader keys(table, file, status);
  keys.Expression("that", &rule.that);
  keys.String("otherwise", &rule.otherwise);
  keys.RefuseOthers();
  const auto open = std::count(rule.otherwise.begin(), rule.otherwise.end(), '{');
  const auto closed = std::count(rule.otherwise.begin(), rule.otherwise.end(), '}');
  if (rule.that.empty() || rule.otherwise.empty()) keys.Fail(table, "a rule wants that, otherwise");
  if (open != closed) keys.Fail(table, "otherwise: braces do not match");
  return rule;
}

/// The table `key`; null where there is none.
const toml::table* SubTable(Reader& in, std::string_view key) {
  const toml::node* node = in.Find(key);
  if (node == nullptr) return nullptr;
  if (!node->is_table()) in.Fail(*node, fmt::format("{} is a table", key));
  return node->as_table();
}

void ReadTexts(Reader& in, std::string_view key, const std::string& file,
               std::map<std::string, std::string>* to, Status* status) {
  const toml::table* table = SubTable(in, key);
  if (table == nullptr) return;
  Reader keys(*table, file, status);
  for (const auto& [name, node] : *table) {
    keys.String(name.str(), &(*to)[std::string(name.str())]);
  }
}

}  // namespace

StatusOr<Family> ParseFamily(std::string_view text, const std::string& file) {
  toml::table root;
  try {
    root = toml::parse(text, file);
  } catch (const toml::parse_error& e) {
    return Errorf(StatusCode::kInvalidArgument, "{}:{}: {}", file, e.source().begin.line,
                  e.description());
  }
  Status status = absl::OkStatus();
  Family family;
  family.source = file;
  Reader in(root, file, &status);
  in.String("family", &family.name);
  if (family.name.empty()) in.Fail(root, "wants family = \"NAME\"");
  in.String("extends", &family.extends);
  in.String("includes", &family.includes);
  if (const toml::table* match = SubTable(in, "match")) {
    Reader keys(*match, file, &status);
    keys.Strings("model_type", &family.model_types);
    keys.Strings("architectures", &family.architectures);
    keys.Expression("when", &family.when);
    keys.RefuseOthers();
  }
  if (const toml::table* dims = SubTable(in, "dims")) {
    for (const auto& [key, node] : *dims) {
      family.dims[std::string(key.str())] = in.StringList(key.str(), node);
    }
  }
  if (const toml::table* names = SubTable(in, "names")) {
    ReadNames(*names, file, &family.names, &status);
  }
  ReadTexts(in, "texts", file, &family.texts, &status);
  ReadTexts(in, "listed", file, &family.listed, &status);
  EachTable(in, "param", [&](const toml::table& table) {
    family.params.push_back(ReadParam(table, file, &status));
  });
  EachTable(in, "passthrough", [&](const toml::table& table) {
    family.passthrough.push_back(ReadPassthrough(table, file, &status));
  });
  EachTable(in, "copies", [&](const toml::table& table) {
    family.copies.push_back(ReadCopy(table, file, &status));
  });
  EachTable(in, "rules", [&](const toml::table& table) {
    family.rules.push_back(ReadRule(table, file, &status));
  });
  in.Strings("without", &family.without);
  in.Strings("not_trained", &family.not_trained);
  in.Strings("not_exported", &family.not_exported);
  in.RefuseOthers();
  DW_RETURN_IF_ERROR(status);
  return family;
}

}  // namespace deltawire::mcore
