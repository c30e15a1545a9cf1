#include "sender/export/client/this_process.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <fstream>
#include <vector>

namespace deltawire {
namespace {

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Returns the program's name, and for an interpreter also the script. Further arguments are left
// out, because they may be secret.
std::string Program() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; words.size() < 3 && std::getline(in, word, '\0');) words.push_back(word);
  if (words.empty() || words[0].empty()) return "a program without a name";
  std::string program = BaseName(words[0]);
  if (!program.starts_with("python") || words.size() < 2) return program;
  if (words[1] == "-m" && words.size() > 2) return fmt::format("{} -m {}", program, words[2]);
  if (!words[1].starts_with('-')) return fmt::format("{} {}", program, BaseName(words[1]));
  return program;
}

}  // namespace

std::string ThisProcess() {
  char host[256] = {};
  if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return fmt::format("{}, process {} on {}", Program(), getpid(),
                     host[0] == '\0' ? "an unnamed host" : host);
}

}  // namespace deltawire
