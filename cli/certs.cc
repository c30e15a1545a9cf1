// The certs command: an authority, certificates, tokens and principals for a first set-up.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/connect.h"
#include "common/base/unique_fd.h"
#include "common/security/certificate_issuer.h"
#include "common/security/principals.h"
#include "common/security/secret_file.h"
#include "common/security/token_proof.h"

namespace deltawire::cli {
namespace {

namespace fs = std::filesystem;
using security::IssuedCertificate;

constexpr std::chrono::days kAuthorityLife{3650};
constexpr uint32_t kMostDays = 3650;

struct CertsOptions {
  std::string directory;
  std::vector<std::string> nodes;
  uint32_t days = 365;
  bool token = false;
};

struct Node {
  std::string name;
  std::vector<std::string> roles;  // empty: it serves and calls no daemon
  std::vector<std::string> hosts = {"localhost", "127.0.0.1", "::1"};
};

std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> parts;
  for (size_t from = 0; from <= text.size();) {
    const size_t to = std::min(text.find(at, from), text.size());
    parts.push_back(text.substr(from, to - from));
    from = to + 1;
  }
  return parts;
}

security::Roles RolesOf(const Node& node) {
  security::Roles roles = 0;
  for (const security::Role role : {security::Role::kObserver, security::Role::kReceiver,
                                    security::Role::kTrainer, security::Role::kOperator}) {
    const bool has = std::count(node.roles.begin(), node.roles.end(), ToString(role)) != 0;
    if (has) roles = static_cast<security::Roles>(roles | static_cast<security::Roles>(role));
  }
  return roles;
}

/// Parses "NAME[:ROLE[+ROLE]][=HOST[,HOST]]".
StatusOr<Node> ParseNode(const std::string& text) {
  Node node;
  const size_t equals = text.find('=');
  const std::string front = text.substr(0, equals);
  if (equals != std::string::npos) {
    for (std::string& host : Split(text.substr(equals + 1), ',')) {
      if (host.empty()) return UsageError(fmt::format("\"{}\" has an empty host", text));
      if (std::count(node.hosts.begin(), node.hosts.end(), host) == 0) {
        node.hosts.push_back(std::move(host));
      }
    }
  }
  const size_t colon = front.find(':');
  node.name = front.substr(0, colon);
  if (colon != std::string::npos) node.roles = Split(front.substr(colon + 1), '+');
  const auto known = [](const std::string& role) {
    return role == "observer" || role == "receiver" || role == "trainer" || role == "operator";
  };
  const bool named =
      !node.name.empty() && node.name.front() != '.' && node.name != "anonymous" &&
      std::all_of(node.name.begin(), node.name.end(), [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '_';
      });
  if (!named || !std::all_of(node.roles.begin(), node.roles.end(), known)) {
    return UsageError(fmt::format(
        "\"{}\" is not NAME[:ROLE[+ROLE]][=HOST[,HOST]]; a name has letters, digits, '.', '-' and "
        "'_', and roles are observer, receiver, trainer and operator",
        text));
  }
  return node;
}

/// Replaces the whole file. The new file has `mode` before its first byte is written.
Status WriteWhole(const fs::path& file, const std::string& text, mode_t mode) {
  const fs::path hidden = file.native() + ".new";
  ::unlink(hidden.c_str());
  const UniqueFd fd(::open(hidden.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (fd.get() < 0) return ErrnoError("create " + hidden.native());
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError("write " + hidden.native());
    done += static_cast<size_t>(n);
  }
  if (::fsync(fd.get()) != 0) return ErrnoError("write " + hidden.native());
  if (::rename(hidden.c_str(), file.c_str()) != 0) return ErrnoError("rename to " + file.native());
  return {};
}

Status MakeDirectory(const fs::path& at) {
  if (::mkdir(at.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoError("make " + at.native());
  return {};
}

/// Returns the directory's authority, and creates it if there is none yet.
StatusOr<IssuedCertificate> AuthorityOf(const fs::path& at) {
  const fs::path certificate = at / "ca.pem", key = at / "ca.key";
  if (!fs::exists(certificate) && !fs::exists(key)) {
    DW_ASSIGN_OR_RETURN(IssuedCertificate made,
                        security::MakeAuthority("deltawire-ca", kAuthorityLife));
    DW_RETURN_IF_ERROR(WriteWhole(key, made.key, 0600));
    DW_RETURN_IF_ERROR(WriteWhole(certificate, made.certificate, 0644));
    return made;
  }
  IssuedCertificate ca;
  DW_ASSIGN_OR_RETURN(ca.certificate, security::ReadTextFile(certificate));
  DW_ASSIGN_OR_RETURN(ca.key, security::ReadSecretFile(key));
  return ca;
}

std::string CredentialsText(bool token) {
  return fmt::format(
      "# What this node shows and whom it believes (docs/security.md).\n"
      "ca = \"ca.pem\"\ncertificate = \"certificate.pem\"\nkey = \"key.pem\"\n{}",
      token ? "token-file = \"token\"\n" : "");
}

std::string PrincipalText(const Node& node, bool token) {
  return fmt::format(
      "\n[[principal]]\nname = \"{0}\"\nroles = [\"{1}\"]\ncertificate = \"{0}\"\n{2}", node.name,
      fmt::join(node.roles, "\", \""),
      token ? fmt::format("token-file = \"{}/token\"\n", node.name) : "");
}

Status WriteNode(const fs::path& at, const IssuedCertificate& ca, const Node& node,
                 const CertsOptions& o) {
  DW_ASSIGN_OR_RETURN(const IssuedCertificate made,
                      security::Issue(ca, node.name, node.hosts, std::chrono::days(o.days)));
  const fs::path own = at / node.name;
  DW_RETURN_IF_ERROR(MakeDirectory(own));
  DW_RETURN_IF_ERROR(WriteWhole(own / "key.pem", made.key, 0600));
  DW_RETURN_IF_ERROR(WriteWhole(own / "certificate.pem", made.certificate, 0644));
  DW_RETURN_IF_ERROR(WriteWhole(own / "ca.pem", ca.certificate, 0644));
  // An existing token is kept, since daemons hold copies of it.
  const bool known = fs::exists(own / "token");
  const bool token = known || (o.token && !node.roles.empty());
  if (token && !known) {
    DW_RETURN_IF_ERROR(WriteWhole(own / "token", security::RandomToken() + "\n", 0600));
  }
  return WriteWhole(own / "credentials.toml", CredentialsText(token), 0644);
}

/// Returns the new text of the file of principals: its present entries, and one for each of `nodes`
/// that has roles. An entry that exists already must have the same roles and, with `token`, a
/// token.
StatusOr<std::string> PrincipalsText(const fs::path& file, const std::vector<Node>& nodes,
                                     bool token) {
  std::string text =
      "# Who may do what at the daemons that get this file (docs/security.md).\n"
      "anonymous-roles = []\n";
  std::shared_ptr<const security::PrincipalTable> old;
  if (fs::exists(file)) {
    DW_ASSIGN_OR_RETURN(text, security::ReadTextFile(file));
    DW_ASSIGN_OR_RETURN(const auto read, security::Principals::Load(file));
    old = read->Now();
  }
  for (const Node& node : nodes) {
    for (const std::string& host : node.hosts) {
      const security::Principal* other = old == nullptr ? nullptr : old->ByCertificate({host});
      if (other == nullptr || other->name == node.name) continue;
      return UsageError(fmt::format(
          "{} is a host of {}, but {} knows {} by that name: the node could pass for it; choose "
          "another host name",
          host, node.name, file.native(), other->name));
    }
    const security::Principal* known = old == nullptr ? nullptr : old->ByName(node.name);
    if (known == nullptr) {
      if (!node.roles.empty()) text += PrincipalText(node, token);
      continue;
    }
    const bool same = node.roles.empty() || known->roles == RolesOf(node);
    if (!same || (token && known->token.empty())) {
      return UsageError(fmt::format(
          "{} is in {} already, {}; change that file by hand, or leave the {} out", node.name,
          file.native(), same ? "without a token" : "with other roles", same ? "token" : "roles"));
    }
  }
  return text;
}

/// Refuses names that could be confused. A principal is known by a name in its certificate, and a
/// host is such a name, too.
Status CheckNames(const std::vector<Node>& nodes) {
  for (const Node& node : nodes) {
    for (const Node& other : nodes) {
      if (&node == &other) continue;
      if (node.name == other.name) return UsageError(node.name + " is there twice");
      const bool shown = std::count(node.hosts.begin(), node.hosts.end(), other.name) != 0;
      if (shown && !other.roles.empty()) {
        return UsageError(fmt::format(
            "{} is a host of {} and the name of another node, for which it could then pass",
            other.name, node.name));
      }
    }
  }
  return {};
}

StatusOr<Exit> MakeCerts(const CertsOptions& o) {
  std::vector<Node> nodes;
  for (const std::string& text : o.nodes) {
    DW_ASSIGN_OR_RETURN(nodes.emplace_back(), ParseNode(text));
  }
  DW_RETURN_IF_ERROR(CheckNames(nodes));
  const fs::path at = o.directory, principals = at / "principals.toml";
  DW_RETURN_IF_ERROR(MakeDirectory(at));
  DW_ASSIGN_OR_RETURN(const std::string text, PrincipalsText(principals, nodes, o.token));
  DW_ASSIGN_OR_RETURN(const IssuedCertificate ca, AuthorityOf(at));
  for (const Node& node : nodes) DW_RETURN_IF_ERROR(WriteNode(at, ca, node, o));
  DW_RETURN_IF_ERROR(WriteWhole(principals, text, 0644));
  DW_RETURN_IF_ERROR(security::Principals::Load(principals).status());
  std::printf(
      "%s: an authority, principals.toml, and these nodes, whose certificates are valid for %u "
      "days:\n",
      at.c_str(), o.days);
  for (const Node& node : nodes) {
    std::printf("  %-20s %s\n", (node.name + "/").c_str(),
                fmt::format("{}", fmt::join(node.hosts, ", ")).c_str());
  }
  std::printf(
      "Give each node its own directory, and each daemon principals.toml%s:\n"
      "  --credentials NODE/credentials.toml --principals principals.toml\n"
      "Keep ca.key where no daemon runs.\n",
      o.token ? " with the tokens that it names" : "");
  return Exit::kOk;
}

}  // namespace

void DeclareCerts(CLI::App& app, Run* run) {
  auto o = std::make_shared<CertsOptions>();
  CLI::App* sub =
      app.add_subcommand("certs", "Make a private certificate authority and nodes' certificates");
  sub->add_option("DIR", o->directory,
                  "Where to write; an authority that is there already signs the new certificates")
      ->required();
  sub->add_option(
         "NODE", o->nodes,
         "NAME[:ROLE[+ROLE]][=HOST[,HOST]]: who it is, what it may do at other nodes "
         "(observer, receiver, trainer, operator), and the names and addresses that others "
         "dial it by")
      ->required();
  AddWhole(*sub, "--days", o->days, "How long the nodes' certificates are valid", 1, kMostDays)
      ->capture_default_str();
  sub->add_flag("--token", o->token, "Also make a token for each node with a role");
  sub->callback([o, run] { *run = [o] { return MakeCerts(*o); }; });
}

}  // namespace deltawire::cli
