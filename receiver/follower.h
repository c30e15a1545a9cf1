// What a receiver knows of its agents, and what follows from it: whom to attach to, whom to send a
// beat, who has fallen silent, what to pull next or why nothing. Pure: functions of events and
// time. Owner: a Replica, under its lock. Cost: O(agents * states remembered) a decision. Errors:
// an event out of sequence is kDataLoss and is to end its attachment.
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
#include "receiver/upstream.h"

namespace deltawire::receiver {

/// The name of a whole model of which each agent has a part at the same version and attempt:
/// lineage XXH3-128 over the sorted lineages (of one agent its own), id the greatest of the parts'
/// (epochs may differ, where one agent was rolled back more often), root the sum of the parts'.
Hash128 CombineLineages(std::vector<Hash128> lineages);
Identity Combine(std::span<const Identity> parts);

/// A pause that doubles from kFirst to kLongest with each failure, less up to half of it by chance,
/// so that receivers that failed together do not come back together.
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
  /// Each end of an attachment says something as often, ...
  static constexpr std::chrono::milliseconds kBeat{1000};
  /// ... and who has heard nothing for so long ends it.
  static constexpr std::chrono::milliseconds kSilence{3000};
  /// States of an agent that are remembered: those that it may still serve to a straggler's parts.
  static constexpr size_t kRemembered = 64;

  struct Options {
    bool follow = true;
    uint64_t seed = 0;  ///< of the jitter
  };
  Follower(std::vector<std::string> addresses, Options options);

  // Attachments.
  enum class Need : uint8_t { kNothing, kAttach, kBeat, kDetach };
  /// kDetach: it has been silent, or said something out of sequence (broken()).
  Need Needs(size_t agent, Time now) const;
  /// When some agent will need something, if nothing happens before.
  Time NextNeed() const;
  void Attaching(size_t agent, Time now);
  /// kDataLoss when events were lost. What it says is remembered in any other case.
  Status Event(size_t agent, const UpstreamEvent& event, Time now);
  void Sent(size_t agent, Time now);
  void Ended(size_t agent, const Status& why, Time now);
  bool attached(size_t agent) const { return agents_[agent].heard; }
  bool attached() const;
  /// It has said something out of sequence.
  bool broken(size_t agent) const { return agents_[agent].broken; }
  uint64_t last_event(size_t agent) const { return agents_[agent].last_event; }
  /// What a unary call or a pull's end said.
  void Learn(size_t agent, const Identity& newest);
  const Identity& newest(size_t agent) const { return agents_[agent].newest; }

  // Pulls.
  struct Target {
    Identity whole;  ///< root: the sum of those known
    bool root_known = false;
    std::vector<Identity> parts;  ///< by agent; root 0 when it passed over it unseen
  };
  struct Situation {
    Identity committed;  ///< of the whole; epoch 0: none
    bool paused = false;
    bool requested = false;  ///< somebody waits for a sync
    bool suspects = false;   ///< chunks lost their digest, or files their name
  };
  struct Choice {
    bool pull = false;
    Target target;             ///< if `pull`
    std::string why;           ///< else; empty: all is as it should be
    Time again = Time::max();  ///< not before then, if nothing happens
  };
  Choice Next(const Situation& situation, Time now) const;
  /// The newest state that all agents have under one attempt; null while there is none.
  std::optional<Target> Common() const;
  void PullEnded(const Status& status, Time now);
  std::string NewestOfEach() const;

 private:
  struct Agent {
    std::string address;
    bool attaching = false;  ///< or attached
    bool heard = false;      ///< since then
    bool broken = false;     ///< said something out of sequence
    Time heard_at{}, sent_at{}, attach_at{};
    uint64_t last_event = 0;
    Identity newest;
    std::deque<Identity> known;  ///< of newest's lineage, by rising id; the last one is newest
    Backoff backoff;
  };
  /// The agent's part of the offload that another agent's `part` is of; null: it is not known.
  const Identity* Known(const Agent& agent, const Identity& part) const;
  /// The whole that `part` belongs to.
  std::optional<Target> At(const Identity& part) const;
  StateId OldestNewest() const;

  const Options options_;
  std::vector<Agent> agents_;
  std::mt19937_64 random_;
  Backoff pull_backoff_;
  Time pull_at_{};
};

}  // namespace deltawire::receiver
