// The kinds of values that the commands' options accept. Each kind defines how --help shows a value
// and which values are wrong usage (CLI::ValidationError); the message names the value and the
// accepted ones. The CLI::App owns an option that a function adds. The option's target must outlive
// the parse.
#pragma once

#include <CLI/CLI.hpp>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace deltawire::cli {

/// Returns the same check without the text that CLI11 would add to --help.
inline CLI::Validator Quiet(CLI::Validator check) { return check.description(""); }

/// Accepts only digits, for a number from `least` to `most`. CLI11's own conversion wraps negative
/// numbers around, truncates those that are too large, and reads 010 as eight.
CLI::Validator WholeNumber(uint64_t least, uint64_t most);
/// Accepts a finite number of seconds from `least` to `most`, with or without a fraction.
CLI::Validator Seconds(double least, double most);

/// Adds an option with a whole number, shown as N.
template <std::unsigned_integral Number>
CLI::Option* AddWhole(CLI::App& app, const std::string& name, Number& target,
                      const std::string& help, uint64_t least = 0,
                      uint64_t most = std::numeric_limits<Number>::max()) {
  return app.add_option(name, target, help)->type_name("N")->transform(WholeNumber(least, most));
}

/// Adds an option with up to `most` leading hexadecimal digits, stored in lower case.
CLI::Option* AddHex(CLI::App& app, const std::string& name, std::string& target,
                    const std::string& help, size_t most);

/// Adds an option with seconds, whose default --help shows.
CLI::Option* AddSeconds(CLI::App& app, const std::string& name, double& target,
                        const std::string& help, double least, double most);

/// Turns an option's argument, with or without a unit, into at least one byte. With `kb_is_1000`,
/// 1KB is 1,000 bytes and 1KiB is 1,024; otherwise both are 1,024.
CLI::Option* TakeSize(CLI::Option* option, bool kb_is_1000);

/// Adds an option for a directory that exists.
inline CLI::Option* AddDirectory(CLI::App& app, const std::string& name, std::string& target,
                                 const std::string& help) {
  return app.add_option(name, target, help)->type_name("DIR")->check(Quiet(CLI::ExistingDirectory));
}
/// Adds a required positional argument for one existing directory or a list of them. --help shows
/// it under `name`.
template <typename Target>
CLI::Option* NeedDirectory(CLI::App& app, const std::string& name, Target& target,
                           const std::string& help) {
  return app.add_option(name, target, help)
      ->type_name("")
      ->required()
      ->check(Quiet(CLI::ExistingDirectory));
}

/// The options that describe a Megatron job.
struct JobArguments {
  std::string hf, parallel, family;
  std::vector<std::string> families;

  /// Adds --family and --families; --hf and --parallel mean something else to each command.
  void AddFamilies(CLI::App& app);
};

}  // namespace deltawire::cli
