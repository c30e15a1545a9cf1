// A copy, on the GPUs where a trainer's tensors lie, of what its last offload handed over: the base
// from which the next one is diffed there, so that changes alone cross the link. Owner: one client.
// Threads: one caller. Cost: the tensors' bytes and 0.4 GB on each GPU, and on no GPU so much that
// less than an eighth of it stays free. Errors: none; what cannot be diffed goes whole, and
// Describe says why.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/identity.h"
#include "common/layout/chunks.h"
#include "common/layout/coverage.h"
#include "common/layout/diffed_chunk.h"
#include "kernels/gpu.h"

namespace deltawire {

class GpuBase {
 public:
  /// `chunks` outlives it. `digest_seed`: of the model's digests.
  GpuBase(const ChunkTable& chunks, uint64_t digest_seed);
  ~GpuBase();
  GpuBase(const GpuBase&) = delete;
  GpuBase& operator=(const GpuBase&) = delete;

  /// One offload: `version` by `attempt`. `from`: what is published, if the sender takes changes of
  /// it.
  void Begin(const std::optional<Identity>& from, uint64_t version, uint64_t attempt);

  struct Written {
    std::vector<DiffedChunk> payloads;  ///< in `place`, and of unchanged chunks
    std::vector<ByteRange> whole;       ///< of the tensor, rising: the caller's to copy
  };
  /// Makes `data`, all bytes of tensor `t` in the memory of `device`, its base, and writes to
  /// `place` (as large, in host memory) what has changed. REQUIRES: Begin; once a tensor and
  /// offload; all work on the data is complete.
  Written Write(uint32_t t, int device, Bytes data, MutableBytes place);
  /// The sender carries the tensor over from the published version.
  void Carry(uint32_t t);

  /// Says where this offload's tensors were diffed, and why some went whole; empty before Write.
  std::string Describe() const;

 private:
  /// A tensor's base, which holds the bytes that `attempt` offloaded as `version`.
  struct Slot {
    int device = 0;
    uint32_t first = 0;  // of its chunks, at the device's differ
    uint64_t version = 0, attempt = 0;
    std::vector<uint64_t> digests;
  };
  struct Device {
    std::unique_ptr<kernels::GpuDiffer> differ;
    uint32_t chunks = 0;
    std::string refused;  // why no tensor gets a base there any more
  };
  Device& DeviceOf(int device);
  /// Null: it has no base, and gets none.
  Slot* SlotOf(uint32_t t, int device);
  bool HasRoom(int device, uint64_t bytes, std::string* why) const;
  bool Diff(uint32_t t, Slot& slot, Bytes data, MutableBytes place, Written& out);
  bool Adopt(uint32_t t, Slot& slot, Bytes data);
  /// An error: the device's bases are lost, and it gets no others.
  void Drop(int device, const kernels::GpuStatus& status);
  std::vector<kernels::GpuLive> Live(uint32_t t, const Slot& slot, Bytes data) const;

  const ChunkTable& chunks_;
  const kernels::DigestKey key_;
  std::optional<Identity> from_;
  uint64_t version_ = 0, attempt_ = 0;
  std::map<int, Device> devices_;
  std::map<uint32_t, Slot> slots_;  // by tensor
  uint64_t bytes_ = 0, whole_ = 0;  // of this offload's tensors, and of what went whole
  std::string why_whole_;           // the first reason
};

}  // namespace deltawire
