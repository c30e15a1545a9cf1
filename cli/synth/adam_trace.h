// bf16 weights that move as AdamW moves them: the demo's trainer, for benchmarks and tests, too.
// Owns 10 bytes per parameter. Step is one thread's; tensor() may be read by many between steps.
// Bits depend on options and tensors only, never on thread count or instruction set.
// Cost of a Step: about 18 bytes of memory traffic per parameter. Errors: Create only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/layout/layout.h"

namespace deltawire::synth {

/// Where the fp32 master weights come from, as in a real run.
enum class Master : uint8_t {
  kFp32,  ///< fp32 from the first step on: pre-training, or a long run
  kGrid,  ///< fp32 that starts on bf16 values: a fine-tune's first steps
  kBf16,  ///< none: the update is added to the bf16 weights and rounded
};

struct AdamOptions {
  uint64_t seed = 1;
  float lr = 1e-6f;
  float weight_decay = 0.01f;
  Master master = Master::kFp32;
};

/// Weights start as N(0, 0.02 s), cut at 3.46 sigma, with a factor s in [1/2, 2] per tensor; those
/// of norms as 1 + N(0, 0.05). A step is w -= lr (u + weight_decay w), rounded to nearest even.
/// u stands for Adam's m / sqrt(v): an AR(1) process with coefficient beta1 = 0.9 and standard
/// deviation 0.32, which is what gradients with an autocorrelation of 0.36 from step to step give
/// (white ones give 0.23). Its gradients are the same in distribution for every element, so rows
/// that real batches leave untouched (rare tokens) move here as well.
class AdamTrace {
 public:
  /// kInvalidArgument for a tensor that is not bf16, kResourceExhausted when memory is short.
  static StatusOr<AdamTrace> Create(std::vector<TensorMeta> tensors, const AdamOptions& options,
                                    ThreadPool& pool);

  /// Advances all weights by one optimizer step.
  void Step(ThreadPool& pool);

  /// bf16 bytes of tensor i; the span stays valid, its content changes with each Step.
  Bytes tensor(size_t i) const;
  const std::vector<TensorMeta>& tensors() const { return tensors_; }

  uint64_t step() const { return step_; }
  uint64_t elements() const { return elements_; }
  /// Elements whose bf16 value the last Step changed.
  uint64_t changed() const { return changed_; }

 private:
  struct Block {  // of one tensor: the unit of work and of random keys
    uint64_t begin = 0;
    uint32_t count = 0;
    uint32_t tensor = 0;
  };

  AdamTrace() = default;
  Status Allocate();
  void Fill(ThreadPool& pool);

  AdamOptions options_;
  std::vector<TensorMeta> tensors_;
  std::vector<uint64_t> begin_;  // tensors + 1, in elements
  std::vector<Block> blocks_;
  std::unique_ptr<float[]> master_;
  std::unique_ptr<float[]> update_;
  std::unique_ptr<uint16_t[]> weights_;
  uint64_t elements_ = 0;
  uint64_t step_ = 0;
  uint64_t changed_ = 0;
};

}  // namespace deltawire::synth
