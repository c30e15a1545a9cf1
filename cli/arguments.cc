#include "cli/arguments.h"

#include <spdlog/fmt/fmt.h>

#include <charconv>

#include "common/config/size_text.h"

namespace deltawire::cli {
namespace {

/// Returns whether all of `text` is a number of this type.
template <typename Number>
bool Parse(const std::string& text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stopped == end;
}

}  // namespace

CLI::Validator WholeNumber(uint64_t least, uint64_t most) {
  return {[least, most](std::string& text) -> std::string {
            uint64_t number = 0;
            if (Parse(text, number) && number >= least && number <= most) {
              text = std::to_string(number);  // CLI11 would read 010 as eight
              return "";
            }
            const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
            // Names the type's own limit only for a number that exceeds it.
            return most >= std::numeric_limits<uint32_t>::max() && !(digits && number >= least)
                       ? fmt::format("{} is not a whole number of at least {}", text, least)
                       : fmt::format("{} is not a whole number from {} to {}", text, least, most);
          },
          ""};
}

CLI::Validator Seconds(double least, double most) {
  return {[least, most](std::string& text) -> std::string {
            double number = 0;
            if (Parse(text, number) && number >= least && number <= most) return "";
            return fmt::format("{} is not a number of seconds from {:.7g} to {:.7g}", text, least,
                               most);
          },
          ""};
}

CLI::Option* AddHex(CLI::App& app, const std::string& name, std::string& target,
                    const std::string& help, size_t most) {
  const auto lower = [most](std::string& text) -> std::string {
    const bool digits = text.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
    if (text.empty() || text.size() > most || !digits) {
      return fmt::format("\"{}\" is not 1 to {} hexadecimal digits", text, most);
    }
    for (char& c : text) c = c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
    return "";
  };
  return app.add_option(name, target, help)->type_name("HEX")->transform(CLI::Validator(lower, ""));
}

CLI::Option* AddSeconds(CLI::App& app, const std::string& name, double& target,
                        const std::string& help, double least, double most) {
  return app.add_option(name, target, help)
      ->type_name("SECONDS")
      ->check(Seconds(least, most))
      ->capture_default_str();
}

CLI::Option* TakeSize(CLI::Option* option, bool kb_is_1000) {
  const auto to_bytes = [kb_is_1000](std::string& text) -> std::string {
    const auto bytes = ParseSize(text, kb_is_1000);
    if (!bytes.ok()) return std::string(MessageOf(bytes.status()));
    if (*bytes == 0) return fmt::format("{} is less than one byte", text);
    text = std::to_string(*bytes);
    return "";
  };
  return option->type_name("SIZE")->transform(CLI::Validator(to_bytes, ""));
}

void JobArguments::AddFamilies(CLI::App& app) {
  app.add_option("--family", family, "Model family; default: by config.json")->type_name("NAME");
  app.add_option("--families", families, "Directory of further families (*.toml); repeatable")
      ->type_name("DIR")
      ->allow_extra_args(false)
      ->check(Quiet(CLI::ExistingDirectory));
}

}  // namespace deltawire::cli
