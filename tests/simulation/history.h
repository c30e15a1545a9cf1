// One history: a world drawn from a seed (senders, a trainer, receivers, readers, faults), a few
// virtual seconds of trouble, then calm, in which everybody must come to the newest version.
// Deterministic: a seed and the same program give the same history. Threads: one.
// Cost: some 10 to 60 ms; memory of killed processes stays, so run histories in children.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deltawire::simulation {

/// Bugs to be found, put in from outside (planted.cc).
enum class Plant : uint8_t {
  kNone,
  kSkipDigest,     ///< a chunk that arrives is taken whatever its digest
  kNumbersOnly,    ///< a follower compares (epoch, version) and no more
  kInPlace,        ///< the buffer is changed while a reader has it
  kForgetUnknown,  ///< a chunk is not withdrawn before it is changed
  kDropAttempt,    ///< parts of different attempts are taken for one version
};
inline constexpr Plant kPlants[] = {Plant::kSkipDigest, Plant::kNumbersOnly, Plant::kInPlace,
                                    Plant::kForgetUnknown, Plant::kDropAttempt};
std::string_view ToString(Plant plant);

struct HistoryOptions {
  uint64_t seed = 1;
  Plant plant = Plant::kNone;
  bool trace = false;
  bool readers = true;    ///< plain ones, beside receivers
  bool zombies = true;    ///< ranks that stop, and write on when others have begun anew
  std::string directory;  ///< on tmpfs, emptied
};

struct HistoryResult {
  std::string failure;  ///< empty: all went well
  uint64_t hash = 0;    ///< of everything that happened
  uint64_t steps = 0;
  double virtual_seconds = 0;
  uint64_t publishes = 0;
  uint64_t commits = 0;
  uint64_t passes = 0;  ///< of plain readers, whole ones
};

HistoryResult RunHistory(const HistoryOptions& options);

}  // namespace deltawire::simulation
