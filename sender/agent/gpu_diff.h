// A model's diffs on a GPU, where the options ask for one and one is there; else there is no
// GpuDiff and the CPU does the work. Owner: the Model; the halves outlive it (they stay pinned so
// long). Threads: Diff by one at a time; counts from any. Cost: see kernels/gpu.h; pinning takes
// seconds for large halves. Errors: logged and counted; what was not diffed is the caller's to do.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/config/options.h"
#include "common/layout/chunks.h"
#include "kernels/gpu.h"

namespace deltawire::sender {

class GpuDiff {
 public:
  struct Counts {
    uint64_t publishes = 0;   ///< diffed on the GPU to the end
    uint64_t failures = 0;    ///< ended by a CUDA error, finished by the CPU
    uint64_t mismatches = 0;  ///< ended by a result that the CPU does not get; 0 or 1
    Counts& operator+=(const Counts& other) {
      publishes += other.publishes;
      failures += other.failures;
      mismatches += other.mismatches;
      return *this;
    }
  };
  /// Every chunk's result is compared with the CPU's in one of so many publishes.
  static constexpr uint32_t kCheckRounds = 16;

  /// Null when `use` is kOff, or no GPU can be used (one that fails the self-test cannot), which is
  /// logged. kAuto holds the base on the
  /// device if it has the memory. `key` and `halves` outlive it.
  static std::unique_ptr<GpuDiff> Create(const std::string& model, GpuUse use,
                                         const ChunkTable& chunks, const kernels::DigestKey& key,
                                         std::span<const Bytes> halves);

  /// GpuDiffer::Diff; false after an error: the chunks that were not handed to `encoded` remain.
  bool Diff(Bytes before, Bytes after, std::span<const uint32_t> which,
            std::span<const uint64_t> digests_before, const kernels::GpuEncoded& encoded);

  /// False once a result was wrong: then nothing more is to be diffed here.
  bool trusted() const { return mismatches_ == 0; }
  /// A result was wrong. `what` says where.
  void Distrust(const std::string& what);
  /// Which share of the chunks is to be compared in this publish; counts on.
  uint32_t NextRound() { return round_++ % kCheckRounds; }

  Counts counts() const { return {publishes_, failures_, mismatches_}; }

 private:
  GpuDiff(std::string model, std::unique_ptr<kernels::GpuDiffer> differ)
      : model_(std::move(model)), differ_(std::move(differ)) {}
  void Pin(std::span<const Bytes> halves);

  const std::string model_;
  std::vector<std::unique_ptr<kernels::GpuPin>> pins_;
  std::unique_ptr<kernels::GpuDiffer> differ_;
  std::atomic<uint64_t> publishes_{0};
  std::atomic<uint64_t> failures_{0};
  std::atomic<uint64_t> mismatches_{0};
  std::atomic<uint32_t> round_{0};
};

}  // namespace deltawire::sender
