#include "common/config/option_table.h"

#include <algorithm>
#include <memory>
#include <sstream>

#include "common/config/toml_file.h"

namespace deltawire {
namespace {

constexpr std::string_view kVersionText = "deltawire " DELTAWIRE_VERSION;
constexpr size_t kHelpColumn = 34;

/// CLI11's help with a switch as "--[no-]name" and a default as "[4]".
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kHelpColumn); }

  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    const auto& names = option->get_lnames();
    if (names.size() == 2 && names[1] == "no-" + names[0]) return "--[no-]" + names[0];
    return CLI::Formatter::make_option_name(option, positional);
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text;
    if (!option->get_type_name().empty()) text += " " + option->get_type_name();
    if (option->get_expected_max() > 1) text += " ...";
    if (!option->get_default_str().empty()) text += " [" + option->get_default_str() + "]";
    return text;
  }
};

/// CLI11 puts two blank lines between groups.
std::string OneBlankLine(std::string text) {
  for (size_t at; (at = text.find("\n\n\n")) != std::string::npos;) text.erase(at, 1);
  return text;
}

std::string_view KindText(TomlItem::Kind kind) {
  switch (kind) {
    case TomlItem::Kind::kString:
      return "a string";
    case TomlItem::Kind::kInteger:
      return "a number";
    case TomlItem::Kind::kBoolean:
      return "true or false";
    case TomlItem::Kind::kStrings:
      return "a list";
  }
  return "";
}

}  // namespace

OptionTable::OptionTable(std::string_view program, std::string_view description)
    : app_(std::string(description), std::string(program)), group_("Options") {
  app_.formatter(std::make_shared<HelpFormatter>());
  app_.get_formatter()->label("OPTIONS", "options");
  app_.set_help_flag("-h,--help", "Print this help")->group("General");
  app_.set_version_flag("--version", std::string(kVersionText), "Print the version")
      ->group("General");
  app_.add_option("--config")
      ->description("Read options from this TOML file; its keys are the long option names")
      ->type_name("FILE")
      ->group("General");
}

OptionTable::Entry& OptionTable::Add(std::string name, Kind kind, CLI::Option* option,
                                     const std::string& type, Setter set) {
  option->group(group_);
  if (!type.empty()) option->type_name(type);
  return entries_.emplace_back(Entry{std::move(name), kind, option, std::move(set), {}});
}

void OptionTable::Value(const std::string& name, const std::string& type,
                        const std::string& shown_default, const std::string& help, Setter set) {
  CLI::Option* option = app_.add_option("--" + name)->description(help)->expected(1);
  Add(name, Kind::kValue, option, type, std::move(set));
  option->default_str(shown_default);
}

void OptionTable::List(const std::string& name, const std::string& type, const std::string& help,
                       std::function<void()> clear, Setter set) {
  CLI::Option* option = app_.add_option("--" + name)->description(help);
  option->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  Add(name, Kind::kList, option, type, std::move(set)).clear = std::move(clear);
}

void OptionTable::AddSwitch(const std::string& name, const std::string& names,
                            const std::string& help, bool* target) {
  CLI::Option* option = app_.add_flag(names)->description(help);
  option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  Add(name, Kind::kSwitch, option, "", [target](const std::string& text) {
    *target = text == "true";
    return Status();
  });
}

void OptionTable::Switch(const std::string& name, const std::string& help, bool* target) {
  AddSwitch(name, "--" + name + ",!--no-" + name,
            fmt::format("{} [{}]", help, *target ? "on" : "off"), target);
}

void OptionTable::Flag(const std::string& name, const std::string& help, bool* target) {
  AddSwitch(name, "--" + name, help, target);
}

Status OptionTable::ReadFile(const std::string& path) {
  DW_ASSIGN_OR_RETURN(const std::vector<TomlItem> items, ReadTomlFile(path));
  for (const TomlItem& item : items) {
    const std::string origin = fmt::format("{}:{}: {}", path, item.line, item.key);
    const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& e) { return e.name == item.key; });
    if (entry == entries_.end()) {
      return Errorf(StatusCode::kInvalidArgument,
                    "{}: there is no such option; --help lists them, and keys are their names "
                    "without --",
                    origin);
    }
    const bool is_switch = item.kind == TomlItem::Kind::kBoolean;
    const bool is_list = item.kind == TomlItem::Kind::kStrings;
    if (is_switch != (entry->kind == Kind::kSwitch) || (is_list && entry->kind != Kind::kList)) {
      return Errorf(StatusCode::kInvalidArgument, "{}: expected {}, not {}", origin,
                    entry->kind == Kind::kSwitch ? "true or false"
                    : entry->kind == Kind::kList ? "a list of strings"
                                                 : "one string or number",
                    KindText(item.kind));
    }
    if (entry->clear) entry->clear();
    for (const std::string& value : item.values) {
      DW_RETURN_IF_ERROR(Annotate(entry->set(value), origin));
    }
    origin_[item.key] = origin;
  }
  return {};
}

Status OptionTable::ReadCommandLine() {
  for (const Entry& entry : entries_) {
    if (entry.option->count() == 0) continue;
    const std::string origin = "--" + entry.name;
    if (entry.kind == Kind::kSwitch) {
      DW_RETURN_IF_ERROR(entry.set(entry.option->as<bool>() ? "true" : "false"));
    } else {
      if (entry.clear) entry.clear();
      for (const std::string& value : entry.option->results()) {
        DW_RETURN_IF_ERROR(Annotate(entry.set(value), origin));
      }
    }
    origin_[entry.name] = origin;
  }
  return {};
}

OptionTable::Outcome OptionTable::Failure(const Status& status) {
  return {false, fmt::format("{}\n", MessageOf(status)), kUsageError};
}

OptionTable::Outcome OptionTable::Parse(int argc, const char* const* argv) {
  try {
    app_.parse(argc, argv);
    const CLI::Option* config = app_.get_option("--config");
    Status status;
    if (config->count() > 0) status = ReadFile(config->as<std::string>());
    if (status.ok()) status = ReadCommandLine();
    if (!status.ok()) return Failure(status);
  } catch (const CLI::Success& asked) {  // --help, --version
    std::ostringstream text;
    app_.exit(asked, text, text);
    return {false, OneBlankLine(text.str()), 0};
  } catch (const CLI::Error& error) {
    return {false, fmt::format("{}\nRun with --help for the options.\n", error.what()),
            kUsageError};
  }
  return {true, {}, 0};
}

std::string OptionTable::Origin(const std::string& name) const {
  const auto found = origin_.find(name);
  return found == origin_.end() ? "--" + name : found->second;
}

}  // namespace deltawire
