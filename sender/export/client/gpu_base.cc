#include "sender/export/client/gpu_base.h"

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <utility>

#include "common/base/human.h"
#include "common/base/machine.h"
#include "common/delta/delta.h"
#include "kernels/place_pieces.h"
#include "sender/export/client/written_bytes.h"

namespace deltawire {
namespace {

using kernels::GpuDiffer;
using kernels::GpuError;
using kernels::GpuHome;
using kernels::GpuLive;
using kernels::GpuPiece;
using kernels::GpuStatus;

// An eighth of a GPU stays free, since the trainer's allocator takes memory when it needs it. What
// every diff needs on the GPU, also with a base in host memory, may take most of that.
constexpr uint64_t kFreeShare = 8, kFreeShareOfWork = 32;

/// Slabs no larger than a small model needs. A multiple of 16, as GpuOptions wants it.
size_t SlabBytes(const ChunkTable& chunks) {
  uint64_t bytes = 0;
  for (uint32_t c = 0; c < chunks.size(); ++c) bytes += (chunks[c].bytes + 15) / 16 * 16;
  return std::clamp<uint64_t>(bytes, kernels::kMaxChunkBytes, kernels::GpuOptions().slab_bytes);
}

/// Sets `room` to the free bytes of a GPU beyond a share of its memory.
GpuStatus DeviceRoom(int number, uint64_t share, uint64_t* room) {
  uint64_t free = 0, total = 0;
  if (GpuStatus status = kernels::GpuMemory(number, &free, &total); !status.ok()) return status;
  *room = free - std::min(free, total / share);
  return {};
}

GpuStatus RoomForWork(int number, uint64_t needed) {
  uint64_t room = 0;
  if (GpuStatus status = DeviceRoom(number, kFreeShareOfWork, &room); !status.ok()) return status;
  if (room >= needed) return {};
  return {GpuError::kMemory, fmt::format("GPU {} has {} to spare, and diffs take {}", number,
                                         HumanBytes(room), HumanBytes(needed))};
}

uint64_t OffsetInTensor(const ChunkTable& chunks, uint32_t c) {
  return chunks[c].offset - chunks[chunks.first_of_tensor(chunks[c].tensor)].offset;
}

}  // namespace

std::vector<kernels::StridedCopy> OutsideOf(std::span<const DiffedChunk> diffed,
                                            const ChunkTable& chunks, uint32_t t,
                                            const kernels::StridedCopy& copy,
                                            const kernels::Convert& convert) {
  std::vector<kernels::StridedCopy> outside;
  uint64_t at = 0;
  const auto add = [&](uint64_t end) {
    if (at >= end) return;
    const auto clips = kernels::ClipCopy(copy, convert, at, end);
    outside.insert(outside.end(), clips.begin(), clips.end());
  };
  auto next = std::ranges::lower_bound(diffed, chunks.first_of_tensor(t), {}, &DiffedChunk::chunk);
  for (; next != diffed.end() && next->chunk < chunks.end_of_tensor(t); ++next) {
    const uint64_t begin = OffsetInTensor(chunks, next->chunk), first = begin + next->offset;
    // Several runs are of one copy, which has nothing else between them.
    if (next->run != 0 && kernels::ClipCopy(copy, convert, first, first + next->run).empty()) {
      continue;
    }
    add(first);
    at = std::max(at, begin + next->end());
  }
  add(UINT64_MAX >> 1);
  return outside;
}

GpuBase::GpuBase(const ChunkTable& chunks, uint64_t digest_seed)
    : chunks_(chunks), key_(digest_seed) {}
GpuBase::~GpuBase() = default;

void GpuBase::Begin(const std::optional<Identity>& from, uint64_t version, uint64_t attempt) {
  from_ = from;
  version_ = version;
  attempt_ = attempt;
  bytes_ = on_host_ = 0;
  whole_.clear();
}

GpuBase::Device& GpuBase::DeviceOf(int number) {
  const auto [it, fresh] = devices_.try_emplace(number);
  Device& device = it->second;
  if (!fresh) return device;
  kernels::GpuOptions options;
  options.mode = kernels::GpuMode::kResident;
  options.device = number;
  options.slab_bytes = SlabBytes(chunks_);
  GpuStatus status = RoomForWork(number, 4 * options.slabs * options.slab_bytes);
  if (status.ok()) status = kernels::GpuSelfTest(number);
  if (status.ok()) status = GpuDiffer::Create(options, key_, {}, &device.differ);
  if (!status.ok()) device.refused = status.message;
  return device;
}

GpuBase::Slot* GpuBase::Find(const Span& span, int number) {
  const auto found = slots_.find(PlaceOf(span));
  if (found == slots_.end()) return nullptr;
  Slot& slot = found->second;
  const DiffedChunk &a = slot.place, &b = span.place;
  const bool same = a.length == b.length && a.run == b.run && a.step == b.step;
  return slot.device == number && same ? &slot : nullptr;
}

std::vector<GpuBase::Span> GpuBase::SpansOf(uint32_t t, std::span<const GpuPiece> pieces,
                                            std::deque<GpuPiece>& packed) const {
  const uint32_t first = chunks_.first_of_tensor(t);
  std::vector<uint64_t> bytes(chunks_.end_of_tensor(t) - first);
  for (const GpuPiece& piece : pieces) {
    for (const WrittenBytes& w : CountWrittenBytes(chunks_, t, Destination::Of(piece.copy))) {
      bytes[w.chunk - first] += w.bytes;
    }
  }
  std::vector<Span> spans;
  for (uint32_t c = first; c < chunks_.end_of_tensor(t); ++c) {
    if (bytes[c - first] == 0) continue;
    const uint64_t begin = OffsetInTensor(chunks_, c);
    if (bytes[c - first] == chunks_[c].bytes) {
      spans.push_back({{.chunk = c, .length = chunks_[c].bytes}, pieces, begin});
      continue;
    }
    // Other ranks have a part of the chunk: find the runs of this one.
    std::map<uint64_t, uint64_t> runs;  // the bytes at an offset in the chunk
    for (const GpuPiece& piece : pieces) {
      for (const auto& clip :
           kernels::ClipCopy(piece.copy, piece.convert, begin, begin + chunks_[c].bytes)) {
        const Destination to = Destination::Of(clip);  // adjacent rows are one run
        if (to.dims.empty()) runs[to.offset - begin] = to.run_bytes;
        if (to.dims.size() != 1 || clip.dims != 1) continue;
        // Columns: behind one another they are a chunk of their own.
        GpuPiece& columns = packed.emplace_back(piece);
        columns.copy = clip;
        columns.copy.dst_offset = 0;
        columns.copy.dst_strides[0] = static_cast<int64_t>(to.run_bytes);
        const auto run = static_cast<uint32_t>(to.run_bytes);
        spans.push_back({{.chunk = c,
                          .offset = static_cast<uint32_t>(to.offset - begin),
                          .length = static_cast<uint32_t>(to.dims[0].count) * run,
                          .run = run,
                          .step = static_cast<uint32_t>(to.dims[0].stride)},
                         {&columns, 1},
                         0});
      }
    }
    for (auto run = runs.begin(); run != runs.end();) {
      const uint64_t offset = run->first;
      uint64_t end = offset;
      for (; run != runs.end() && run->first == end; ++run) end += run->second;
      spans.push_back({{.chunk = c,
                        .offset = static_cast<uint32_t>(offset),
                        .length = static_cast<uint32_t>(end - offset)},
                       pieces,
                       begin + offset});
    }
  }
  return spans;
}

void GpuBase::AddSlots(int number, std::span<const Span> spans) {
  Device& device = devices_[number];
  std::vector<const Span*> left;
  for (const Span& span : spans) {
    if (Find(span, number) == nullptr && !TakeIdle(number, span)) left.push_back(&span);
  }
  if (!left.empty() && device.full.empty()) {
    const GpuStatus status = AddTo(number, GpuHome::kDevice, left);
    if (!status.ok()) device.full = status.message;
    if (!status.ok() && status.error != GpuError::kMemory) device.refused = status.message;
  }
  if (!left.empty() && device.refused.empty()) {
    const GpuStatus status = AddTo(number, GpuHome::kHost, left);
    if (!status.ok()) device.refused = device.full + ", and " + status.message;
  }
}

bool GpuBase::TakeIdle(int number, const Span& span) {
  auto& idle = devices_[number].idle;
  const auto found = idle.find({span.place.length, chunks_[span.place.chunk].width});
  if (found == idle.end()) return false;
  const Slot slot = found->second.back();
  found->second.pop_back();
  if (found->second.empty()) idle.erase(found);
  SetSlot(span, slot);
  return true;
}

void GpuBase::SetSlot(const Span& span, Slot slot) {
  slot.version = slot.attempt = slot.digest = 0;
  Slot& place = slots_[PlaceOf(span)];
  // A base on another device, or of other bytes there, makes room for one of its size.
  if (place.device >= 0) {
    devices_[place.device].idle[{place.place.length, place.width}].push_back(place);
  }
  slot.place = span.place;
  place = slot;
}

GpuStatus GpuBase::AddTo(int number, GpuHome home, std::vector<const Span*>& left) {
  uint64_t room = AvailableMemory().value_or(UINT64_MAX) / 2;
  if (home == GpuHome::kDevice) {
    if (GpuStatus status = DeviceRoom(number, kFreeShare, &room); !status.ok()) return status;
  }
  std::vector<kernels::GpuChunk> added;
  uint64_t bytes = 0;
  for (const Span* const span : left) {
    if (bytes + span->place.length > room) break;
    added.push_back(
        {bytes, span->place.length, chunks_[span->place.chunk].width});  // adjacent: one copy each
    bytes += span->place.length;
  }
  GpuStatus status;
  if (added.size() < left.size()) {
    const std::string spare = HumanBytes(room);
    status = {GpuError::kMemory,
              home == GpuHome::kHost
                  ? fmt::format("this machine has {} to spare, and as much stays free", spare)
                  : fmt::format("GPU {} has {} to spare, and an eighth is left to the trainer",
                                number, spare)};
  }
  if (added.empty()) return status;
  Device& device = devices_[number];
  if (GpuStatus made = device.differ->Add(added, home); !made.ok()) return made;
  for (size_t i = 0; i < added.size(); ++i) {
    SetSlot(*left[i], {.place = left[i]->place,
                       .width = added[i].width,
                       .device = number,
                       .index = device.spans++,
                       .on_host = home == GpuHome::kHost});
  }
  left.erase(left.begin(), left.begin() + static_cast<ptrdiff_t>(added.size()));
  return status;
}

void GpuBase::Drop(int number, const GpuStatus& status) {
  Device& device = devices_[number];
  device.refused = status.message;
  device.differ.reset();
  device.idle.clear();
  std::erase_if(slots_, [&](const auto& s) { return s.second.device == number; });
}

bool GpuBase::HasPublished(const Slot& slot) const {
  return from_ && slot.attempt == from_->attempt && slot.version == from_->id.version;
}

std::vector<GpuLive> GpuBase::LiveOf(std::span<const Span> spans) const {
  std::vector<GpuLive> live;
  for (const Span& span : spans) {
    live.push_back({slots_.at(PlaceOf(span)).index, span.pieces, span.at});
  }
  return live;
}

bool GpuBase::Diff(int number, std::span<const Span> spans, MutableBytes data,
                   std::vector<DiffedChunk>* out) {
  const std::vector<GpuLive> live = LiveOf(spans);
  std::unordered_map<uint32_t, const Span*> by_index;
  for (size_t i = 0; i < live.size(); ++i) by_index[live[i].chunk] = &spans[i];
  const auto encoded = [&](uint32_t index, const kernels::EncodeResult& found, Bytes payload) {
    const Span& span = *by_index.at(index);
    Slot& slot = slots_.at(PlaceOf(span));
    const bool sound = found.digest_before == slot.digest;
    // The growth is right, whatever the base has become.
    slot.digest = found.digest_before + (found.digest_after - slot.digest);
    if (sound && WorthSending(payload.size(), span.place.length)) {
      const Chunk& chunk = chunks_[span.place.chunk];
      ScatterRuns(span.place, payload, data.subspan(chunk.offset, chunk.bytes));
      DiffedChunk& place = out->emplace_back(span.place);
      place.bytes = static_cast<uint32_t>(payload.size());
      place.digest_after = found.digest_after;
      return;
    }
    CountWhole(sound ? "it changed too densely" : "a GPU's base was damaged in its memory",
               span.place.length);
  };
  const GpuStatus status = devices_[number].differ->DiffLive(live, encoded);
  if (status.ok()) return true;
  Drop(number, status);
  return false;
}

bool GpuBase::Adopt(int number, std::span<const Span> spans) {
  std::vector<uint64_t> digests(spans.size());
  const GpuStatus status = devices_[number].differ->Adopt(LiveOf(spans), digests);
  if (!status.ok()) {
    Drop(number, status);
    return false;
  }
  for (size_t i = 0; i < spans.size(); ++i) {
    Slot& slot = slots_.at(PlaceOf(spans[i]));
    CountWhole(slot.attempt == 0 ? "it came for the first time"
               : from_           ? "the GPU has another version than the sender"
                                 : "the sender takes no deltas now; see its log",
               spans[i].place.length);
    slot.digest = digests[i];
  }
  return true;
}

void GpuBase::WriteOn(int number, std::span<const Span> spans, MutableBytes data,
                      std::vector<DiffedChunk>* out) {
  Device& device = DeviceOf(number);
  if (device.refused.empty()) AddSlots(number, spans);
  std::vector<Span> based, fresh;
  uint64_t kept_bytes = 0, on_host = 0;
  for (const Span& span : spans) {
    const Slot* const slot = Find(span, number);
    if (slot == nullptr) {
      CountWhole(device.refused, span.place.length);
      continue;
    }
    kept_bytes += span.place.length;
    if (slot->on_host) on_host += span.place.length;
    (HasPublished(*slot) ? based : fresh).push_back(span);
  }
  const auto whole = whole_;
  std::vector<DiffedChunk> diffed;
  if ((!based.empty() && !Diff(number, based, data, &diffed)) ||
      (!fresh.empty() && !Adopt(number, fresh))) {
    whole_ = whole;
    return CountWhole(device.refused, kept_bytes);
  }
  on_host_ += on_host;
  if (on_host > 0) why_on_host_ = device.full;
  for (const std::vector<Span>* const kept : {&based, &fresh}) {
    for (const Span& span : *kept) {
      Slot& slot = slots_.at(PlaceOf(span));
      slot.version = version_;
      slot.attempt = attempt_;
    }
  }
  out->insert(out->end(), diffed.begin(), diffed.end());
}

std::vector<DiffedChunk> GpuBase::Write(std::span<const DevicePiece> pieces, MutableBytes data) {
  std::map<std::pair<uint32_t, int>, std::vector<GpuPiece>> parts;  // by tensor and device
  uint64_t scattered = 0;                                           // bytes that lie in no span
  for (const DevicePiece& p : pieces) {
    parts[{p.tensor, p.device}].push_back(p.piece);
    scattered += kernels::CopiedBytes(p.piece.copy);
  }
  bytes_ += scattered;
  std::deque<GpuPiece> packed;
  std::map<int, std::vector<Span>> spans;
  for (const auto& [place, its] : parts) {
    for (const Span& span : SpansOf(place.first, its, packed)) {
      spans[place.second].push_back(span);
      scattered -= span.place.length;
    }
  }
  if (scattered > 0) CountWhole("other ranks write elements between these", scattered);
  std::vector<DiffedChunk> diffed;
  for (const auto& [number, its] : spans) WriteOn(number, its, data, &diffed);
  std::ranges::sort(diffed, {}, [](const DiffedChunk& d) { return std::pair(d.chunk, d.offset); });
  return diffed;
}

void GpuBase::Carry(uint32_t t) {
  const uint32_t first = chunks_.first_of_tensor(t), end = chunks_.end_of_tensor(t);
  if (first == end) return;
  const uint64_t last = chunks_[end - 1].offset + chunks_[end - 1].bytes;
  for (auto it = slots_.lower_bound(chunks_[first].offset); it != slots_.end() && it->first < last;
       ++it) {
    if (!HasPublished(it->second)) continue;
    it->second.version = version_;
    it->second.attempt = attempt_;
  }
}

std::string GpuBase::Describe() const {
  if (bytes_ == 0) return "";
  std::string where = "the trainer's GPU";
  if (on_host_ > 0) {
    where += fmt::format(", with the base of {} in host memory ({})", HumanBytes(on_host_),
                         why_on_host_);
  }
  if (whole_.empty()) return where;
  uint64_t bytes = 0;
  for (const auto& [why, its] : whole_) bytes += its;
  const auto& most = *std::ranges::max_element(whole_, {}, [](const auto& w) { return w.second; });
  return where + fmt::format(", except for {} of {} ({})", HumanBytes(bytes), HumanBytes(bytes_),
                             most.first);
}

}  // namespace deltawire
