#include "common/delta/coder_rates.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/human.h"
#include "common/base/sync.h"

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

CoderSpeeds Speeds(const PerCodec<CoderRate>& rates, double threads) {
  CoderSpeeds speeds;
  for (const Coder& coder : Coders()) {
    speeds[coder.codec] = rates[coder.codec].per_s() * threads;
  }
  return speeds;
}

}  // namespace

void CoderRate::Add(double work, double seconds) {
  nanos_ += static_cast<uint64_t>(seconds * 1e9);
  // A tensor's last chunk may have only a few bytes; its time is all overhead.
  constexpr double kTelling = 1 << 10;
  if (work < kTelling) return;
  // Cap the time: an interrupted thread says little about the codec, and one outlier could exclude
  // it from then on. If the codec has become slower, the next chunks show it too.
  constexpr double kMost = 2;
  const double known = seconds_per_work_.load(std::memory_order_relaxed);
  const double now = seconds / work;
  Update(seconds_per_work_, known > 0 ? std::min(now, kMost * known) : now, true);
}

double CoderRate::per_s() const {
  const double s = seconds_per_work_;
  return s > 0 ? 1 / s : 0;
}

double CoderRate::total_seconds() const { return 1e-9 * static_cast<double>(nanos_.load()); }

CoderRates::CoderRates() {
  for (const Coder& coder : Coders()) ratio_[coder.codec] = coder.usual_ratio;
}

void CoderRates::AddSize(kernels::Codec codec, size_t fast, size_t other) {
  if (fast == 0) return;
  Update(ratio_[codec], static_cast<double>(other) / static_cast<double>(fast), false);
}

CoderSpeeds CoderRates::EncodeSpeeds(double threads) const { return Speeds(encode, threads); }

CoderSpeeds CoderRates::DecodeSpeeds(double threads) const { return Speeds(decode, threads); }

void CoderRates::Calibrate(const kernels::Backend& backend) {
  constexpr size_t kBytes = 512 << 10;
  constexpr unsigned kWidth = 2;
  // bf16 weights of the usual magnitude; 1 in 32 of the small ones changes by one.
  std::mt19937_64 random(1);
  std::normal_distribution<float> weight(0, 0.02f);
  std::vector<std::byte> before(kBytes), after;
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
  std::vector<std::byte> fast(kernels::MaxEncodedBytes(kBytes, kWidth)), back(fast.size());
  fast.resize(backend.diff_encode(key, before, after, kWidth, 0, fast).bytes);
  const CodedChunk chunk{backend, kBytes, kWidth, kernels::ClassFunction::kBF16, before, {}};
  for (const Coder& coder : Coders()) {
    const double work = coder.work(kBytes, fast.size());
    // Keep the best of several passes. The first one warms code, tables and scratch memory, and any
    // may be interrupted. A codec that seems too slow is never chosen, so no real work would
    // correct that.
    constexpr int kPasses = 4;
    double encoding = std::numeric_limits<double>::infinity(), decoding = encoding;
    for (int pass = 0; pass < kPasses; ++pass) {
      auto start = Clock::now();
      const Bytes payload = coder.encode(chunk, fast, coder.limit(kBytes, fast.size()));
      encoding = std::min(encoding, SecondsSince(start));
      start = Clock::now();
      size_t bytes = 0;
      coder.decode(chunk, payload, back, &bytes);
      decoding = std::min(decoding, SecondsSince(start));
    }
    encode[coder.codec].Add(work, encoding);
    decode[coder.codec].Add(work, decoding);
    encode[coder.codec].ForgetTotals();
    decode[coder.codec].ForgetTotals();
  }
}

}  // namespace deltawire
