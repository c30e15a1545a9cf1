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
  kSkipDigest,
  kNumbersOnly,
  kInPlace,
  kForgetUnknown,
  kDropAttempt,
  kEarlyCommit,
  kForgetDecision,
  kEndAbandoned,
  kAnyAttempt,
  kKeepName,
  kNeverAttends,
  kLateHold,
};
struct PlantedBug {
  Plant plant = Plant::kNone;
  std::string_view name, what;
};
inline constexpr PlantedBug kPlantedBugs[] = {
    {Plant::kSkipDigest, "skip-digest", "an arriving chunk is accepted whatever its digest"},
    {Plant::kNumbersOnly, "numbers-only", "a follower compares only epoch and version"},
    {Plant::kInPlace, "in-place", "the buffer changes while a reader has it open"},
    {Plant::kForgetUnknown, "forget-unknown", "a chunk is not marked unknown before it changes"},
    {Plant::kDropAttempt, "drop-attempt", "parts of two attempts are joined in one version"},
    {Plant::kEarlyCommit, "early-commit", "a member commits before its group has decided"},
    {Plant::kForgetDecision, "forget-decision", "a restarted sender forgets its group's decision"},
    {Plant::kEndAbandoned, "end-abandoned", "pulls of what was given up end as if published"},
    {Plant::kAnyAttempt, "any-attempt", "a rank joins an offload whatever its attempt or job"},
    {Plant::kKeepName, "keep-name", "weights that cannot be checked after a start keep their name"},
    {Plant::kNeverAttends, "never-attends", "a granted rank that dies unattended is waited for"},
    {Plant::kLateHold, "late-hold", "an engine may hold the directory while a commit waits"},
};

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
