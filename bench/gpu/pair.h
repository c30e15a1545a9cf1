// Two versions of a half for the GPU cases, cut into chunks, and what the CPU says of them.
// Owner: the suite's main. Immutable once made, so shared by threads freely.
// Cost: both halves, pinned, and the deltas in both directions. Errors: files that do not fit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "kernels/gpu.h"

namespace deltawire::bench {

/// kOk, or what CUDA said.
Status FromGpu(const kernels::GpuStatus& status);

/// Host memory, touched and, unless the machine refuses, pinned.
class PinnedHalf {
 public:
  explicit PinnedHalf(size_t bytes);
  kernels::MutableBytes bytes() const { return {data_.get(), size_}; }
  bool pinned() const { return pin_ != nullptr; }

 private:
  std::unique_ptr<std::byte[]> data_;
  size_t size_;
  std::unique_ptr<kernels::GpuPin> pin_;
};

/// The deltas from one version to the other.
struct Deltas {
  std::vector<std::vector<std::byte>> payloads;  ///< one a chunk, empty where nothing changed
  uint64_t changed = 0;
  uint64_t bytes = 0;
};

class Pair {
 public:
  /// Weights N(0, 0.02) as bf16; `density` of them move by one or, one in 16, by up to 8.
  static std::unique_ptr<Pair> Drawn(size_t bytes, double density, uint64_t seed, ThreadPool& pool);
  /// Two raw little-endian files of equal size, elements of `width` bytes.
  static StatusOr<std::unique_ptr<Pair>> FromFiles(const std::string& old_path,
                                                   const std::string& new_path, unsigned width,
                                                   ThreadPool& pool);

  size_t size() const { return halves_[0].bytes().size(); }
  bool pinned() const { return halves_[0].pinned() && halves_[1].pinned(); }
  const kernels::DigestKey& key() const { return key_; }
  const std::vector<kernels::GpuChunk>& chunks() const { return chunks_; }
  const std::vector<uint32_t>& all() const { return all_; }
  /// Version 0 or 1.
  kernels::Bytes half(size_t version) const { return halves_[version].bytes(); }
  const std::vector<uint64_t>& digests(size_t version) const { return digests_[version]; }
  /// From `version` to the other one.
  const Deltas& deltas(size_t version) const { return deltas_[version]; }

 private:
  Pair(size_t bytes, unsigned width);
  void Describe(ThreadPool& pool);

  kernels::DigestKey key_{1};
  PinnedHalf halves_[2];
  std::vector<kernels::GpuChunk> chunks_;
  std::vector<uint32_t> all_;
  std::vector<uint64_t> digests_[2];
  Deltas deltas_[2];
};

}  // namespace deltawire::bench
