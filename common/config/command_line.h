// The daemons' additions to CLI11: tidy help, a strict reader of option files, and errors that name
// a value's source: "--streams: ..." or "receiver.toml:12: streams: ...".
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "common/base/status.h"

namespace deltawire {

/// Adds --help, --version and --config to `app`.
void AddGeneralOptions(CLI::App& app);

/// Returns an error if a value of `app`, or of a subcommand in use, begins with "~/", alone or
/// after "NAME=": a shell expands that only at the start of a word, and a systemd unit never.
Status CheckHome(const CLI::App& app);

struct CommandLineOutcome {
  bool run = false;
  std::string text;
  int exit_code = 0;
};
/// Reads the command line and the file of --config into the options' targets, then runs `check`.
/// The command line wins. A message of `check` about a single option begins with "--name: ".
CommandLineOutcome ParseCommandLine(CLI::App& app, int argc, const char* const* argv,
                                    const std::function<Status()>& check);

}  // namespace deltawire
