#include "cli/command.h"

#include <cstdio>

#include "cli/arguments.h"
#include "cli/connect.h"
#include "common/base/similar_word.h"
#include "common/config/command_line.h"
#include "common/config/unknown_option.h"

namespace deltawire::cli {
namespace {

constexpr Declare kCommands[] = {
    DeclarePublish,  DeclareStatus,  DeclareTop,     DeclareSync,    DeclareWait,
    DeclareWatch,    DeclareVerify,  DeclareControl, DeclareInspect, DeclareDiff,
    DeclarePlan,     DeclareConvert, DeclareDoctor,  DeclareLimits,  DeclareBenchLink,
    DeclareSimulate, DeclareCerts,   DeclareDemo,    DeclareVersion, DeclareHelp,
};

constexpr const char* kFooter = R"(Exit codes:
    0  done
    1  failed; one line on stderr says what happened and what to do
    2  wrong usage
    3  a daemon was not reachable, or a receiver has no sender
    4  a comparison found a difference: `verify`, `diff` of two layouts, `plan`; `status`, when a
       receiver holds bytes that are no earlier version of its sender's
  130  interrupted (Ctrl-C)

With --json, stdout has one JSON object, or one a line from commands that go on, with the
field names of proto/deltawire/v1. Sizes are in bytes, times in seconds. Messages go to stderr.)";

int Failed(const std::string& command, const Status& status) {
  std::fprintf(stderr, "deltawire %s: %s\n", command.c_str(),
               std::string(MessageOf(status)).c_str());
  if (IsUnreachable(status)) return static_cast<int>(Exit::kUnreachable);
  if (IsUsage(status)) return static_cast<int>(Exit::kUsage);
  return static_cast<int>(Exit::kFailed);
}

// Returns why `arguments`, without the program's name, are wrong. `error` is CLI11's text.
std::string WhyRefused(const CLI::App& app, const std::vector<std::string>& arguments,
                       const std::string& error) {
  constexpr const char* kSeeHelp = "see deltawire --help";
  if (arguments.empty()) return fmt::format("deltawire: no command is given; {}", kSeeHelp);
  const std::string& first = arguments.front();
  if (first.starts_with('-')) {
    const std::string unknown = UnknownOption(app, {first});
    return fmt::format("deltawire: {}; {}", unknown.empty() ? error : unknown, kSeeHelp);
  }
  const StatusOr<const CLI::App*> sub = FindCommand(app, first);
  if (!sub.ok()) return fmt::format("deltawire: {}; {}", MessageOf(sub.status()), kSeeHelp);
  const std::string unknown = UnknownOption(**sub, arguments);
  return fmt::format("deltawire {0}: {1}; see deltawire {0} --help", first,
                     unknown.empty() ? error : unknown);
}

}  // namespace

StatusOr<const CLI::App*> FindCommand(const CLI::App& app, const std::string& name) {
  std::vector<std::string> known;
  for (const CLI::App* sub : app.get_subcommands({})) {
    if (sub->get_name() == name) return sub;
    known.push_back(sub->get_name());
  }
  return UsageError(fmt::format("there is no command {}{}", name, DidYouMean(name, known)));
}

void Common::AddCredentials(CLI::App& app) {
  if (app.get_option_no_throw("--credentials") != nullptr) return;
  app.add_option_function<std::string>(
         "--credentials", [](const std::string& file) { UseCredentials(file); },
         "TOML file with this user's certificate or token, and the authorities of TLS")
      ->type_name("FILE")
      ->envname("DELTAWIRE_CREDENTIALS");
}

void Common::AddSender(CLI::App& app) {
  AddCredentials(app);
  app.add_option("--sender", sender, "The sender's control address")
      ->type_name("HOST:PORT")
      ->capture_default_str();
}

void Common::AddReceiver(CLI::App& app) {
  AddCredentials(app);
  app.add_option("--receiver", receiver, "The receiver's control address")
      ->type_name("HOST:PORT")
      ->capture_default_str();
}

void Common::AddSocket(CLI::App& app) {
  app.add_option("--socket", socket, "The sender's trainer socket")
      ->type_name("PATH")
      ->capture_default_str();
}

void Common::AddModel(CLI::App& app, const std::string& when_empty) {
  app.add_option("--model", model, "Model; default: " + when_empty)->type_name("NAME");
}

void Common::AddTimeout(CLI::App& app, double seconds, const std::string& help, double least) {
  timeout_seconds = seconds;
  AddSeconds(app, "--timeout", timeout_seconds, help, least, 1e6);
}

void Common::AddJson(CLI::App& app) { app.add_flag("--json", json, "Print JSON"); }

int Main(int argc, char** argv) {
  CLI::App app("Keeps inference engines' weights in step with a trainer, moving only what changed.",
               "deltawire");
  app.require_subcommand(1);
  app.set_version_flag("--version", "deltawire " DELTAWIRE_VERSION);
  Run run;
  for (const Declare declare : kCommands) declare(app, &run);
  app.footer(kFooter);  // after the subcommands are declared; they would inherit it
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    std::fprintf(stderr, "%s\n", WhyRefused(app, {argv + 1, argv + argc}, e.what()).c_str());
    return static_cast<int>(Exit::kUsage);
  }
  const Status homes = CheckHome(app);
  const StatusOr<Exit> exit = homes.ok() ? run() : UsageError(std::string(MessageOf(homes)));
  std::fflush(stdout);
  if (!exit.ok()) return Failed(app.get_subcommands().front()->get_name(), exit.status());
  return static_cast<int>(*exit);
}

}  // namespace deltawire::cli
