// bf16 weights that move as AdamW moves them, for the demo, benchmarks and tests. They take 10
// bytes per parameter. One thread calls Step, with about 18 bytes of memory traffic per parameter;
// many threads may call tensor() between steps. The bits depend on options and tensors only, never
// on the thread count or instruction set.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/layout/layout.h"

namespace deltawire::synth {

/// The source of the fp32 master weights.
enum class Master : uint8_t {
  kFp32,  ///< fp32 from the first step on: pre-training, or a long run
  kGrid,  ///< fp32 that starts on bf16 values: a fine-tune's first steps
  kBf16,  ///< no master: the update is added to the bf16 weights and rounded
};

struct AdamOptions {
  uint64_t seed = 1;
  float lr = 1e-6f;
  float weight_decay = 0.01f;
  Master master = Master::kFp32;
};

/// Weights start as N(0, 0.02 s), cut at 3.46 sigma, with a factor s in [1/2, 2] per tensor; norms
/// start as 1 + N(0, 0.05). A step is w -= lr (u + weight_decay w), rounded to nearest even. u
/// stands for Adam's m / sqrt(v): an AR(1) process with coefficient beta1 = 0.9 and standard
/// deviation 0.32. Gradients with an autocorrelation of 0.36 from step to step give this deviation
/// (white ones give 0.23). All elements have the same gradient distribution, so rows that real
/// batches leave untouched (rare tokens) move here as well.
class AdamTrace {
 public:
  /// Fails with kInvalidArgument for a tensor that is not bf16, and with kResourceExhausted if
  /// memory is short.
  static StatusOr<AdamTrace> Create(std::vector<TensorMeta> tensors, const AdamOptions& options,
                                    ThreadPool& pool);

  void Step(ThreadPool& pool);

  /// Returns the bf16 bytes of tensor i. The span stays valid; its content changes with each Step.
  Bytes tensor(size_t i) const;
  const std::vector<TensorMeta>& tensors() const { return tensors_; }

  uint64_t step() const { return step_; }
  uint64_t elements() const { return elements_; }
  /// Returns the number of elements whose bf16 value the last Step changed.
  uint64_t changed() const { return changed_; }

 private:
  struct Block {  // a part of one tensor, with one random key
    uint64_t begin = 0;
    uint32_t count = 0;
    uint32_t tensor = 0;
  };

  AdamTrace() = default;
  Status Allocate();
  void Fill(ThreadPool& pool);

  AdamOptions options_;
  std::vector<TensorMeta> tensors_;
  std::vector<uint64_t> begin_;  // in elements; has tensors + 1 entries
  std::vector<Block> blocks_;
  std::unique_ptr<float[]> master_;
  std::unique_ptr<float[]> update_;
  std::unique_ptr<uint16_t[]> weights_;
  uint64_t elements_ = 0;
  uint64_t step_ = 0;
  uint64_t changed_ = 0;
};

}  // namespace deltawire::synth
