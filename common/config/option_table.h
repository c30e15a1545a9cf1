// Declares options once and reads them from a command line and, below it, a TOML file.
// Used for the length of one parse; the setters' targets must outlive Parse. Not thread-safe.
// Errors name where the value came from: "--streams: ..." or "receiver.toml:12: streams: ...".
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace deltawire {

class OptionTable {
 public:
  using Setter = std::function<Status(const std::string&)>;

  OptionTable(std::string_view program, std::string_view description);

  /// Options declared from here on are listed under `title` in --help.
  void Group(std::string_view title) { group_ = title; }
  /// --name TYPE; `shown_default` goes into --help.
  void Value(const std::string& name, const std::string& type, const std::string& shown_default,
             const std::string& help, Setter set);
  /// --name TYPE, any number of times (an array in the file). `clear` runs before the first value
  /// of a source, so that the command line replaces the file's list.
  void List(const std::string& name, const std::string& type, const std::string& help,
            std::function<void()> clear, Setter set);
  /// --[no-]name.
  void Switch(const std::string& name, const std::string& help, bool* target);
  /// --name, off by default.
  void Flag(const std::string& name, const std::string& help, bool* target);

  struct Outcome {
    bool run = false;
    std::string text;
    int exit_code = 0;
  };
  /// Sets all targets: file first, command line over it.
  Outcome Parse(int argc, const char* const* argv);

  /// "--name", or "file:line: name" when the value in force came from there: for later checks.
  std::string Origin(const std::string& name) const;

  static constexpr int kUsageError = 2;
  static Outcome Failure(const Status& status);

 private:
  enum class Kind { kValue, kList, kSwitch };
  struct Entry {
    std::string name;
    Kind kind;
    CLI::Option* option;
    Setter set;
    std::function<void()> clear;
  };
  Entry& Add(std::string name, Kind kind, CLI::Option* option, const std::string& type, Setter set);
  void AddSwitch(const std::string& name, const std::string& names, const std::string& help,
                 bool* target);
  Status ReadFile(const std::string& path);
  Status ReadCommandLine();

  CLI::App app_;
  std::string group_;
  std::vector<Entry> entries_;
  std::map<std::string, std::string> origin_;
};

}  // namespace deltawire
