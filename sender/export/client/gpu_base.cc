#include "sender/export/client/gpu_base.h"

#include <algorithm>
#include <cstring>

#include "common/base/human.h"
#include "common/delta/delta.h"

namespace deltawire {
namespace {

using kernels::GpuDiffer;
using kernels::GpuLive;
using kernels::GpuStatus;

// An eighth of a GPU stays free: the trainer's allocator takes memory when it needs it.
constexpr uint64_t kFreeShare = 8;

/// Slabs no larger than a small model needs. A multiple of 16, as GpuOptions wants it.
size_t SlabBytes(const ChunkTable& chunks) {
  uint64_t bytes = 0;
  for (uint32_t c = 0; c < chunks.size(); ++c) bytes += (chunks[c].bytes + 15) / 16 * 16;
  return std::clamp<uint64_t>(bytes, kernels::kMaxChunkBytes, kernels::GpuOptions().slab_bytes);
}

/// Merges ranges that touch. REQUIRES: they are disjoint.
std::vector<ByteRange> Merged(std::vector<ByteRange> ranges) {
  std::ranges::sort(ranges, {}, &ByteRange::first);
  std::vector<ByteRange> merged;
  for (const ByteRange& r : ranges) {
    if (!merged.empty() && merged.back().last == r.first) {
      merged.back().last = r.last;
    } else {
      merged.push_back(r);
    }
  }
  return merged;
}

}  // namespace

GpuBase::GpuBase(const ChunkTable& chunks, uint64_t digest_seed)
    : chunks_(chunks), key_(digest_seed) {}
GpuBase::~GpuBase() = default;

void GpuBase::Begin(const std::optional<Identity>& from, uint64_t version, uint64_t attempt) {
  from_ = from;
  version_ = version;
  attempt_ = attempt;
  bytes_ = whole_ = 0;
  why_whole_.clear();
}

GpuBase::Device& GpuBase::DeviceOf(int number) {
  const auto [it, fresh] = devices_.try_emplace(number);
  Device& device = it->second;
  if (!fresh || !HasRoom(number, 0, &device.refused)) return device;
  GpuStatus status = kernels::GpuSelfTest(number);
  if (status.ok()) {
    kernels::GpuOptions options;
    options.mode = kernels::GpuMode::kResident;
    options.device = number;
    options.slab_bytes = SlabBytes(chunks_);
    status = GpuDiffer::Create(options, key_, {}, &device.differ);
  }
  if (!status.ok()) device.refused = status.message;
  return device;
}

bool GpuBase::HasRoom(int device, uint64_t bytes, std::string* why) const {
  uint64_t free = 0, total = 0;
  const GpuStatus status = kernels::GpuMemory(device, &free, &total);
  if (!status.ok()) {
    *why = status.message;
    return false;
  }
  if (free >= bytes && free - bytes >= total / kFreeShare) return true;
  *why = fmt::format("GPU {} has {} of its {} free, and an eighth is left to the trainer", device,
                     HumanBytes(free), HumanBytes(total));
  return false;
}

GpuBase::Slot* GpuBase::SlotOf(uint32_t t, int number) {
  Device& device = DeviceOf(number);
  const auto known = slots_.find(t);
  if (known != slots_.end() && known->second.device == number) return &known->second;
  if (known != slots_.end()) {
    // Its memory on the other device is not used any more, and stays until that one is dropped.
    slots_.erase(known);
  }
  const uint32_t first = chunks_.first_of_tensor(t), end = chunks_.end_of_tensor(t);
  std::vector<kernels::GpuChunk> added;
  uint64_t bytes = 0;
  for (uint32_t c = first; c < end; ++c) {
    added.push_back({0, chunks_[c].bytes, chunks_[c].width});
    bytes += chunks_[c].bytes;
  }
  if (!device.refused.empty() || !HasRoom(number, bytes, &device.refused)) return nullptr;
  if (const GpuStatus status = device.differ->Add(added); !status.ok()) {
    device.refused = status.message;
    return nullptr;
  }
  Slot& slot = slots_[t];
  slot.device = number;
  slot.first = std::exchange(device.chunks, device.chunks + (end - first));
  slot.digests.resize(end - first);
  return &slot;
}

std::vector<GpuLive> GpuBase::Live(uint32_t t, const Slot& slot, Bytes data) const {
  const uint32_t first = chunks_.first_of_tensor(t);
  std::vector<GpuLive> live;
  for (uint32_t i = 0; i < slot.digests.size(); ++i) {
    live.push_back(
        {slot.first + i, data.data() + (chunks_[first + i].offset - chunks_[first].offset)});
  }
  return live;
}

void GpuBase::Drop(int number, const GpuStatus& status) {
  Device& device = devices_[number];
  device.refused = status.message;
  device.differ.reset();
  std::erase_if(slots_, [&](const auto& s) { return s.second.device == number; });
}

bool GpuBase::Diff(uint32_t t, Slot& slot, Bytes data, MutableBytes place, Written& out) {
  const uint32_t first = chunks_.first_of_tensor(t);
  const auto encoded = [&](uint32_t number, const kernels::EncodeResult& found, Bytes payload) {
    const uint32_t i = number - slot.first;
    const Chunk& chunk = chunks_[first + i];
    const uint64_t at = chunk.offset - chunks_[first].offset;
    const bool sound = found.digest_before == slot.digests[i];
    // The growth is right, whatever the base has become.
    slot.digests[i] = found.digest_before + (found.digest_after - slot.digests[i]);
    if (sound && WorthSending(payload.size(), chunk.bytes)) {
      if (!payload.empty()) std::memcpy(place.data() + at, payload.data(), payload.size());
      out.payloads.push_back(
          {first + i, static_cast<uint32_t>(payload.size()), found.digest_after});
      return;
    }
    out.whole.push_back({at, at + chunk.bytes});
    if (why_whole_.empty()) {
      why_whole_ = sound ? "it changed too densely" : "a GPU's base was damaged in its memory";
    }
  };
  const GpuStatus status = devices_[slot.device].differ->DiffLive(Live(t, slot, data), encoded);
  if (status.ok()) return true;
  Drop(slot.device, status);
  return false;
}

bool GpuBase::Adopt(uint32_t t, Slot& slot, Bytes data) {
  const GpuStatus status = devices_[slot.device].differ->Adopt(Live(t, slot, data), slot.digests);
  if (!status.ok()) Drop(slot.device, status);
  return status.ok();
}

GpuBase::Written GpuBase::Write(uint32_t t, int device, Bytes data, MutableBytes place) {
  bytes_ += data.size();
  Written out;
  Slot* const slot = SlotOf(t, device);
  const bool has_base = slot != nullptr && from_ && slot->attempt == from_->attempt &&
                        slot->version == from_->id.version;
  std::string why;
  bool kept = false;
  if (has_base) {
    kept = Diff(t, *slot, data, place, out);
  } else if (slot != nullptr) {
    kept = Adopt(t, *slot, data);
    why = slot->attempt == 0 ? "it came for the first time"
          : from_            ? "the GPU has another version than the sender"
                             : "the sender takes no deltas now; see its log";
  }
  if (kept) {
    slot->version = version_;
    slot->attempt = attempt_;
  } else {
    why = devices_[device].refused;
  }
  if (!kept || !has_base) {
    out.payloads.clear();
    out.whole = {{0, data.size()}};
    if (why_whole_.empty()) why_whole_ = why;
  }
  out.whole = Merged(std::move(out.whole));
  for (const ByteRange& r : out.whole) whole_ += r.last - r.first;
  return out;
}

void GpuBase::Carry(uint32_t t) {
  const auto known = slots_.find(t);
  if (known == slots_.end() || !from_) return;
  Slot& slot = known->second;
  if (slot.attempt != from_->attempt || slot.version != from_->id.version) return;
  slot.version = version_;
  slot.attempt = attempt_;
}

std::string GpuBase::Describe() const {
  if (bytes_ == 0) return "";
  if (whole_ == 0) return "the trainer's GPU";
  return fmt::format("the trainer's GPU, except for {} of {} ({})", HumanBytes(whole_),
                     HumanBytes(bytes_), why_whole_);
}

}  // namespace deltawire
