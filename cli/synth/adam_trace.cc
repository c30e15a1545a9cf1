#include "cli/synth/adam_trace.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <new>

// Compiles a loop once per instruction set. The program chooses one at load time. Sanitizers do not
// work with the resolver functions that choose.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DW_PER_ISA __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))
#else
#define DW_PER_ISA
#endif

namespace deltawire::synth {
namespace {

constexpr uint32_t kBlockElements = 64 * 1024;
constexpr float kBeta1 = 0.9f;
constexpr float kUpdateSigma = 0.32f;
constexpr float kWeightSigma = 0.02f;
constexpr float kNormSigma = 0.05f;
// Standard deviations of sums of four uniforms over 2^8 and 2^16 values.
constexpr float kBytesSigma = 147.7995f;
constexpr float kHalvesSigma = 37837.23f;

struct Key {
  uint32_t a = 0;
  uint32_t b = 0;
};

uint64_t Mix64(uint64_t x) {  // the finalizer of splitmix64
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

/// Returns a distinct key for every (seed, step, block, stream).
Key MakeKey(uint64_t seed, uint64_t step, uint64_t block, uint64_t stream) {
  const uint64_t k = Mix64(Mix64(Mix64(seed) ^ step) ^ (block << 4 | stream));
  return {static_cast<uint32_t>(k), static_cast<uint32_t>(k >> 32)};
}

/// Returns 32 random bits for element i. It uses only 32-bit operations, so that it vectorizes.
inline uint32_t Hash(uint32_t i, Key key) {
  uint32_t x = i ^ key.a;
  x ^= x >> 16;
  x *= 0x7FEB352D;
  x += key.b;
  x ^= x >> 15;
  x *= 0x846CA68B;
  return x ^ (x >> 16);
}

/// Returns the sum of the hash's four bytes: nearly normal, mean 0, standard deviation kBytesSigma.
inline float CoarseNormal(uint32_t h) {
  const uint32_t pairs = (h & 0x00FF00FF) + ((h >> 8) & 0x00FF00FF);
  return static_cast<float>(static_cast<int32_t>((pairs & 0xFFFF) + (pairs >> 16)) - 510);
}

/// Returns the same with standard deviation kHalvesSigma and steps of 2^-16, so that tiny weights
/// get distinct mantissas.
inline float FineNormal(uint32_t h1, uint32_t h2, uint32_t h3) {
  const uint32_t sum = (h1 & 0xFFFF) + (h1 >> 16) + (h2 & 0xFFFF) + (h2 >> 16);
  return static_cast<float>(static_cast<int32_t>(sum) - 131070) +
         static_cast<float>(static_cast<int32_t>(h3 >> 16) - 32768) * 0x1p-16f;
}

/// Rounds to nearest even. REQUIRES: finite.
inline uint16_t ToBf16(float f) {
  const auto bits = std::bit_cast<uint32_t>(f);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float FromBf16(uint16_t b) { return std::bit_cast<float>(uint32_t{b} << 16); }

DW_PER_ISA
void FillBlock(float* __restrict w, float* __restrict u, uint16_t* __restrict out, uint32_t n,
               Key k1, Key k2, Key k3, Key ku, float mean, float scale, bool on_grid) {
  constexpr float kUpdateScale = kUpdateSigma / kBytesSigma;
  for (uint32_t i = 0; i < n; ++i) {
    const float value = mean + scale * FineNormal(Hash(i, k1), Hash(i, k2), Hash(i, k3));
    const uint16_t rounded = ToBf16(value);
    out[i] = rounded;
    w[i] = on_grid ? FromBf16(rounded) : value;
    u[i] = kUpdateScale * CoarseNormal(Hash(i, ku));
  }
}

DW_PER_ISA
uint32_t StepBlock(float* __restrict w, float* __restrict u, uint16_t* __restrict out, uint32_t n,
                   Key key, float noise_scale, float lr, float keep, bool to_bf16) {
  uint32_t changed = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const float update = kBeta1 * u[i] + noise_scale * CoarseNormal(Hash(i, key));
    const float value = keep * w[i] - lr * update;
    const uint16_t rounded = ToBf16(value);
    changed += static_cast<uint32_t>(rounded != out[i]);
    u[i] = update;
    w[i] = to_bf16 ? FromBf16(rounded) : value;
    out[i] = rounded;
  }
  return changed;
}

bool IsNorm(std::string_view name) { return name.find("norm") != std::string_view::npos; }

}  // namespace

StatusOr<AdamTrace> AdamTrace::Create(std::vector<TensorMeta> tensors, const AdamOptions& options,
                                      ThreadPool& pool) {
  AdamTrace t;
  t.options_ = options;
  t.tensors_ = std::move(tensors);
  t.begin_.push_back(0);
  for (size_t i = 0; i < t.tensors_.size(); ++i) {
    const TensorMeta& meta = t.tensors_[i];
    if (meta.dtype != DType::kBF16) {
      return Errorf(StatusCode::kInvalidArgument,
                    "tensor {} is not bf16: the synthetic trainer makes bf16 only", meta.name);
    }
    uint64_t n = 1;
    for (const uint64_t d : meta.shape) n *= d;
    for (uint64_t at = 0; at < n; at += kBlockElements) {
      const uint64_t count = std::min<uint64_t>(kBlockElements, n - at);
      t.blocks_.push_back(
          {t.elements_ + at, static_cast<uint32_t>(count), static_cast<uint32_t>(i)});
    }
    t.elements_ += n;
    t.begin_.push_back(t.elements_);
  }
  DW_RETURN_IF_ERROR(t.Allocate());
  t.Fill(pool);
  return t;
}

Status AdamTrace::Allocate() {
  // The memory is not zeroed here, so that Fill touches the pages first, from all threads.
  master_.reset(new (std::nothrow) float[elements_]);
  update_.reset(new (std::nothrow) float[elements_]);
  weights_.reset(new (std::nothrow) uint16_t[elements_]);
  if (master_ != nullptr && update_ != nullptr && weights_ != nullptr) return absl::OkStatus();
  return Errorf(StatusCode::kResourceExhausted,
                "no memory for {} parameters at 10 bytes each: choose a smaller model", elements_);
}

void AdamTrace::Fill(ThreadPool& pool) {
  pool.ParallelFor(blocks_.size(), [this](size_t b) {
    const Block& block = blocks_[b];
    const bool norm = IsNorm(tensors_[block.tensor].name);
    // A table, because exp2 of a random number may give different bits on different machines.
    constexpr float kFactors[] = {0.5f, 0.625f, 0.75f, 0.875f, 1.0f, 1.25f, 1.5f, 2.0f};
    const float factor = kFactors[Mix64(options_.seed ^ Mix64(block.tensor)) % std::size(kFactors)];
    const float sigma = norm ? kNormSigma : kWeightSigma * factor;
    const auto key = [&](uint64_t stream) { return MakeKey(options_.seed, 0, b, stream); };
    FillBlock(&master_[block.begin], &update_[block.begin], &weights_[block.begin], block.count,
              key(0), key(1), key(2), key(3), norm ? 1.0f : 0.0f, sigma / kHalvesSigma,
              options_.master != Master::kFp32);
  });
}

void AdamTrace::Step(ThreadPool& pool) {
  ++step_;
  const float noise_scale = std::sqrt(1 - kBeta1 * kBeta1) * kUpdateSigma / kBytesSigma;
  const float keep = 1 - options_.lr * options_.weight_decay;
  std::atomic<uint64_t> changed = 0;
  pool.ParallelFor(blocks_.size(), [&](size_t b) {
    const Block& block = blocks_[b];
    changed += StepBlock(&master_[block.begin], &update_[block.begin], &weights_[block.begin],
                         block.count, MakeKey(options_.seed, step_, b, 0), noise_scale, options_.lr,
                         keep, options_.master == Master::kBf16);
  });
  changed_ = changed;
}

Bytes AdamTrace::tensor(size_t i) const {
  return std::as_bytes(std::span(weights_.get() + begin_[i], begin_[i + 1] - begin_[i]));
}

}  // namespace deltawire::synth
