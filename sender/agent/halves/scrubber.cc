#include "sender/agent/halves/scrubber.h"

#include <vector>

#include "common/base/log.h"
#include "common/base/trace.h"

namespace deltawire::sender {

std::chrono::nanoseconds Scrubber::CheckNext(const Published& state, uint64_t bytes_per_s) {
  return walk_.Next(model_.chunks, bytes_per_s, [&](uint32_t c) -> uint64_t {
    if (!model_.owned.contains(c)) return 0;
    Check(state, c);
    return model_.chunks[c].bytes;
  });
}

void Scrubber::Check(const Published& state, uint32_t c) {
  const Chunk& chunk = model_.chunks[c];
  const Bytes now = std::as_const(halves_).data(state.half).subspan(chunk.offset, chunk.bytes);
  bytes_ += now.size();
  if (model_.backend.digest(model_.key, now) == (*state.digests)[c]) {
    state.damaged[c] = 0;
  } else {
    MarkCorrupt(state, c);
  }
}

void Scrubber::MarkCorrupt(const Published& state, uint32_t c) {
  // Before the rebuild, so that no pull sends the chunk and no diff uses it meanwhile.
  const bool known = state.damaged[c].exchange(1) != 0;
  const bool rebuilt = Rebuild(state, c);
  const std::string& tensor = model_.layout.tensor(model_.chunks[c].tensor).name;
  if (rebuilt) {
    LogError(
        "model {}: {}: chunk {} of tensor {} had lost its digest; rebuilt from the "
        "version before (check this machine's memory) {}",
        model_.name, ToString(state.info.id()), c, tensor, ToString(TraceOf(state.info.identity)));
  } else if (!known) {
    LogError(
        "model {}: {}: chunk {} of tensor {} has lost its digest; it is not sent any "
        "more until a version in which the trainer writes that tensor (check this machine's "
        "memory) {}",
        model_.name, ToString(state.info.id()), c, tensor, ToString(TraceOf(state.info.identity)));
  }
  if (!known) ++mismatches_;
  if (rebuilt) ++repaired_;
}

void Scrubber::CountCorrupt(uint32_t c, bool whole) {
  ++mismatches_;
  LogError(
      "model {}: chunk {} of tensor {} had lost its digest when the next version was made: {} "
      "(check this machine's memory)",
      model_.name, c, model_.layout.tensor(model_.chunks[c].tensor).name,
      whole ? "that version brings it whole"
            : "carried over as it is, it is not sent until the trainer writes that tensor");
}

bool Scrubber::Rebuild(const Published& now, uint32_t c) {
  if (now.log.empty() || now.log.back()->to() != now.info.id()) return false;
  const ChunkDelta* delta = now.log.back()->Find(c);
  if (delta != nullptr && delta->full) return false;
  const Chunk& place = model_.chunks[c];
  const uint32_t other = 1 - now.half;
  const Identity before = halves_.holds(other);
  if (before.id != now.log.back()->from()) return false;
  const auto lease = halves_.Lease(other, before);
  if (lease == nullptr) return false;
  const Bytes old = std::as_const(halves_).data(other).subspan(place.offset, place.bytes);
  std::vector<std::byte> bytes(old.begin(), old.end());
  if (delta != nullptr) {
    uint64_t ignored = 0;
    const auto applied = model_.backend.decode_apply(model_.key, delta->payload, bytes, place.width,
                                                     delta->digest_before, &ignored);
    if (applied != kernels::DecodeStatus::kOk) return false;
  }
  if (model_.backend.digest(model_.key, bytes) != (*now.digests)[c]) return false;
  if (!halves_.Patch(now.half, now.info.identity, place.offset, bytes)) return false;
  now.damaged[c] = 0;
  return true;
}

}  // namespace deltawire::sender
