// The kinds of values that the commands' options take: how --help shows each, and what is refused.
// A message names the value and what would be taken, in words for people. Owner: the CLI::App owns
// the option that a function adds and returns; the target belongs to the command and must outlive
// the parse. Threads: one. Cost: none. Errors: CLI::ValidationError, which is wrong usage.
#pragma once

#include <CLI/CLI.hpp>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace deltawire::cli {

/// The same check, but without the text that CLI11 would add to --help.
inline CLI::Validator Quiet(CLI::Validator check) { return check.description(""); }

/// Digits alone, for a number from `least` to `most`. CLI11's own conversion wraps negative numbers
/// around, cuts those that are too large, and reads 010 as eight.
CLI::Validator WholeNumber(uint64_t least, uint64_t most);
/// A finite number of seconds from `least` to `most`, with or without a fraction.
CLI::Validator Seconds(double least, double most);

/// An option with a whole number, shown as N.
template <std::unsigned_integral Number>
CLI::Option* AddWhole(CLI::App& app, const std::string& name, Number& target,
                      const std::string& help, uint64_t least = 0,
                      uint64_t most = std::numeric_limits<Number>::max()) {
  return app.add_option(name, target, help)->type_name("N")->transform(WholeNumber(least, most));
}

/// The first of at most `most` hexadecimal digits, as text in lower case, shown as HEX.
CLI::Option* AddHex(CLI::App& app, const std::string& name, std::string& target,
                    const std::string& help, size_t most);

/// An option with seconds, whose default --help shows.
CLI::Option* AddSeconds(CLI::App& app, const std::string& name, double& target,
                        const std::string& help, double least, double most);

/// Turns an option's argument, with or without a unit, into at least one byte. `kb_is_1000`: 1KB is
/// 1,000 bytes and 1KiB 1,024; else both are 1,024.
CLI::Option* TakeSize(CLI::Option* option, bool kb_is_1000);

/// A directory that exists, as an option.
inline CLI::Option* AddDirectory(CLI::App& app, const std::string& name, std::string& target,
                                 const std::string& help) {
  return app.add_option(name, target, help)->type_name("DIR")->check(Quiet(CLI::ExistingDirectory));
}
/// One that exists, or a list of such, as an argument that the command cannot do without. --help
/// shows it by its name.
template <typename Target>
CLI::Option* NeedDirectory(CLI::App& app, const std::string& name, Target& target,
                           const std::string& help) {
  return app.add_option(name, target, help)
      ->type_name("")
      ->required()
      ->check(Quiet(CLI::ExistingDirectory));
}

/// What a command that plans a Megatron job is told of it.
struct JobArguments {
  std::string hf, parallel, family;
  std::vector<std::string> families;

  /// Adds --family and --families; --hf and --parallel mean something else to each command.
  void AddFamilies(CLI::App& app);
};

}  // namespace deltawire::cli
