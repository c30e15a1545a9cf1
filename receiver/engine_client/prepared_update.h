// One way from a state of an engine's memory to another, found and checked by
// EngineWeights::Prepare and taken by its Apply; internal to EngineWeights, which owns it. One
// thread. Cost: mappings of delta files, and what Apply keeps of chunks that it overwrites whole.
// No errors.
#pragma once

#include <optional>
#include <vector>

#include "receiver/engine_client/engine_weights.h"

namespace deltawire::engine {

struct EngineWeights::Prepared {
  UpdateInfo info;
  std::vector<DeltaFile> files;
  std::optional<HeldBuffer> buffer;        // while chunks are read from it
  std::vector<uint32_t> from_buffer;       // in rising order
  std::vector<std::vector<Bytes>> deltas;  // payloads by entry of delta_chunks, in order
  std::vector<uint32_t> delta_chunks;      // in rising order
  std::vector<uint64_t> digests_before, digests_after;
  std::vector<std::vector<std::byte>> old;  // of from_buffer, once applied
};

}  // namespace deltawire::engine
