#include "common/delta/coder_rates.h"

#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/sync.h"
#include "common/delta/dense.h"

namespace deltawire {
namespace {

using Clock = SteadyClock;

constexpr double kShare = 0.1;  // weight of a new value in the average

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

void CoderRate::Add(double work, double seconds) {
  nanos_ += static_cast<uint64_t>(seconds * 1e9);
  // The last chunk of a tensor may have a few bytes only; its time is all overhead.
  constexpr double kTelling = 1 << 10;
  if (work < kTelling) return;
  Update(seconds_per_work_, seconds / work, true);
}

double CoderRate::per_s() const {
  const double s = seconds_per_work_;
  return s > 0 ? 1 / s : 0;
}

double CoderRate::total_seconds() const { return 1e-9 * static_cast<double>(nanos_.load()); }

void CoderRates::Average(std::atomic<double>& ratio, size_t fast, size_t other) {
  if (fast == 0) return;
  Update(ratio, static_cast<double>(other) / static_cast<double>(fast), false);
}

CoderSpeeds CoderRates::EncodeSpeeds(double threads) const {
  return {tight_encode.per_s() * threads, dense_encode.per_s() * threads};
}

CoderSpeeds CoderRates::DecodeSpeeds(double threads) const {
  return {tight_decode.per_s() * threads, dense_decode.per_s() * threads};
}

void CoderRates::Calibrate(const kernels::Backend& backend) {
  constexpr size_t kBytes = 512 << 10;
  constexpr unsigned kWidth = 2;
  // bf16 weights of the usual magnitude; 1 in 32 of the small ones changes by one.
  std::mt19937_64 random(1);
  std::normal_distribution<float> weight(0, 0.02f);
  std::vector<std::byte> before(kBytes), after, zeros(kBytes);
  for (size_t i = 0; i < kBytes; i += kWidth) {
    const float value = weight(random);
    std::memcpy(&before[i], reinterpret_cast<const char*>(&value) + 2, kWidth);
  }
  after = before;
  for (size_t i = 0; i < kBytes; i += kWidth) {
    constexpr unsigned kSmall = 0x3c00;  // 2^-7
    const unsigned bits = LoadLe<uint16_t>(&before[i]);
    if ((bits & 0x7fff) >= kSmall || random() % 32 != 0) continue;
    StoreLe<uint16_t>(&after[i], static_cast<uint16_t>(random() % 2 == 0 ? bits + 1 : bits - 1));
  }
  const kernels::DigestKey key(0);
  std::vector<std::byte> fast(kernels::MaxEncodedBytes(kBytes, kWidth)), back(fast.size()), dense;
  fast.resize(backend.diff_encode(key, before, after, kWidth, 0, fast).bytes);
  size_t bytes = 0;
  auto start = Clock::now();
  const size_t made = DenseEncode(backend, fast, kBytes, kWidth, kBytes, dense);
  dense_encode.Add(DenseWork(kBytes), Since(start));
  start = Clock::now();
  DenseDecode(backend, kernels::Bytes(dense).first(made), kBytes, kWidth, back, &bytes);
  dense_decode.Add(DenseWork(kBytes), Since(start));
  std::vector<std::byte> scratch(kernels::kTightScratchBytes), tight(fast.size());
  start = Clock::now();
  backend.tight_encode(before, fast, kWidth, kernels::ClassFunction::kBF16, {}, scratch, tight,
                       &bytes);
  tight_encode.Add(TightWork(kBytes, fast.size()), Since(start));
  start = Clock::now();
  backend.tight_decode(before, kernels::Bytes(tight).first(bytes), kWidth, {}, scratch, back,
                       &bytes);
  tight_decode.Add(TightWork(kBytes, fast.size()), Since(start));
  for (CoderRate* r : {&tight_encode, &tight_decode, &dense_encode, &dense_decode}) {
    r->ForgetTotals();
  }
}

}  // namespace deltawire
