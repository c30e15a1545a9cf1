// The bytes and the work of one pull: chunks as the layout cuts them, each one's codec by the
// sender's own rule, payloads and frames, and the core-seconds of both ends. Costs time by the
// number of different chunk sizes. CutModel makes a real chunk table, and returns the layout's
// errors.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/plan/fleet.h"

namespace deltawire::plan {

struct ChunkSize {
  uint32_t bytes = 0;
  unsigned width = 1;
  double count = 0;
};

struct CutChunks {
  std::vector<ChunkSize> sizes;
  uint64_t chunks = 0;
  double bytes = 0;
  double elements = 0;
};

/// Cuts a model whose tensors all have nearly one size, by the layout's rule.
StatusOr<CutChunks> CutModel(const Model& model);

/// The serving end's coding parameters for one pull.
struct Coding {
  std::optional<kernels::Codec> codec;  ///< none: the rule of `auto`
  double link_bytes_per_s = 0;          ///< measured by earlier pulls; 0: unknown
  uint32_t encode_threads = 1, decode_threads = 1;
  bool history = false;  ///< `tight` may use past deltas
};

/// Core-seconds and bytes of one pull by one receiver, summed over its agents.
struct PullCost {
  std::array<double, kernels::kForms> chunks{}, bytes{};  ///< by form; payloads
  double changed_elements = 0;
  double payload_bytes = 0;
  double wire_bytes = 0;  ///< including frame headers
  double frames = 0;
  double fast_bytes = 0;      ///< the same deltas in `fast`: the size of staging
  double encode_seconds = 0;  ///< `tight` and `dense`, at the serving end; cached for other pulls
  double send_seconds = 0;
  double receive_seconds = 0;  ///< until a delta is staged: checksum, decode, validate
  double decode_seconds = 0;   ///< the part of it for `tight` and `dense`
  double apply_seconds = 0;
  double first_chunk_seconds = 0;  ///< for the largest chunk, before its first byte can leave
  double last_chunk_seconds = 0;   ///< and after its last byte has arrived
  bool looks_back() const;         ///< whether a codec with history was used
};

PullCost DeltaPull(const Fleet& fleet, const CutChunks& model, const Coding& coding);
PullCost FullPull(const Fleet& fleet, const CutChunks& model);

/// Returns the core-seconds of the diff that publishes a version, over all agents. `full` is for
/// the first version.
double PublishSeconds(const Fleet& fleet, const CutChunks& model, bool full);

}  // namespace deltawire::plan
