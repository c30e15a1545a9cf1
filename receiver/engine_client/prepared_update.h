// An update of an engine's memory from one state to another. EngineWeights, which owns it, prepares
// and applies it on one thread. It takes mappings of delta files, and this rank's bytes of chunks
// that come whole, which Apply exchanges with those in the engine's memory.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/kernels.h"
#include "receiver/engine_client/device_memory.h"
#include "receiver/engine_client/engine_weights.h"

namespace deltawire::engine {

/// Finds the places of rising positions of one box; most of them are in the run of the last one.
class Finder {
 public:
  Finder(const OrderedBox& box, std::byte* memory) : box_(box), memory_(memory) {}
  /// Returns null if the box lacks the tensor's byte `at`. REQUIRES: `at` never falls.
  std::byte* At(uint64_t at) {
    if (at >= run_.tensor_offset + run_.bytes && !done_) {
      run_ = box_.RunAt(at);
      done_ = run_.bytes == 0;
    }
    if (done_ || at < run_.tensor_offset) return nullptr;
    return memory_ + run_.storage_offset + (at - run_.tensor_offset);
  }
  /// Bytes from `at` on that stand in one piece there. REQUIRES: At(at) was the last, and not null.
  uint64_t LeftAt(uint64_t at) const { return run_.tensor_offset + run_.bytes - at; }

 private:
  const OrderedBox& box_;
  std::byte* memory_;
  Run run_;
  bool done_ = false;
};

/// The scratch memory of a thread that adds differences to the engine's memory.
struct Scratch {
  std::vector<Finder> finders;
  std::vector<uint64_t> changes;
};

/// Scratch for some threads, all of it there before the first of them writes. Any thread may call.
class Scratches {
 public:
  /// `boxes`: the most that a tensor has.
  Scratches(size_t threads, size_t boxes) : all_(threads) {
    for (Scratch& scratch : all_) {
      scratch.finders.reserve(boxes);
      scratch.changes.resize(kernels::kChangesScratchBytes / sizeof(uint64_t));
      free_.push_back(&scratch);
    }
  }
  /// Calls fn(Scratch&). REQUIRES: no more calls at a time than there are threads.
  template <typename Fn>
  void With(const Fn& fn) {
    Scratch* mine;
    {
      const std::lock_guard lock(mu_);
      mine = free_.back();
      free_.pop_back();
    }
    fn(*mine);
    const std::lock_guard lock(mu_);
    free_.push_back(mine);  // where it was before, so that nothing is allocated
  }

 private:
  std::mutex mu_;
  std::vector<Scratch> all_;
  std::vector<Scratch*> free_;
};

struct PreparedUpdate {
  UpdateInfo info;
  std::vector<DeltaFile> files;
  std::vector<uint32_t> from_buffer;       // in rising order
  std::vector<uint32_t> healed;            // of from_buffer: had drifted
  std::vector<std::vector<Bytes>> deltas;  // payloads by entry of delta_chunks, in order
  std::vector<uint32_t> delta_chunks;      // in rising order
  std::vector<uint64_t> digests_before, digests_after;
  // Memory for Apply and Rollback, which ask for none. Of from_buffer: this rank's bytes, run by
  // run; the new ones at first, and the old ones once Apply has exchanged them.
  std::vector<std::unique_ptr<std::byte[]>> other;
  std::unique_ptr<Scratches> scratches;
};

}  // namespace deltawire::engine
