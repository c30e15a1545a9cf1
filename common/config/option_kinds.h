// Options by the kind of their value: each is declared with its check and with its default, as
// --help shows it. Functions on a CLI::App, whose options write to their targets when it parses;
// targets outlive it. Threads: one. Errors: a value that does not fit is a CLI::ValidationError.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/config/endpoint.h"

namespace deltawire {

/// "TYPE" or "TYPE [default]": how --help shows an option's value.
template <typename T>
std::string Shown(std::string_view type, const T& value) {
  const std::string text = fmt::format("{}", value);
  return text.empty() ? std::string(type) : fmt::format("{} [{}]", type, text);
}

/// Declares a string option. `check` refuses a value or brings it into its final form.
void AddText(CLI::App& app, const std::string& name, std::string_view type, const std::string& help,
             std::string* target, Status (*check)(std::string& text));
/// Declares an option that may be given again and again. `add` is called with one value after the
/// other; its error refuses the option.
CLI::Option* AddEach(CLI::App& app, const std::string& name, const std::string& type,
                     const std::string& help, std::function<Status(const std::string& text)> add);
CLI::Option* AddListen(CLI::App& app, const std::string& name, const std::string& help,
                       Endpoint* target);
/// `min` and `max` are allowed.
void AddNumber(CLI::App& app, const std::string& name, const std::string& help, uint32_t min,
               uint32_t max, uint32_t* target);
/// From `min` to a day.
void AddMillis(CLI::App& app, const std::string& name, const std::string& help, uint64_t min,
               std::chrono::milliseconds* target);
/// Bytes, also with a unit and decimals: 512MiB, 1.5GiB.
void AddSize(CLI::App& app, const std::string& name, const std::string& help, uint64_t* target);
/// --name and --no-name.
void AddSwitch(CLI::App& app, const std::string& name, const std::string& help, bool* target);

}  // namespace deltawire
