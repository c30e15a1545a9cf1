#include "common/delta/delta.h"

#include <algorithm>
#include <cstring>

#include "common/base/checksum.h"

namespace deltawire {

const ChunkDelta* Delta::Find(uint32_t chunk) const {
  const auto it = std::lower_bound(chunks_.begin(), chunks_.end(), chunk,
                                   [](const ChunkDelta& d, uint32_t c) { return d.chunk < c; });
  return it != chunks_.end() && it->chunk == chunk ? &*it : nullptr;
}

namespace {

// Merges several entries of one chunk into one full entry. REQUIRES: `chunks` is sorted by chunk.
void MergeRepeated(std::vector<ChunkDelta>& chunks) {
  size_t kept = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (kept > 0 && chunks[kept - 1].chunk == chunks[i].chunk) {
      chunks[kept - 1].full = true;
      chunks[kept - 1].payload = {};
    } else {
      chunks[kept++] = chunks[i];
    }
  }
  chunks.resize(kept);
}

}  // namespace

bool DeltaBuilder::Add(ChunkDelta entry, Bytes payload) {
  entry.full = payload.empty();
  std::byte* to = nullptr;
  if (!entry.full) {
    entry.payload_xxh3 = Xxh3(payload);
    std::lock_guard lock(mu_);
    if (payload_bytes_ + payload.size() > limit_) {
      entry.full = true;
    } else {
      if (payload.size() > room_) {
        const size_t grown = std::clamp<size_t>(slab_bytes_, kFirstSlabBytes, kMaxSlabBytes);
        const size_t slab = std::max(grown, payload.size());
        slabs_.push_back(std::make_unique_for_overwrite<std::byte[]>(slab));
        slab_bytes_ += slab;
        cursor_ = slabs_.back().get();
        room_ = slab;
      }
      to = cursor_;
      cursor_ += payload.size();
      room_ -= payload.size();
      payload_bytes_ += payload.size();
    }
  }
  if (to != nullptr) {
    std::memcpy(to, payload.data(), payload.size());
    entry.payload = Bytes(to, payload.size());
  }
  std::lock_guard lock(mu_);
  chunks_.push_back(entry);
  return !entry.full;
}

std::shared_ptr<const Delta> DeltaBuilder::Finish(StateId from, StateId to) {
  auto delta = std::shared_ptr<Delta>(new Delta);
  std::sort(chunks_.begin(), chunks_.end(),
            [](const ChunkDelta& a, const ChunkDelta& b) { return a.chunk < b.chunk; });
  MergeRepeated(chunks_);
  delta->from_ = from;
  delta->to_ = to;
  delta->chunks_ = std::move(chunks_);
  delta->chunks_.shrink_to_fit();
  delta->slabs_ = std::move(slabs_);
  delta->payload_bytes_ = payload_bytes_;
  delta->memory_bytes_ = slab_bytes_ + delta->chunks_.size() * sizeof(ChunkDelta) + sizeof(Delta);
  return delta;
}

}  // namespace deltawire
