#include "common/security/principals.h"

#include <toml++/toml.h>

#include <algorithm>
#include <utility>

#include "common/base/similar_word.h"
#include "common/security/secret_file.h"
#include "common/security/token_proof.h"

namespace deltawire::security {
namespace {

constexpr std::pair<Role, std::string_view> kRoles[] = {{Role::kObserver, "observer"},
                                                        {Role::kReceiver, "receiver"},
                                                        {Role::kTrainer, "trainer"},
                                                        {Role::kOperator, "operator"}};
constexpr std::string_view kAnonymous = "anonymous";

// Reads one file of principals, and keeps the position of a mistake.
class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  StatusOr<Reread<PrincipalTable>::Reading> Read() {
    DW_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file_));
    files_ = {file_};
    try {
      const toml::table table = toml::parse(text, file_);
      DW_RETURN_IF_ERROR(ReadTable(table));
    } catch (const toml::parse_error& e) {
      return Errorf(StatusCode::kInvalidArgument, "{}:{}: {}", file_, e.source().begin.line,
                    e.description());
    }
    return Reread<PrincipalTable>::Reading{
        std::make_shared<const PrincipalTable>(std::move(principals_), anonymous_roles_,
                                               require_certificate_),
        std::move(files_)};
  }

 private:
  Status At(const toml::node& node, std::string_view what) const {
    return Errorf(StatusCode::kInvalidArgument, "{}:{}: {}", file_, node.source().begin.line, what);
  }

  Status ReadTable(const toml::table& table) {
    for (const auto& [key, value] : table) {
      if (key.str() == "anonymous-roles") {
        DW_ASSIGN_OR_RETURN(anonymous_roles_, ReadRoles(value));
        if ((anonymous_roles_ & (Role::kReceiver | Role::kTrainer)) != 0) {
          return At(value,
                    "anonymous-roles may be observer and operator: a pull's streams must show "
                    "whose they are");
        }
      } else if (key.str() == "require-certificate") {
        if (!value.is_boolean()) return At(value, "require-certificate is true or false");
        require_certificate_ = *value.value<bool>();
      } else if (key.str() == "principal") {
        const toml::array* all = value.as_array();
        if (all == nullptr) return At(value, "each principal begins with [[principal]]");
        for (const toml::node& one : *all) DW_RETURN_IF_ERROR(ReadPrincipal(one));
      } else {
        return At(value,
                  fmt::format("{} is not one of the keys anonymous-roles, require-certificate and "
                              "[[principal]]{}",
                              key.str(),
                              DidYouMean(key.str(),
                                         {"anonymous-roles", "require-certificate", "principal"})));
      }
    }
    return {};
  }

  Status ReadPrincipal(const toml::node& node) {
    const toml::table* table = node.as_table();
    if (table == nullptr) return At(node, "each principal begins with [[principal]]");
    Principal p;
    for (const auto& [key, value] : *table) {
      if (key.str() == "name") {
        DW_ASSIGN_OR_RETURN(p.name, ReadText(value));
      } else if (key.str() == "roles") {
        DW_ASSIGN_OR_RETURN(p.roles, ReadRoles(value));
      } else if (key.str() == "models") {
        DW_ASSIGN_OR_RETURN(p.models, ReadTexts(value));
        if (p.models.empty()) return At(value, "models = [] is nothing; leave it out for all");
      } else if (key.str() == "certificate") {
        DW_ASSIGN_OR_RETURN(p.certificates, ReadTexts(value));
      } else if (key.str() == "token-file") {
        DW_ASSIGN_OR_RETURN(const std::string named, ReadText(value));
        files_.push_back(BesideFile(file_, named));
        DW_ASSIGN_OR_RETURN(p.token, ReadTokenFile(files_.back()));
      } else {
        return At(value, fmt::format("{} is not one of a principal's keys: name, roles, models, "
                                     "certificate, token-file{}",
                                     key.str(),
                                     DidYouMean(key.str(), {"name", "roles", "models",
                                                            "certificate", "token-file"})));
      }
    }
    return Add(*table, std::move(p));
  }

  Status Add(const toml::table& table, Principal p) {
    if (p.name.empty() || p.name == kAnonymous) return At(table, "a principal needs a name");
    if (p.roles == 0) return At(table, fmt::format("principal {} has no roles", p.name));
    if (p.certificates.empty() && p.token.empty()) {
      return At(table, fmt::format("principal {} needs a certificate or a token-file", p.name));
    }
    for (const Principal& other : principals_) {
      if (other.name == p.name) return At(table, fmt::format("{} is there twice", p.name));
      if (!p.token.empty() && SameSecret(p.token, other.token)) {
        return At(table, fmt::format("{} and {} have the same token", other.name, p.name));
      }
      for (const std::string& name : p.certificates) {
        if (std::count(other.certificates.begin(), other.certificates.end(), name) == 0) continue;
        return At(table, fmt::format("{} and {} have the same certificate name {}", other.name,
                                     p.name, name));
      }
    }
    principals_.push_back(std::move(p));
    return {};
  }

  StatusOr<std::string> ReadText(const toml::node& node) const {
    if (!node.is_string() || node.value<std::string>()->empty()) return At(node, "expected a text");
    return *node.value<std::string>();
  }

  StatusOr<std::vector<std::string>> ReadTexts(const toml::node& node) const {
    std::vector<std::string> texts;
    const toml::array* all = node.as_array();
    if (all == nullptr) {
      DW_ASSIGN_OR_RETURN(texts.emplace_back(), ReadText(node));
      return texts;
    }
    for (const toml::node& one : *all) {
      DW_ASSIGN_OR_RETURN(texts.emplace_back(), ReadText(one));
    }
    return texts;
  }

  StatusOr<Roles> ReadRoles(const toml::node& node) const {
    DW_ASSIGN_OR_RETURN(const std::vector<std::string> texts, ReadTexts(node));
    Roles roles = 0;
    for (const std::string& text : texts) {
      const auto* found = std::find_if(std::begin(kRoles), std::end(kRoles),
                                       [&](const auto& r) { return r.second == text; });
      if (found == std::end(kRoles)) {
        return At(node, fmt::format("{} is none of the roles {}", text, ToString(kAllRoles)));
      }
      roles = static_cast<Roles>(roles | static_cast<Roles>(found->first));
    }
    return roles;
  }

  const std::string file_;
  std::vector<std::string> files_;
  std::vector<Principal> principals_;
  Roles anonymous_roles_ = static_cast<Roles>(Role::kObserver);
  bool require_certificate_ = false;
};

}  // namespace

std::string_view ToString(Role role) {
  for (const auto& [value, name] : kRoles) {
    if (value == role) return name;
  }
  return "?";
}

std::string ToString(Roles roles) {
  std::vector<std::string_view> names;
  for (const auto& [value, name] : kRoles) {
    if ((roles & static_cast<Roles>(value)) != 0) names.push_back(name);
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, " or "));
}

bool Principal::Has(Roles wanted) const {
  const bool observes = (wanted & static_cast<Roles>(Role::kObserver)) != 0 && roles != 0;
  return observes || (roles & wanted) != 0;
}

bool Principal::MayTouch(std::string_view model) const {
  return models.empty() || std::find(models.begin(), models.end(), model) != models.end();
}

PrincipalTable::PrincipalTable(std::vector<Principal> principals, Roles anonymous_roles,
                               bool require_certificate)
    : principals_(std::move(principals)), require_certificate_(require_certificate) {
  anonymous_.name = kAnonymous;
  anonymous_.roles = anonymous_roles;
}

const Principal* PrincipalTable::ByCertificate(const std::vector<std::string>& names) const {
  const Principal* found = nullptr;
  for (const Principal& p : principals_) {
    const auto shown = [&](const std::string& name) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    if (std::none_of(p.certificates.begin(), p.certificates.end(), shown)) continue;
    if (found != nullptr) return nullptr;  // ambiguous: the certificate names two principals
    found = &p;
  }
  return found;
}

const Principal* PrincipalTable::ByToken(std::string_view token) const {
  const Principal* found = nullptr;
  for (const Principal& p : principals_) {  // all of them, so that timing tells nothing
    if (!p.token.empty() && SameSecret(p.token, token)) found = &p;
  }
  return found;
}

const Principal* PrincipalTable::ByName(std::string_view name) const {
  if (name == kAnonymous) return &anonymous_;
  for (const Principal& p : principals_) {
    if (p.name == name) return &p;
  }
  return nullptr;
}

StatusOr<std::shared_ptr<Principals>> Principals::Load(const std::string& file) {
  std::shared_ptr<Principals> principals(new Principals());
  DW_ASSIGN_OR_RETURN(principals->reread_,
                      Reread<PrincipalTable>::Create([file] { return Reader(file).Read(); }));
  return principals;
}

}  // namespace deltawire::security
