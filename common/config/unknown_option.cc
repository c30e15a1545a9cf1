#include "common/config/unknown_option.h"

#include <spdlog/fmt/fmt.h>

#include <string_view>

#include "common/base/similar_word.h"

namespace deltawire {
namespace {

// Returns names without dashes.
std::vector<std::string> LongNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

}  // namespace

std::string UnknownOption(const CLI::App& app, const std::vector<std::string>& arguments) {
  constexpr std::string_view kDashes = "--";
  for (const std::string& argument : arguments) {
    if (argument == kDashes) break;
    if (!argument.starts_with(kDashes)) continue;
    const std::string name = argument.substr(0, argument.find('='));
    if (app.get_option_no_throw(name) != nullptr) continue;
    std::vector<std::string> known;
    for (const std::string& one : LongNames(app)) known.push_back("--" + one);
    return fmt::format("there is no option {}{}", name, DidYouMean(name, known));
  }
  return "";
}

}  // namespace deltawire
