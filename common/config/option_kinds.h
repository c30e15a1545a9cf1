// The kinds of options by their value: each function declares one with its check and with its
// default, as --help shows it. Options write to their targets when the CLI::App parses, so targets
// outlive it. An invalid value is a CLI::ValidationError.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>

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
void AddNumber(CLI::App& app, const std::string& name, const std::string& help, uint32_t min,
               uint32_t max, uint32_t* target);
/// Allows `min` up to a day.
void AddMillis(CLI::App& app, const std::string& name, const std::string& help, uint64_t min,
               std::chrono::milliseconds* target);
/// Accepts bytes, also with a unit and decimals: 512MiB, 1.5GiB.
void AddSize(CLI::App& app, const std::string& name, const std::string& help, uint64_t* target);
/// Declares --name and --no-name.
void AddSwitch(CLI::App& app, const std::string& name, const std::string& help, bool* target);

}  // namespace deltawire
