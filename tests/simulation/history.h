// One history: a world drawn from a seed (senders, a trainer, receivers, readers, faults), a few
// virtual seconds of faults, then calm, in which all receivers must come to the newest version.
// Deterministic: a seed and the same program give the same history. Owner: the caller of
// RunHistory. Threads: one. Cost: 10 to 60 ms; memory of killed processes is never freed, so run
// histories in child processes. Errors: HistoryResult::failure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deltawire::simulation {

/// Bugs that the simulation must find, planted from outside (planted.h).
enum class Plant : uint8_t {
  kNone,
  kSkipDigest,      ///< an arriving chunk is accepted whatever its digest
  kNumbersOnly,     ///< a follower compares only (epoch, version)
  kInPlace,         ///< the buffer changes while a reader has it open
  kForgetUnknown,   ///< a chunk is not marked unknown before it changes
  kDropAttempt,     ///< parts of different attempts are combined into one version
  kEarlyCommit,     ///< a member commits what its group has not decided on
  kForgetDecision,  ///< a restarted sender does not know what its group decided
  kEndAbandoned,    ///< a sender ends pulls of what it gave up as if that had been published
};
inline constexpr Plant kPlants[] = {
    Plant::kSkipDigest,  Plant::kNumbersOnly, Plant::kInPlace,        Plant::kForgetUnknown,
    Plant::kDropAttempt, Plant::kEarlyCommit, Plant::kForgetDecision, Plant::kEndAbandoned};
std::string_view ToString(Plant plant);

struct HistoryOptions {
  uint64_t seed = 1;
  Plant plant = Plant::kNone;
  bool trace = false;
  bool readers = true;    ///< plain readers of the receivers' files
  bool zombies = true;    ///< ranks that stop, and write on after others have begun anew
  bool groups = false;    ///< every world has one sender, whose receivers are a group
  bool relays = false;    ///< every world has receivers behind others
  bool agents = false;    ///< every world has two senders, each with a part of the model
  std::string directory;  ///< on tmpfs; it is emptied
};

struct HistoryResult {
  std::string failure;  ///< empty: all went well
  uint64_t hash = 0;    ///< over all events
  uint64_t steps = 0;
  double virtual_seconds = 0;
  uint64_t publishes = 0;
  uint64_t commits = 0;
  uint64_t passes = 0;  ///< complete readings by plain readers
  uint64_t rounds = 0;  ///< of groups, that committed
  uint64_t ahead = 0;  ///< bytes that relays passed on before their commit, since they last started
  uint64_t early = 0;  ///< bytes that senders sent before their publish, since they last started
};

HistoryResult RunHistory(const HistoryOptions& options);

}  // namespace deltawire::simulation
