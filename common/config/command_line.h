// What the daemons add to CLI11: tidy help, an option file that is read strictly, and errors that
// name where a value came from: "--streams: ..." or "receiver.toml:12: streams: ...".
// Lives for one parse. Not thread-safe.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "common/base/status.h"

namespace deltawire {

/// Gives `app` --help, --version and --config.
void AddGeneralOptions(CLI::App& app);

/// An error if a value of `app`, or of a subcommand that was called, begins with "~/", alone or
/// after "NAME=": a shell replaces that only at the start of a word, and a unit of systemd never.
Status CheckHome(const CLI::App& app);

struct CommandLineOutcome {
  bool run = false;
  std::string text;
  int exit_code = 0;
};
/// Reads the command line and the file of --config into the options' targets (the command line
/// wins), then runs `check`. A message of `check` about a single option begins with "--name: ".
CommandLineOutcome ParseCommandLine(CLI::App& app, int argc, const char* const* argv,
                                    const std::function<Status()>& check);

}  // namespace deltawire
