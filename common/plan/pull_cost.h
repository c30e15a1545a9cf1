// What one pull moves and computes: chunks as the layout cuts them, the codec that the sender's own
// rule picks for each, payloads and frames, and the core-seconds of both ends. Pure functions.
// Cost: by the number of different chunk sizes; CutModel makes a real chunk table. Errors:
// CutModel's are the layout's.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/plan/fleet.h"

namespace deltawire::plan {

/// Chunks of one size.
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

/// The model as so many tensors of nearly one size, cut by the layout's rule.
StatusOr<CutChunks> CutModel(const Model& model);

/// How the serving end codes for one pull.
struct Coding {
  std::optional<kernels::Codec> codec;  ///< none: the rule of `auto`
  double link_bytes_per_s = 0;          ///< as the pulls before measured it; 0: not known
  uint32_t encode_threads = 1, decode_threads = 1;
  bool history = false;  ///< `tight` looks back to past deltas
};

/// Core-seconds and bytes of one pull by one receiver, of all its agents.
struct PullCost {
  std::array<double, kernels::kForms> chunks{}, bytes{};  ///< by form; payloads
  double changed_elements = 0;
  double payload_bytes = 0;
  double wire_bytes = 0;  ///< with the frames' headers
  double frames = 0;
  double fast_bytes = 0;      ///< of the same deltas in `fast`: what staging holds
  double encode_seconds = 0;  ///< `tight` and `dense`, at the serving end; kept for others
  double send_seconds = 0;
  double receive_seconds = 0;  ///< until a delta is staged: checksum, decode, validate
  double decode_seconds = 0;   ///< of these, `tight` and `dense`
  double apply_seconds = 0;
  double first_chunk_seconds = 0;  ///< of the largest chunk, before its first byte can leave
  double last_chunk_seconds = 0;   ///< and after its last one came
  bool looks_back() const;         ///< whether a codec that wants history was used
};

PullCost DeltaPull(const Fleet& fleet, const CutChunks& model, const Coding& coding);
PullCost FullPull(const Fleet& fleet, const CutChunks& model);

/// Core-seconds of the diff that publishes a version, of all agents together. `full`: the first
/// one.
double PublishSeconds(const Fleet& fleet, const CutChunks& model, bool full);

}  // namespace deltawire::plan
