#include "cli/logind.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>

#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace deltawire::cli {
namespace fs = std::filesystem;
namespace {

// A file hides files of the same name in later folders.
constexpr const char* kFolders[] = {"etc/systemd", "run/systemd", "usr/local/lib/systemd",
                                    "usr/lib/systemd"};

/// Returns the files in logind's order. A later file overrides an earlier one.
std::vector<fs::path> FilesBelow(const fs::path& root) {
  std::vector<fs::path> files;
  std::map<std::string, fs::path> drop_ins;  // by name, from all folders
  for (const char* folder : kFolders) {
    std::error_code ec;
    const fs::path whole = root / folder / "logind.conf";
    if (files.empty() && fs::exists(whole, ec)) files.push_back(whole);
    const fs::path parts = root / folder / "logind.conf.d";
    for (fs::directory_iterator it(parts, ec), end; !ec && it != end; it.increment(ec)) {
      const std::string name = it->path().filename();
      if (name.starts_with('.') || !name.ends_with(".conf")) continue;
      drop_ins.try_emplace(name, it->path());
    }
  }
  for (const auto& [name, path] : drop_ins) files.push_back(path);
  return files;
}

/// systemd accepts abseil's booleans and two more.
std::optional<bool> Boolean(const std::string& text) {
  if (absl::EqualsIgnoreCase(text, "on")) return true;
  if (absl::EqualsIgnoreCase(text, "off")) return false;
  bool value = false;
  if (!absl::SimpleAtob(text, &value)) return std::nullopt;
  return value;
}

/// Returns the file's last setting, or nullopt if it has none.
std::optional<bool> RemoveIpcIn(const fs::path& file) {
  std::optional<bool> value;
  std::string section;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    absl::StripAsciiWhitespace(&line);
    if (line.starts_with('#') || line.starts_with(';')) continue;
    if (line.starts_with('[')) section = line;
    const size_t equals = line.find('=');
    if (section != "[Login]" || equals == std::string::npos) continue;
    std::string key = line.substr(0, equals), text = line.substr(equals + 1);
    absl::StripAsciiWhitespace(&key);
    absl::StripAsciiWhitespace(&text);
    if (key != "RemoveIPC") continue;
    if (const std::optional<bool> said = Boolean(text)) value = *said;
  }
  return value;
}

}  // namespace

bool LogindRemovesIpc(const fs::path& root) {
  bool removes = true;  // the default without a setting
  for (const fs::path& file : FilesBelow(root)) removes = RemoveIpcIn(file).value_or(removes);
  return removes;
}

}  // namespace deltawire::cli
