#include "common/delta/coder_rates.h"

#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include "common/delta/dense.h"

namespace deltawire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kShare = 0.1;  // of a new value in the average

void Update(std::atomic<double>& average, double value, bool first) {
  double old = average.load(std::memory_order_relaxed);
  double next = 0;
  do {
    next = first && old == 0 ? value : old + kShare * (value - old);
  } while (!average.compare_exchange_weak(old, next, std::memory_order_relaxed));
}

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

void CoderRate::Add(uint64_t chunk_bytes, double seconds) {
  nanos_ += static_cast<uint64_t>(seconds * 1e9);
  // The last chunk of a tensor may be a few bytes: its time is all overhead.
  constexpr uint64_t kTelling = 64 << 10;
  if (chunk_bytes < kTelling) return;
  Update(seconds_per_byte_, seconds / static_cast<double>(chunk_bytes), true);
}

double CoderRate::bytes_per_s() const {
  const double s = seconds_per_byte_;
  return s > 0 ? 1 / s : 0;
}

double CoderRate::total_seconds() const { return 1e-9 * static_cast<double>(nanos_.load()); }

void CoderRates::Average(std::atomic<double>& ratio, size_t fast, size_t other) {
  if (fast == 0) return;
  Update(ratio, static_cast<double>(other) / static_cast<double>(fast), false);
}

CoderSpeeds CoderRates::EncodeSpeeds(double threads) const {
  return {tight_encode.bytes_per_s() * threads, dense_encode.bytes_per_s() * threads};
}

CoderSpeeds CoderRates::DecodeSpeeds(double threads) const {
  return {tight_decode.bytes_per_s() * threads, dense_decode.bytes_per_s() * threads};
}

void CoderRates::Calibrate(const kernels::Backend& backend) {
  constexpr size_t kBytes = 512 << 10;
  constexpr unsigned kWidth = 2;
  // bf16 weights of the usual size, one in a hundred off by one.
  std::mt19937_64 random(1);
  std::normal_distribution<float> weight(0, 0.02f);
  std::vector<std::byte> before(kBytes), after, zeros(kBytes);
  for (size_t i = 0; i < kBytes; i += kWidth) {
    const float value = weight(random);
    std::memcpy(&before[i], reinterpret_cast<const char*>(&value) + 2, kWidth);
  }
  after = before;
  for (size_t i = 0; i < kBytes / kWidth / 100; ++i) {
    std::byte& low = after[random() % (kBytes / kWidth) * kWidth];
    low = static_cast<std::byte>(static_cast<uint8_t>(low) + (random() % 2 == 0 ? 1 : 255));
  }
  const kernels::DigestKey key(0);
  std::vector<std::byte> fast(kernels::MaxEncodedBytes(kBytes, kWidth)), back(fast.size()), dense;
  fast.resize(backend.diff_encode(key, before, after, kWidth, 0, fast).bytes);
  size_t bytes = 0;
  auto start = Clock::now();
  const size_t made = DenseEncode(backend, fast, kBytes, kWidth, kBytes, dense);
  dense_encode.Add(kBytes, Since(start));
  start = Clock::now();
  DenseDecode(backend, kernels::Bytes(dense).first(made), kBytes, kWidth, back, &bytes);
  dense_decode.Add(kBytes, Since(start));
  if (backend.tight_encode != nullptr && backend.tight_decode != nullptr) {
    std::vector<std::byte> scratch(kernels::kTightScratchBytes), tight(fast.size());
    start = Clock::now();
    backend.tight_encode(before, fast, kWidth, kernels::ClassFunction::kBF16, {}, scratch, tight,
                         &bytes);
    tight_encode.Add(kBytes, Since(start));
    start = Clock::now();
    backend.tight_decode(before, kernels::Bytes(tight).first(bytes), kWidth, {}, scratch, back,
                         &bytes);
    tight_decode.Add(kBytes, Since(start));
  }
  for (CoderRate* r : {&tight_encode, &tight_decode, &dense_encode, &dense_decode}) {
    r->ForgetTotals();
  }
}

}  // namespace deltawire
