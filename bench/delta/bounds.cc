#include "bench/delta/bounds.h"

#include <math.h>

#include <bit>
#include <cmath>

#include "kernels/element_width.h"

namespace deltawire::bench {
namespace {

constexpr size_t kExponents = 256;
constexpr double kAlpha = 0.5;

// lgamma writes a global; this one is safe in threads.
double LogGamma(double x) {
  int sign = 0;
  return ::lgamma_r(x, &sign);
}

// log2 of Gamma(n + 1/2) / Gamma(1/2).
double Rising(uint64_t n) {
  return (LogGamma(static_cast<double>(n) + kAlpha) - LogGamma(kAlpha)) / M_LN2;
}

// What the normalisation of `n` events over `symbols` symbols costs, in bits.
double Normalisation(uint64_t n, size_t symbols) {
  const double start = static_cast<double>(symbols) * kAlpha;
  return (LogGamma(static_cast<double>(n) + start) - LogGamma(start)) / M_LN2;
}

}  // namespace

double KtBits(std::span<const uint64_t> counts) {
  if (counts.size() < 2) return 0;
  uint64_t n = 0;
  double seen = 0;
  for (const uint64_t count : counts) {
    n += count;
    seen += Rising(count);
  }
  return Normalisation(n, counts.size()) - seen;
}

double KtBits(uint64_t changed, uint64_t elements) {
  const std::array<uint64_t, 2> counts = {changed, elements - changed};
  return KtBits(counts);
}

void Bounds::operator+=(const Bounds& other) {
  elements += other.elements;
  changed += other.changed;
  iid += other.iid;
  exponent += other.exponent;
  history += other.history;
}

unsigned ExponentOf(kernels::ClassFunction f, uint64_t bits) {
  return kernels::ExponentOf(bits, f);
}

uint8_t HistoryContext(unsigned age, bool up) {
  if (age == 0) return 0;
  const auto row = static_cast<unsigned>(std::bit_width(age - 1)) + 1;  // 1, 2, 3..4, 5..8
  return static_cast<uint8_t>(1 + 2 * (row - 1) + (up ? 1 : 0));
}

uint64_t LoadElement(const std::byte* p, unsigned width) {
  return kernels::WithWidth(width, [&]<typename T>(T) { return uint64_t{LoadLe<T>(p)}; });
}

int64_t SignedDifference(uint64_t old_bits, uint64_t new_bits, unsigned width) {
  const unsigned unused = 64 - 8 * width;
  return static_cast<int64_t>((new_bits - old_bits) << unused) >> unused;
}

void ChangeCounter::Context::operator+=(const Context& other) {
  elements += other.elements;
  changed += other.changed;
  for (const auto& [difference, count] : other.differences) differences[difference] += count;
}

SplitBits ChangeCounter::Context::Bits(bool unseen) const {
  std::vector<uint64_t> counts;
  for (const auto& [difference, count] : differences) counts.push_back(count);
  if (unseen && !counts.empty()) counts.push_back(0);
  return {KtBits(changed, elements), KtBits(counts)};
}

ChangeCounter::ChangeCounter(kernels::ClassFunction function, unsigned width)
    : function_(function), width_(width), contexts_(kExponents * kHistoryContexts) {}

void ChangeCounter::Add(Bytes old_data, Bytes new_data, std::span<const uint8_t> contexts) {
  kernels::WithWidth(width_, [&]<typename T>(T) {
    for (size_t i = 0; i < old_data.size() / sizeof(T); ++i) {
      const T before = LoadLe<T>(&old_data[i * sizeof(T)]);
      const T after = LoadLe<T>(&new_data[i * sizeof(T)]);
      const size_t history = contexts.empty() ? 0 : contexts[i];
      Context& c = contexts_[ExponentOf(function_, before) * kHistoryContexts + history];
      ++c.elements;
      if (before == after) continue;
      ++c.changed;
      ++c.differences[SignedDifference(before, after, sizeof(T))];
    }
  });
}

Bounds ChangeCounter::Finish() const {
  Bounds out;
  Context all;
  for (size_t e = 0; e < kExponents; ++e) {
    Context of_exponent;
    for (size_t h = 0; h < kHistoryContexts; ++h) {
      const Context& c = contexts_[e * kHistoryContexts + h];
      if (c.elements == 0) continue;
      out.history += c.Bits(true);
      of_exponent += c;
    }
    if (of_exponent.elements == 0) continue;
    out.exponent += of_exponent.Bits(true);
    all += of_exponent;
  }
  out.elements = all.elements;
  out.changed = all.changed;
  out.iid = all.Bits(false);
  return out;
}

}  // namespace deltawire::bench
