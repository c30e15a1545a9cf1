// A vLLM engine of several ranks in memory, as an EngineCourse meets it: MultiprocExecutor's rings
// of replies, the plug-in of each rank, sleep, death and restart. No sockets and no time of its
// own. Owner: a test case. Threads: one. Cost: none. Errors: `wrong` has what no caller may do.
#pragma once

#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/base/identity.h"
#include "receiver/engine/plugin_call.h"

namespace deltawire::receiver {

class RanksStandIn {
 public:
  using Json = nlohmann::ordered_json;
  /// vLLM keeps so many replies of a worker; the next one blocks it, and all that is asked of it.
  static constexpr size_t kRing = 10;

  /// What a rank has; a number of kNothing is memory of no version.
  static constexpr uint64_t kNothing = 0;
  struct Rank {
    uint64_t weights = kNothing, held = kNothing, prepared = kNothing, before = kNothing;
    std::deque<Json> replies;
  };
  /// What one call does to a rank in place of what it was told.
  struct Trouble {
    size_t rank = 0;
    enum class What : uint8_t {
      kNone,
      kRefuses,  ///< it has no memory left, say
      kTears,    ///< a load of the directory raises in the middle
      kLies,     ///< says that it has written, and has not
    } what = What::kNone;
  };

  RanksStandIn(size_t ranks, uint64_t seed) : random_(seed) { ranks_.resize(ranks); }

  /// As a new process at the same port, which loads what is in the directory.
  void Start();
  /// The answer to POST /collective_rpc; nullopt: none ever comes.
  struct Reply {
    bool raised = false;  ///< a status of 500
    Json results;
  };
  std::optional<Reply> CallPlugin(const Json& kwargs, const Trouble& trouble);
  std::optional<Reply> ReloadWeights(const Trouble& trouble);
  /// A call of somebody's that each rank, or the last alone, raises at.
  void FailForeignCall(bool last_alone);
  void Pause() { paused = true; }
  void Resume();
  /// Sleep at level 2 drops the weights.
  void Sleep(int level);
  void WakeUp();
  void FlipBit();

  /// The version of which all ranks are; kNothing: of none.
  uint64_t whole() const;
  /// Its memory is wrong, and its next update heals it, or finds it.
  bool ailing() const { return drifted || heals_; }
  /// A rank has replies that nobody has read: its next ones are taken for those of later calls.
  bool unread() const;
  size_t ranks() const { return ranks_.size(); }
  /// The version that its ranks say they hold.
  uint64_t held() const { return ranks_.front().held; }
  bool blocked() const { return blocked_; }

  uint64_t directory = kNothing;  ///< the version that a load reads
  bool paused = false, asleep = false, dropped = false;
  bool drifted = false;   ///< a bit has flipped, and nobody was told
  bool spoiled = false;   ///< a reload of vLLM's own has raised: no later one is right
  bool corrupts = false;  ///< vLLM's own reload would leave wrong weights, and is refused
  std::string named = "default";
  std::vector<std::string> wrong;
  uint64_t refused_order = 0;  ///< calls that came before another one that has to come first

 private:
  struct Word {
    std::string reason;
    bool drifted = false, corrupts = false;
  };
  Word Step(const Json& kwargs, const Trouble& trouble);
  Word Compare();
  void Load(const Trouble& trouble);
  std::optional<Reply> Collect(const std::vector<Json>& replies, const std::vector<bool>& raised);
  void Forbid(bool forbidden, const std::string& what) {
    if (forbidden) wrong.push_back(what);
  }

  std::vector<Rank> ranks_;
  std::mt19937_64 random_;
  uint64_t process_ = 0;
  bool blocked_ = false, heals_ = false;
};

/// A trainer that begins anew counts from the same numbers, which stay below this one.
inline constexpr uint64_t kNumbers = 100;
/// The identity of a version here.
inline Identity VersionOf(uint64_t version) {
  return {Hash128{1, 2}, {1 + version / kNumbers, version % kNumbers}, version * 1000, 0};
}

}  // namespace deltawire::receiver
