// A copy, on the GPUs where a trainer's tensors lie, of what a rank's last offload handed over: the
// base from which the next one is diffed there, so that changes alone cross the link. It takes the
// rank's bytes and 0.4 GB on each GPU, or lies in pinned host memory where less than an eighth of a
// GPU's memory would stay free. Its unit is a chunk, or the runs of its bytes that the rank writes
// among others. One thread at a time. What cannot be diffed goes whole, and Describe says why.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/identity.h"
#include "common/layout/chunks.h"
#include "common/layout/diffed_chunk.h"
#include "kernels/gpu.h"

namespace deltawire {

/// A part of a tensor in the memory of CUDA device `device`. The copy's destination offset counts
/// from the tensor's first byte; its strides are positive.
struct DevicePiece {
  uint32_t tensor = 0;
  int device = 0;
  kernels::GpuPiece piece;
};

/// Returns the parts of a copy into tensor `t` that lie outside of `diffed`, which is sorted as
/// GpuBase::Write returns it.
std::vector<kernels::StridedCopy> OutsideOf(std::span<const DiffedChunk> diffed,
                                            const ChunkTable& chunks, uint32_t t,
                                            const kernels::StridedCopy& copy,
                                            const kernels::Convert& convert);

class GpuBase {
 public:
  /// `chunks` outlives it. `digest_seed`: of the model's digests.
  GpuBase(const ChunkTable& chunks, uint64_t digest_seed);
  ~GpuBase();
  GpuBase(const GpuBase&) = delete;
  GpuBase& operator=(const GpuBase&) = delete;

  /// Begins the offload of `version` by `attempt`. `from`: the published version, if the sender
  /// takes changes of it.
  void Begin(const std::optional<Identity>& from, uint64_t version, uint64_t attempt);
  /// Makes the pieces the base, and writes changes to their places in `data`, a half's data in host
  /// memory. Returns what holds payloads, and what did not change, by rising places; all other
  /// bytes are the caller's to copy. REQUIRES: Begin; each byte once an offload; all work on the
  /// pieces is complete.
  std::vector<DiffedChunk> Write(std::span<const DevicePiece> pieces, MutableBytes data);
  /// Notes that the sender carries the tensor over from the published version.
  void Carry(uint32_t t);

  /// Describes where this offload was diffed, and why most of the rest went whole; empty before
  /// Write.
  std::string Describe() const;

 private:
  /// A chunk, or runs of bytes within one, as the pieces write it from `at` on.
  struct Span {
    DiffedChunk place;
    std::span<const kernels::GpuPiece> pieces;
    uint64_t at = 0;
  };
  /// A span's base, which holds the bytes that `attempt` offloaded as `version`.
  struct Slot {
    DiffedChunk place;
    uint32_t width = 0;  // of an element
    int device = -1;     // none
    uint32_t index = 0;  // among the device's spans
    bool on_host = false;
    uint64_t version = 0, attempt = 0, digest = 0;
  };
  struct Device {
    std::unique_ptr<kernels::GpuDiffer> differ;
    uint32_t spans = 0;  // that the differ has
    // Slots of spans that are gone, by the bytes and the width of their elements.
    std::map<std::pair<uint32_t, uint32_t>, std::vector<Slot>> idle;
    std::string full;     // why further bases lie in host memory
    std::string refused;  // why no span gets a base there any more
  };
  uint64_t PlaceOf(const Span& span) const {
    return chunks_[span.place.chunk].offset + span.place.offset;
  }
  /// Returns the span's slot on the device, or null.
  Slot* Find(const Span& span, int number);
  /// Returns the spans of tensor `t` of which the pieces have all bytes. Some write with pieces of
  /// `packed`.
  std::vector<Span> SpansOf(uint32_t t, std::span<const kernels::GpuPiece> pieces,
                            std::deque<kernels::GpuPiece>& packed) const;
  Device& DeviceOf(int number);
  /// Gives those of the spans a slot that have none on the device, as many as there is room for.
  void AddSlots(int number, std::span<const Span> spans);
  /// Gives the span an idle slot. False: there is none of its size.
  bool TakeIdle(int number, const Span& span);
  void SetSlot(const Span& span, Slot slot);
  /// Gives slots to the first ones of `left`, and removes these. An error says why some are left.
  kernels::GpuStatus AddTo(int number, kernels::GpuHome home, std::vector<const Span*>& left);
  void WriteOn(int number, std::span<const Span> spans, MutableBytes data,
               std::vector<DiffedChunk>* out);
  /// False: the device failed, and its bases are lost. REQUIRES: each span has a slot there.
  bool Diff(int number, std::span<const Span> spans, MutableBytes data,
            std::vector<DiffedChunk>* out);
  bool Adopt(int number, std::span<const Span> spans);
  std::vector<kernels::GpuLive> LiveOf(std::span<const Span> spans) const;
  void Drop(int number, const kernels::GpuStatus& status);
  bool HasPublished(const Slot& slot) const;
  void CountWhole(const std::string& why, uint64_t bytes) { whole_[why] += bytes; }

  const ChunkTable& chunks_;
  const kernels::DigestKey key_;
  std::optional<Identity> from_;
  uint64_t version_ = 0, attempt_ = 0;
  std::map<int, Device> devices_;
  std::map<uint64_t, Slot> slots_;  // by place in a half's data
  uint64_t bytes_ = 0;              // of this offload
  uint64_t on_host_ = 0;            // bytes of this offload whose base is in host memory
  std::string why_on_host_;
  std::map<std::string, uint64_t> whole_;  // bytes of this offload that went whole, by reason
};

}  // namespace deltawire
