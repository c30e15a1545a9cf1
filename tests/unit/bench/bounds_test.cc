#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "bench/delta/bits.h"

namespace deltawire::bench::bounds_test {
namespace {

using kernels::ClassFunction;

double Kt(std::vector<uint64_t> counts) { return KtBits(counts); }

Bytes View(const std::vector<uint16_t>& v) { return std::as_bytes(std::span(v)); }

Bounds Count(const std::vector<uint16_t>& before, const std::vector<uint16_t>& after,
             const std::vector<uint8_t>& contexts = {},
             ClassFunction function = ClassFunction::kBF16) {
  ChangeCounter counter(function, 2);
  counter.Add(View(before), View(after), contexts);
  return counter.Finish();
}

// The code length that KtBits computes in closed form, here added up symbol by symbol.
double StepByStep(const std::vector<size_t>& symbols, size_t alphabet) {
  std::vector<double> counts(alphabet, 0.5);
  double bits = 0, total = 0.5 * static_cast<double>(alphabet);
  for (const size_t s : symbols) {
    bits -= std::log2(counts[s] / total);
    counts[s] += 1;
    total += 1;
  }
  return bits;
}

TEST_CASE("bounds: KT code lengths are those worked out by hand") {
  CHECK(Kt({}) == 0);
  CHECK(Kt({7}) == 0);
  CHECK(Kt({0, 0}) == Approx(0).margin(1e-12));
  // Beside each length: the probability that the estimator gives to each symbol in turn.
  CHECK(Kt({1, 0}) == Approx(1));                    // 1/2
  CHECK(Kt({2, 0}) == Approx(std::log2(8.0 / 3)));   // 1/2 3/4
  CHECK(Kt({1, 1}) == Approx(3));                    // 1/2 1/4
  CHECK(Kt({2, 1}) == Approx(4));                    // 1/2 3/4 1/6
  CHECK(Kt({1, 0, 0}) == Approx(std::log2(3.0)));    // 1/3
  CHECK(Kt({1, 1, 1}) == Approx(std::log2(105.0)));  // 1/3 1/5 1/7
}

TEST_CASE("bounds: KT code lengths are those of the sequential estimator") {
  const uint64_t seed = 7;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  std::geometric_distribution<size_t> geometric(0.6);
  std::vector<size_t> symbols;
  std::vector<uint64_t> counts(5);
  for (int i = 0; i < 2000; ++i) {
    symbols.push_back(std::min<size_t>(4, geometric(random)));
    ++counts[symbols.back()];
  }
  CHECK(KtBits(counts) == Approx(StepByStep(symbols, 5)).epsilon(1e-9));
}

TEST_CASE("bounds: signs and ages are those of the format") {
  CHECK(Signed(1, 2) == 1);
  CHECK(Signed(0xffff, 2) == -1);
  CHECK(Signed(0x80, 1) == -128);
  CHECK(Signed(~uint64_t{0}, 8) == -1);
  const std::vector<uint8_t> up = {0, 2, 4, 6, 6, 8, 8, 8, 8};
  for (unsigned age = 0; age < up.size(); ++age) {
    CHECK(HistoryContext(age, true) == up[age]);
    CHECK(HistoryContext(age, false) == (age == 0 ? 0 : up[age] - 1));
  }
}

TEST_CASE("bounds: those of one tensor are as worked out by hand") {
  // Exponents 127 (0x3f80, 0x3f81) and 128 (0x4000, 0x4001) have two elements each. One element of
  // each exponent changes, the first by +1 and the second by -1. The first element alone has a past
  // change, so it has a history context to itself.
  const std::vector<uint16_t> before = {0x3f80, 0x3f81, 0x4000, 0x4001};
  const std::vector<uint16_t> after = {0x3f81, 0x3f81, 0x4000, 0x4000};
  const Bounds b = Count(before, after, {2, 0, 0, 0});
  CHECK(b.iid.positions == Approx(Kt({2, 2})));
  CHECK(b.iid.differences == Approx(3));           // the alphabet is +1 and -1
  CHECK(b.exponent.positions == Approx(2 * 3.0));  // one of two changed, for each exponent
  CHECK(b.exponent.differences == Approx(2));      // one of two symbols, the other unseen
  // Context (127, up) has 1 change in 1 element, (127, none) 0 in 1, and (128, none) 1 in 2.
  CHECK(b.history.positions == Approx(1 + 1 + 3.0));
  CHECK(b.history.differences == Approx(2));
  // Where the format has no exponent, the bound by exponent is the one of `iid`, except that an
  // unseen difference is paid for.
  const Bounds none = Count(before, after, {}, ClassFunction::kNone);
  CHECK(none.exponent.positions == Approx(none.iid.positions));
  CHECK(none.exponent.differences == Approx(Kt({1, 1, 0})));
}

TEST_CASE("bounds: large differences count like small ones, and chunks add up") {
  const std::vector<uint16_t> before = {100, 100, 100, 100, 100};
  const std::vector<uint16_t> after = {132, 133, 133, 68, 100};  // +32, +33 twice, -32
  ChangeCounter counter(ClassFunction::kBF16, 2);
  for (int chunk = 1; chunk <= 2; ++chunk) {
    const Tally tally = counter.Add(View(before), View(after), {});
    CHECK(tally.at(0, 0).elements == 5);  // the exponent of numbers so small is 0
    CHECK(tally.at(0, 0).changed == 4);
    const uint64_t n = static_cast<uint64_t>(chunk);
    CHECK(counter.Finish().iid.differences == Approx(Kt({n, 2 * n, n})));
    CHECK(counter.Finish().iid.positions == Approx(Kt({4 * n, n})));
  }
}

TEST_CASE("bounds: where no element changed, only the positions cost bits") {
  const Bounds b = Count({1, 2, 3}, {1, 2, 3});
  CHECK(b.iid.differences == 0);
  CHECK(b.iid.positions == Approx(Kt({0, 3})));
}

}  // namespace
}  // namespace deltawire::bench::bounds_test
