// The result of one publish, from the publisher to statuses, events, the trainer and the tool.
#pragma once

#include <cstdint>

#include "common/base/fields.h"
#include "common/base/identity.h"
#include "common/delta/version_fields.h"

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

/// Calls f(name, field) for each field that the API has; see proto/fields.h.
template <FieldsOf<VersionInfo> T>
void ForEachField(T& info, const auto& f) {
  f("id", info.identity);
#define DW_FIELD(name) f(#name, info.name);
  DW_VERSION_FIELDS(DW_FIELD)
#undef DW_FIELD
  f("rollback", info.rollback);
  f("side_files_hash", info.side_files_hash);
}

/// The changes of one version in one tensor.
struct TensorChange {
  uint64_t changed_elements = 0;
  uint64_t delta_bytes = 0;  ///< encoded, of the chunks that are kept as deltas
  uint64_t full_bytes = 0;   ///< of the chunks that go whole
};

}  // namespace deltawire
