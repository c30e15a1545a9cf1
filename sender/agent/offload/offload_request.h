// A rank's request to write a part of a version, and the offload that it joins by that.
#pragma once

#include <cstdint>
#include <string>

namespace deltawire::sender {

struct OffloadRequest {
  uint64_t version = 0;
  uint32_t rank = 0;
  uint32_t world = 1;
  uint64_t attempt = 0;   ///< 0: drawn by the agent, or that of the job's earlier ranks
  std::string publisher;  ///< the rank's process, for messages; empty: unknown
  /// A random number of the trainer's client; 0: none, so it is never recognized.
  uint64_t client = 0;
  /// A text that only the ranks of one start of a job share; empty: none. Ranks without an attempt
  /// need it to join one another.
  std::string job;
  /// Allows the published version's number, since its files have changed.
  bool again = false;
};

struct OffloadName {
  uint64_t version = 0;  ///< 0: no offload
  uint64_t lease = 0;    ///< 0: no offload, or a rollback
  uint64_t attempt = 0;
  std::string job;
  uint32_t world = 1;

  /// Whether the request is for this offload.
  bool Matches(const OffloadRequest& r) const {
    const bool same = r.attempt == 0 ? r.job == job && !r.job.empty() : r.attempt == attempt;
    return version == r.version && world == r.world && same;
  }
};

}  // namespace deltawire::sender
