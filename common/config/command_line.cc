#include "common/config/command_line.h"

#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <vector>

#include "common/base/similar_word.h"
#include "common/config/unknown_option.h"

namespace deltawire {
namespace {

constexpr int kUsageError = 2;
constexpr size_t kHelpColumn = 34;
constexpr size_t kMaxEntryBytes = 4096;  // std::regex recurses once per character

/// CLI11's help, with a switch as "--[no-]name" and one blank line between groups, not two.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kHelpColumn); }

  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    const auto& names = option->get_lnames();
    if (names.size() == 2 && names[1] == "no-" + names[0]) return "--[no-]" + names[0];
    return CLI::Formatter::make_option_name(option, positional);
  }
  std::string make_group(std::string group, bool positional,
                         std::vector<const CLI::Option*> options) const override {
    const bool first = options.front()->get_group() == "General";
    return CLI::Formatter::make_group(group, positional, options).substr(first ? 0 : 1);
  }
};

std::string WithoutComment(const std::string& line) {
  return CLI::detail::trim_copy(line.substr(0, line.find('#')));
}

/// CLI11's TOML reader behind a check of each line. Without the check CLI11 would parse a malformed
/// line as a flag or as part of a value, and would ignore a key that is set twice.
class OptionFile : public CLI::ConfigTOML {
 public:
  explicit OptionFile(const CLI::App& app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    static const std::regex opens_array(R"re([\w-]+\s*=\s*\[.*)re");
    std::stringstream checked;
    int number = 0;
    for (std::string line; std::getline(input, line);) {
      const int first = ++number;
      std::string entry = WithoutComment(line);
      if (entry.empty()) continue;
      while (entry.size() <= kMaxEntryBytes && entry.back() != ']' &&
             std::regex_match(entry, opens_array) && std::getline(input, line)) {
        entry += WithoutComment(line);
        ++number;
      }
      CheckEntry(entry, first);
      checked << entry << '\n';
    }
    return CLI::ConfigTOML::from_config(checked);
  }

  /// Replaces a leading "--key: " of `message` by "file:line: key: " if that key's value came from
  /// the file.
  std::string NameSource(const std::string& message) const {
    const auto key = sources_.find(message.substr(0, message.find(": ")));
    if (key == sources_.end() || key->second.empty()) return message;
    return key->second + message.substr(2);
  }

 private:
  std::vector<std::string> Keys() const {
    std::vector<std::string> keys;
    for (const CLI::Option* option : app_.get_options()) {
      if (option->get_configurable() && !option->get_lnames().empty()) {
        keys.push_back(option->get_lnames().front());
      }
    }
    return keys;
  }
  void CheckEntry(const std::string& entry, int line) const {
    static const std::string value = R"re(("[^"\\]*"|'[^'\\]*'|true|false|0|[1-9][0-9]*))re";
    static const std::regex form(R"re(([\w-]+)\s*=\s*()re" + value + R"re(|\[\s*()re" + value +
                                 R"re((,\s*)re" + value + R"re()*,?)?\s*\]))re");
    const std::string source =
        fmt::format("{}:{}: ", app_.get_config_ptr()->as<std::string>(), line);
    std::smatch match;
    if (entry.size() > kMaxEntryBytes || !std::regex_match(entry, match, form)) {
      throw CLI::ConfigError(fmt::format(
          "{}{:.80} is not key = \"string\", a whole number, true, false or [\"a\", \"list\"]; "
          "strings hold no #, no \\ and none of their own quotes",
          source, entry));
    }
    const std::string key = match[1];
    const CLI::Option* option = app_.get_option_no_throw("--" + key);
    if (option == nullptr || option->get_lnames().front() != key || !option->get_configurable()) {
      throw CLI::ConfigError(
          fmt::format("{}{}: there is no such option; keys are the names that --help lists, "
                      "without --{}",
                      source, key, DidYouMean(key, Keys())));
    }
    const bool is_switch = option->get_expected_min() == 0;
    if (is_switch != (match[2] == "true" || match[2] == "false")) {
      throw CLI::ConfigError(fmt::format("{}{}: expected {}, not {}", source, key,
                                         is_switch ? "true or false" : "a string or number",
                                         match.str(2)));
    }
    // CLI11 has read the command line before the file and keeps its values, so the file is the
    // source of a value only if the option is still empty.
    if (!sources_.emplace("--" + key, option->empty() ? source : "").second) {
      throw CLI::ConfigError(fmt::format("{}{}: is set twice", source, key));
    }
  }

  const CLI::App& app_;
  mutable std::map<std::string, std::string> sources_;  // "--key" to "file:line: "
};

CommandLineOutcome Failure(const std::string& text) { return {false, text + "\n", kUsageError}; }

}  // namespace

void AddGeneralOptions(CLI::App& app) {
  app.formatter(std::make_shared<HelpFormatter>());
  app.get_formatter()->label("OPTIONS", "options");
  app.option_defaults()->group("General");
  app.set_help_flag("-h,--help", "Print this help")->group("General");
  app.set_version_flag("--version", "deltawire " DELTAWIRE_VERSION, "Print the version");
  app.set_config("--config", "",
                 "Read options from this TOML file; its keys are the long option names")
      ->check(CLI::ExistingFile)
      ->option_text("FILE");
}

Status CheckHome(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& value : option->results()) {
      const size_t equals = value.find("=~");
      const std::string_view path =
          std::string_view(value).substr(equals == std::string::npos ? 0 : equals + 1);
      if (path != "~" && !path.starts_with("~/")) continue;
      return Errorf(StatusCode::kInvalidArgument,
                    "{}: {}: a shell replaces ~ at the start of a word only, and nothing else "
                    "does; write the whole path",
                    option->get_name(), value);
    }
  }
  for (const CLI::App* called : app.get_subcommands()) {
    DW_RETURN_IF_ERROR(CheckHome(*called));
  }
  return absl::OkStatus();
}

CommandLineOutcome ParseCommandLine(CLI::App& app, int argc, const char* const* argv,
                                    const std::function<Status()>& check) {
  const auto file = std::make_shared<OptionFile>(app);
  app.config_formatter(file);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    std::ostringstream text;
    app.exit(asked, text, text);
    return {false, text.str(), 0};
  } catch (const CLI::Error& error) {
    const std::string unknown = UnknownOption(app, {argv + 1, argv + argc});
    return Failure((unknown.empty() ? file->NameSource(error.what()) : unknown) +
                   "\nRun with --help for the options.");
  }
  Status status = CheckHome(app);
  if (status.ok()) status = check();
  if (!status.ok()) return Failure(file->NameSource(std::string(MessageOf(status))));
  return {true, {}, 0};
}

}  // namespace deltawire
