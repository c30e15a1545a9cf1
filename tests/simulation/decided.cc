#include "tests/simulation/decided.h"

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <string_view>
#include <vector>

#include "tests/simulation/kernel_calls.h"

namespace deltawire::simulation {
namespace {

std::vector<Identity> g_decided;
std::map<std::string, Identity> g_told;  // the last decision, by member

// Reads the file by its documentation (docs/groups.md), without the sender's code.
void Record(const char* path) {
  if (!std::string_view(path).ends_with(".deltawire.groups")) return;
  std::ifstream in(path);
  std::string word;
  Identity state;
  while (in >> word) {
    if (word == "lineage") {
      in >> word;
      state.lineage = Hash128::FromHex(word).value_or(Hash128{});
    } else if (word == "group") {
      std::string name, kind;
      uint64_t round = 0;
      in >> name >> kind >> round >> state.id.epoch >> state.id.version >> std::hex >> state.root >>
          state.attempt >> std::dec;
      if (!WasDecided(state)) g_decided.push_back(state);
    }
  }
}

}  // namespace

bool WasDecided(const Identity& state) {
  for (const Identity& decided : g_decided) {
    if (decided == state && decided.attempt == state.attempt) return true;
  }
  return false;
}

size_t DecidedCount() { return g_decided.size(); }

std::string NoteTold(const std::string& member, const GroupWord& word, const Identity& newest) {
  if (word.name.empty()) return "";
  Identity& told = g_told[member];
  if (!word.commit.empty() && !WasDecided(word.commit)) {
    return fmt::format("{} is told to commit {}, which nobody has decided on", member,
                       DescribeFully(word.commit));
  }
  if (!told.empty() && told.lineage == newest.lineage &&
      (word.commit.empty() || IsLater(told, word.commit))) {
    return fmt::format("{} was told to commit {}, and the sender takes it back", member,
                       DescribeFully(told));
  }
  if (!word.commit.empty()) told = word.commit;
  return "";
}

void ForgetDecided() {
  g_decided.clear();
  g_told.clear();
  OnRenamed(Record);
}

}  // namespace deltawire::simulation
