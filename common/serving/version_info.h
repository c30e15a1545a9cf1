// Facts about one publish: the record from which status, events and the demo's table are made.
// Owner: whoever holds the value. Threads: as any value. Cost: under 200 bytes. Errors: none.
#pragma once

#include <cstdint>

#include "common/base/identity.h"

namespace deltawire {

/// Bytes are HF bytes unless said otherwise; times in seconds, wall clock in Unix nanoseconds.
struct VersionInfo {
  Identity identity;
  uint64_t model_bytes = 0;
  uint64_t delta_bytes = 0;  ///< encoded, from the version before; 0 for the first
  uint64_t full_bytes = 0;   ///< of chunks that are cheaper sent whole
  uint64_t elements = 0;
  uint64_t changed_elements = 0;
  double trainer_wait_seconds = 0;
  double offload_seconds = 0;
  double diff_seconds = 0;  ///< the part of publish_seconds that the diff takes
  double publish_seconds = 0;
  int64_t ready_unix_nanos = 0;
  int64_t published_unix_nanos = 0;
  bool rollback = false;
  uint64_t side_files_hash = 0;  ///< of the side files that belong to this version

  StateId id() const { return identity.id; }
};

/// What one version changed in one tensor.
struct TensorChange {
  uint64_t changed_elements = 0;
  uint64_t delta_bytes = 0;  ///< encoded, of the chunks that are kept as deltas
  uint64_t full_bytes = 0;   ///< of the chunks that go whole
};

}  // namespace deltawire
