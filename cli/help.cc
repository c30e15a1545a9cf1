// The commands help and completion.
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>

#include "cli/command.h"
#include "cli/completion_scripts.h"

namespace deltawire::cli {
namespace {

constexpr std::pair<const char*, std::string_view> kCompletionScripts[] = {
    {"bash", kBashCompletion}, {"zsh", kZshCompletion}, {"fish", kFishCompletion}};

constexpr const char* kCompletionFooter = R"(To load it:
  bash  source <(deltawire completion bash)          # in ~/.bashrc
  zsh   deltawire completion zsh >DIR/_deltawire     # DIR of $fpath, then compinit
  fish  deltawire completion fish | source           # in ~/.config/fish/config.fish)";

StatusOr<Exit> PrintHelp(const CLI::App& app, const std::string& command) {
  std::string text;
  if (command.empty()) {
    // App::help would print the page of the chosen command, which is this one.
    text = app.get_formatter()->make_help(&app, app.get_name(), CLI::AppFormatMode::Normal);
  } else {
    DW_ASSIGN_OR_RETURN(const CLI::App* const sub, FindCommand(app, command));
    text = sub->help(app.get_name());
  }
  std::fputs(text.c_str(), stdout);
  return Exit::kOk;
}

StatusOr<Exit> PrintCompletion(const std::string& shell) {
  for (const auto& [name, script] : kCompletionScripts) {
    if (shell == name) std::fwrite(script.data(), 1, script.size(), stdout);
  }
  return Exit::kOk;
}

}  // namespace

void DeclareHelp(CLI::App& app, Run* run) {
  const auto command = std::make_shared<std::string>();
  CLI::App* const help =
      app.add_subcommand("help", "Print the help of deltawire or of one command");
  help->add_option("COMMAND", *command, "A command; default: the list of commands")->type_name("");
  help->callback(
      [&app, command, run] { *run = [&app, command] { return PrintHelp(app, *command); }; });

  const auto shell = std::make_shared<std::string>();
  CLI::App* const completion =
      app.add_subcommand("completion", "Print a script that completes commands and options");
  completion->add_option("SHELL", *shell, "bash, zsh or fish")
      ->type_name("")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}).description(""));
  completion->footer(kCompletionFooter);
  completion->callback([shell, run] { *run = [shell] { return PrintCompletion(*shell); }; });
}

}  // namespace deltawire::cli
