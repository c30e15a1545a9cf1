// The states that a receiver's agents have announced, and the decision that follows from them: the
// next pull, or the reason to wait. Pure: a function of events and time. A Planner owns it, under
// its lock. A decision costs O(agents * states remembered).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/base/backoff.h"
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

class Follower {
 public:
  using Time = SteadyClock::time_point;
  /// The number of an agent's latest states that are remembered. The agent may still serve one of
  /// them when another agent lags behind.
  static constexpr size_t kRemembered = 64;

  struct Options {
    bool follow = true;
    uint64_t seed = 0;  ///< seed of the random part of pauses
  };
  Follower(std::vector<std::string> addresses, Options options);

  // Agents.
  /// Notes an event, after which the agent counts as attached.
  void NoteEvent(size_t agent, const SenderEvent& event);
  /// The attachment to the agent has ended.
  void NoteEnd(size_t agent);
  bool attached(size_t agent) const { return agents_[agent].attached; }
  bool attached() const;
  /// Notes an agent's newest state, which an event, a unary call or the end of a pull has named.
  void Learn(size_t agent, const Identity& newest);
  const Identity& newest(size_t agent) const { return agents_[agent].newest; }
  /// The agent's incoming version by its last event. Epoch 0: none.
  const Identity& incoming(size_t agent) const { return agents_[agent].incoming.version; }

  // Pulls.
  struct Target {
    Identity whole;               ///< its root is the sum of the parts' roots
    bool root_known = false;      ///< every part's root is known
    std::vector<Identity> parts;  ///< by agent; root 0 for a state that was never reported here
    bool exact = false;           ///< a single agent's pull must not end at a newer state
    bool incoming = false;        ///< an agent does not have its part complete yet
    /// Agents that have not named their parts yet. Such a part is named as it will be.
    std::vector<size_t> awaited = {};
    /// Whether the trainer still writes it. It may be abandoned, so nothing that a reader sees may
    /// change.
    bool unwritten() const { return incoming && whole.root == 0; }
  };
  /// A pull of an incoming version has ended without it. Until an agent's next event it is unknown
  /// whether the agent's part still comes.
  void ForgetIncoming(const Target& target);
  /// Whether the agent has published `part`, or has it as its incoming version.
  bool HasPart(size_t agent, const Identity& part) const;
  /// Whether one of these parts, by agent, will not come: its agent no longer announces it, or has
  /// gone on to another version.
  bool IsAbandoned(std::span<const Identity> parts) const;
  /// Whether all agents have published these parts.
  bool IsPublished(std::span<const Identity> parts) const;
  /// Returns the target that is exactly `state`, of a single agent.
  static Target ExactTarget(const Identity& state) { return {state, true, {state}, true}; }
  struct Situation {
    Identity committed;   ///< of the whole model; epoch 0: none
    Identity last_whole;  ///< the same, also while the buffer is in the middle of an update
    bool paused = false;
    bool requested = false;  ///< a caller waits for a sync
    bool corrupt = false;    ///< chunks are corrupt and must be fetched again
    bool checking = false;   ///< a caller waits for a check; pulls of unwritten versions end
    bool member = false;     ///< of a group, whose members prepare versions without following
    bool one_file = false;   ///< an update larger than the staging takes the file's name away
    /// The state that no older one of its lineage may replace.
    const Identity& held() const { return committed.empty() ? last_whole : committed; }
  };
  struct Choice {
    bool pull = false;
    Target target;  ///< the version to pull, if `pull`
    /// The reason to wait if not `pull`; empty if the newest state is held. Also the reason why the
    /// target of a caller's pull is older than what is held.
    std::string why;
    Time again = Time::max();  ///< when to ask again, if nothing happens before
  };
  Choice Next(const Situation& situation, Time now) const;
  /// The choice of a member that pulls exactly `state`.
  Choice ChooseExactly(const Identity& state, Time now) const {
    return {.pull = now >= pull_at_, .target = ExactTarget(state), .why = {}, .again = pull_at_};
  }
  /// The choice of a member that prepares a version which the trainer still writes.
  Choice ChooseUnwritten(const Situation& situation, Time now) const;
  /// The newest state that all agents have published under one attempt; nullopt: none.
  std::optional<Target> NewestCommon() const;
  /// Notes the end of a pull. `reached`: the committed state is no earlier than the target. If it
  /// is earlier, the agent announced a state that it does not have, and the next pull waits.
  void NotePullEnd(const Status& status, bool reached, Time now);
  std::string NewestOfEach() const;

 private:
  struct FollowedAgent {
    std::string address;
    bool attached = false;
    Identity newest;
    IncomingNews incoming;       ///< as the last event said
    bool forgotten = false;      ///< `incoming` was forgotten since
    uint64_t written = 0;        ///< attempt of the last `incoming`, however long ago
    Hash128 next_lineage;        ///< an incoming version's, other than newest's; zero: none
    std::deque<Identity> known;  ///< states of newest's lineage and epoch, rising; newest is last
  };
  /// Returns the known state of `agent` that belongs to the same offload as another agent's `part`,
  /// or null.
  const Identity* FindKnown(const FollowedAgent& agent, const Identity& part) const;
  /// Returns the whole model's state to which `part` belongs, or nullopt if an agent lacks it.
  std::optional<Target> WholeOf(const Identity& part) const;
  StateId OldestNewest() const;
  /// Whether a single agent, a relay, is about to change from its newest state's lineage to that of
  /// `held`, which came through it before it committed.
  bool IsBehind(const Identity& held) const;
  static bool HasPublished(const FollowedAgent& agent, const Identity& part);
  static bool IsAbandoned(const FollowedAgent& agent, const Identity& part);
  /// Returns the incoming version that can be pulled onto what is held, or nullopt.
  std::optional<Target> FindIncoming(const Situation& situation) const;
  std::optional<Target> IncomingOfOne(const Situation& situation) const;
  std::optional<Target> IncomingOfAll(const Situation& situation) const;
  /// Returns the whole of which `version` is the unwritten part of one agent, or nullopt if another
  /// agent's part of that attempt will not come.
  std::optional<Target> UnwrittenWhole(const Identity& version, bool one_file) const;

  const Options options_;
  std::vector<FollowedAgent> agents_;
  std::mt19937_64 random_;
  Backoff pull_backoff_;
  Time pull_at_{};
};

}  // namespace deltawire::receiver
