// The kinds of options by their value: each function declares one with its check and with its
// default, as --help shows it. Options write to their targets when the CLI::App parses, so targets
// outlive it. An invalid value is a CLI::ValidationError.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/config/endpoint.h"

namespace deltawire {

/// Returns an option's value as --help shows it: "TYPE" or "TYPE [default]".
template <typename T>
std::string Shown(std::string_view type, const T& value) {
  const std::string text = fmt::format("{}", value);
  return text.empty() ? std::string(type) : fmt::format("{} [{}]", type, text);
}

/// Declares a string option. `check` rejects a value or normalizes it.
void AddText(CLI::App& app, const std::string& name, std::string_view type, const std::string& help,
             std::string* target, Status (*check)(std::string& text));
/// Declares an option that may be repeated. `add` is called with each value in turn; its error
/// rejects the option.
CLI::Option* AddEach(CLI::App& app, const std::string& name, const std::string& type,
                     const std::string& help, std::function<Status(const std::string& text)> add);
CLI::Option* AddListen(CLI::App& app, const std::string& name, const std::string& help,
                       Endpoint* target);
/// The same for a port that may be absent; an empty value means none.
CLI::Option* AddListen(CLI::App& app, const std::string& name, const std::string& help,
                       std::optional<Endpoint>* target);
void AddNumber(CLI::App& app, const std::string& name, const std::string& help, uint32_t min,
               uint32_t max, uint32_t* target);
/// Allows `min` up to a day.
void AddMillis(CLI::App& app, const std::string& name, const std::string& help, uint64_t min,
               std::chrono::milliseconds* target);
/// Parses a size of an option, at most 1 PiB.
StatusOr<uint64_t> ParseSizeValue(const std::string& text);
/// Accepts bytes, also with a unit and decimals: 512MiB, 1.5GiB.
void AddSize(CLI::App& app, const std::string& name, const std::string& help, uint64_t* target);
/// A value of an enumeration, as an option names it.
template <typename T>
struct Word {
  const char* name;
  T value;
};
template <typename T, size_t n>
std::string_view NameOf(T value, const Word<T> (&words)[n]) {
  for (const Word<T>& word : words) {
    if (word.value == value) return word.name;
  }
  return "?";
}
/// Accepts one of `words`, and appends them to `help`.
template <typename T, size_t n>
void AddWord(CLI::App& app, const std::string& name, std::string_view type, const std::string& help,
             const Word<T> (&words)[n], T* target) {
  std::vector<std::string> names;
  for (const Word<T>& word : words) names.emplace_back(word.name);
  const auto set = [&words, target](const std::string& text) {
    for (const Word<T>& word : words) {
      if (text == word.name) *target = word.value;
    }
  };
  app.add_option_function<std::string>(name, set,
                                       fmt::format("{}: {}", fmt::join(names, ", "), help))
      ->check(CLI::IsMember(names))
      ->option_text(Shown(type, NameOf(*target, words)));
}
/// Declares --name and --no-name.
void AddSwitch(CLI::App& app, const std::string& name, const std::string& help, bool* target);

}  // namespace deltawire
