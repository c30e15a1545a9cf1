#include "receiver/engine_client/delta_chain.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "common/base/sync.h"
#include "common/shm/delta_file.h"

namespace deltawire::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kChainLookEvery{2};
/// A receiver commits first and then begins to write the delta's file. One that keeps no file for
/// this version costs a wait of this length.
constexpr std::chrono::milliseconds kFileGrace{100};
/// The file that is being written then is waited for: what it takes to be written grows with its
/// size, and the other way is to read the whole buffer. A killed receiver may have left it so.
constexpr std::chrono::milliseconds kWriteGrace{1000};
constexpr uint64_t kSlowestWrite = uint64_t{64} << 20;  // bytes a second

StatusOr<std::vector<fs::path>> FindChain(const fs::path& folder, const Hash128& fingerprint,
                                          const Identity& from, const Identity& to) {
  struct Link {
    fs::path path;
    Identity from, to;
  };
  std::vector<Link> links;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    // One that is still being written has a hidden name. Its head may be there already, and with it
    // the chain would seem to end in a file that is not whole.
    if (entry.path().filename().native().starts_with('.')) continue;
    // A file may go between being listed and being read.
    const auto head = DeltaFile::Peek(entry.path());
    if (!head.ok() || !(head->fingerprint == fingerprint)) continue;
    links.push_back({entry.path(), head->from, head->to});
  }
  // Newest first: of two ways to one state (after a rollback) the later one.
  std::sort(links.begin(), links.end(),
            [](const Link& a, const Link& b) { return a.path > b.path; });
  std::vector<fs::path> chain;
  Identity at = to;
  while (!(at == from)) {
    const auto link =
        std::find_if(links.begin(), links.end(), [&](const Link& l) { return l.to == at; });
    if (link == links.end()) {
      // The receiver can still be writing only the last link.
      return Errorf(at == to ? StatusCode::kNotFound : StatusCode::kOutOfRange,
                    "no chain of deltas leads there");
    }
    chain.insert(chain.begin(), link->path);
    at = link->from;
    // Each link once: a rollback and its return would be a circle.
    links.erase(link);
  }
  return chain;
}

}  // namespace

StatusOr<std::vector<fs::path>> AwaitDeltaChain(const fs::path& folder, const Hash128& fingerprint,
                                                const Identity& from, const Identity& to) {
  const auto begun = SteadyClock::now();
  auto end = begun + kFileGrace;
  while (true) {
    // First, so that a file that is finished in between is found.
    if (const auto bytes = DeltaBeingWritten(folder)) {
      const std::chrono::milliseconds write{1000 * *bytes / kSlowestWrite};
      // A little longer than it is there, and not for ever: a killed process may have left it.
      const auto now = SteadyClock::now();
      if (now < begun + kWriteGrace + write) end = std::max(end, now + kFileGrace);
    }
    auto chain = FindChain(folder, fingerprint, from, to);
    std::error_code unreadable;
    const bool last = SteadyClock::now() >= end || !fs::exists(folder, unreadable);
    if (chain.ok() || last || chain.status().code() != StatusCode::kNotFound) return chain;
    std::this_thread::sleep_for(kChainLookEvery);
  }
}

}  // namespace deltawire::engine
