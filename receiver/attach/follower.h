// The states that a receiver's agents have told of, and the decision that follows from them: what
// to pull next, or why to wait. Pure: a function of events and time. A Replica owns it, under its
// lock. A decision costs O(agents * states remembered).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "receiver/attach/upstream.h"

namespace deltawire::receiver {

/// The identity of a whole model of which each agent has a part at the same version and attempt.
/// Lineage: XXH3-128 over the agents' sorted lineages (for one agent its own). Id: the greatest of
/// the parts' (epochs differ if one agent was rolled back more often). Root: the sum of the parts'.
Hash128 CombineLineages(std::vector<Hash128> lineages);
Identity Combine(std::span<const Identity> parts);

/// A pause that doubles from kFirst to kLongest with each failure, less a random part of up to
/// half, so that receivers which failed together do not all come back at once.
class Backoff {
 public:
  static constexpr std::chrono::milliseconds kFirst{50}, kLongest{2000};
  void Reset() { pause_ = kFirst; }
  std::chrono::nanoseconds Next(std::mt19937_64& random,
                                std::chrono::milliseconds longest = kLongest);

 private:
  std::chrono::milliseconds pause_ = kFirst;
};

class Follower {
 public:
  using Time = SteadyClock::time_point;
  /// How many of an agent's latest states are remembered. The agent may still serve one of them
  /// when another agent lags behind.
  static constexpr size_t kRemembered = 64;

  struct Options {
    bool follow = true;
    uint64_t seed = 0;  ///< seed of the random part of pauses
  };
  Follower(std::vector<std::string> addresses, Options options);

  // Agents.
  /// Remembers what the event says: the agent is attached.
  void Event(size_t agent, const UpstreamEvent& event);
  /// The attachment to the agent has ended.
  void Ended(size_t agent);
  bool attached(size_t agent) const { return agents_[agent].attached; }
  bool attached() const;
  /// Takes note of an agent's newest state, as an event, a unary call or a pull's end named it.
  void Learn(size_t agent, const Identity& newest);
  const Identity& newest(size_t agent) const { return agents_[agent].newest; }
  /// The version that is coming to the agent, as its last event said; epoch 0: none.
  const Identity& incoming(size_t agent) const { return agents_[agent].incoming.version; }

  // Pulls.
  struct Target {
    Identity whole;               ///< its root is the sum of the parts' roots
    bool root_known = false;      ///< every part's root is known
    std::vector<Identity> parts;  ///< by agent; root 0 for a state that was never reported here
    bool exact = false;           ///< nothing else will do, also of a single agent
    bool incoming = false;        ///< it, or a part of it, is still on its way to the agents
    /// Agents that say nothing of their parts yet. Such a part is named as it will be.
    std::vector<size_t> awaited = {};
    /// The trainer still writes it: it may be given up, and nothing that a reader sees may change.
    bool unwritten() const { return incoming && whole.root == 0; }
  };
  /// A pull of what was coming has ended without it. Until an agent's next event it is not known
  /// whether its part still comes.
  void ForgetIncoming(const Target& target);
  /// Whether the agent has published `part`, or says that it is on its way.
  bool Has(size_t agent, const Identity& part) const;
  /// Whether one of these parts, by agent, will not come: its agent says so no more, or has gone
  /// on.
  bool GivenUp(std::span<const Identity> parts) const;
  /// Whether all agents have published these parts.
  bool Published(std::span<const Identity> parts) const;
  /// Exactly `state`, of a single agent.
  static Target Exactly(const Identity& state) { return {state, true, {state}, true}; }
  struct Situation {
    Identity committed;   ///< of the whole model; epoch 0: none
    Identity last_whole;  ///< the same, and that of a buffer which is in the middle of an update
    bool paused = false;
    bool requested = false;  ///< a caller waits for a sync
    bool suspects = false;   ///< chunks were found bad and must be fetched again
    bool checking = false;   ///< a caller waits for a check of the weights, for which pulls end
    bool member = false;     ///< of a group, which makes versions ready whether or not it follows
    bool one_file = false;   ///< an update that does not fit into the staging takes the file's name
    /// No older state of its lineage is to take its place.
    const Identity& held() const { return committed.empty() ? last_whole : committed; }
  };
  struct Choice {
    bool pull = false;
    Target target;  ///< what to pull, if `pull`
    /// If not `pull`: what is waited for; empty: the newest is held. Also why a state that a caller
    /// has asked for is older.
    std::string why;
    Time again = Time::max();  ///< when to ask again, if nothing happens before
  };
  Choice Next(const Situation& situation, Time now) const;
  /// The same for one who wants exactly `state`.
  Choice Towards(const Identity& state, Time now) const {
    return {.pull = now >= pull_at_, .target = Exactly(state), .why = {}, .again = pull_at_};
  }
  /// What the trainer still writes, for one who is to make exactly that ready for its group.
  Choice Ahead(const Situation& situation, Time now) const;
  /// The newest state that all agents have published under one attempt; nullopt: none.
  std::optional<Target> Common() const;
  /// A pull has ended. `reached`: what is committed now is no earlier than what was to be pulled;
  /// if it is, whoever told of the later state does not have it, and the next pull waits.
  void PullEnded(const Status& status, bool reached, Time now);
  std::string NewestOfEach() const;

 private:
  struct FollowedAgent {
    std::string address;
    bool attached = false;
    Identity newest;
    IncomingNews incoming;       ///< as the last event said
    bool forgotten = false;      ///< `incoming` was forgotten since
    uint64_t written = 0;        ///< attempt of the last `incoming`, however long ago
    Hash128 next_lineage;        ///< for which it is leaving newest's lineage; zero: for none
    std::deque<Identity> known;  ///< states of newest's lineage and epoch, rising; newest is last
  };
  /// The state of `agent` that is of the same offload as `part`, which is another agent's; null if
  /// no such state is known.
  const Identity* Known(const FollowedAgent& agent, const Identity& part) const;
  /// The whole model's state to which `part` belongs; nullopt if some agent does not have it.
  std::optional<Target> At(const Identity& part) const;
  StateId OldestNewest() const;
  /// Whether a single agent's newest is of a lineage that it leaves itself for that of `held`,
  /// which came through it before it committed.
  bool IsBehind(const Identity& held) const;
  static bool HasPublished(const FollowedAgent& agent, const Identity& part);
  static bool WillNotCome(const FollowedAgent& agent, const Identity& part);
  /// The version on its way to the agents that can be pulled from what is held; nullopt: none.
  std::optional<Target> Coming(const Situation& situation) const;
  std::optional<Target> ComingToOne(const Situation& situation) const;
  std::optional<Target> ComingToAll(const Situation& situation) const;
  /// The whole of which `version` is the part that the trainer writes at one agent; nullopt: at
  /// another one that attempt will not come.
  std::optional<Target> Written(const Identity& version, bool one_file) const;

  const Options options_;
  std::vector<FollowedAgent> agents_;
  std::mt19937_64 random_;
  Backoff pull_backoff_;
  Time pull_at_{};
};

}  // namespace deltawire::receiver
