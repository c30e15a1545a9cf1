// Conversions between number formats: the oracle against arithmetic that shares nothing with it,
// and every backend against the oracle, over all 16-bit numbers and over fp32 around its edges.
#include <fmt/format.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::kernels::test::place_convert_test {
namespace {

constexpr Element kNumbers[] = {Element::kBF16, Element::kF16, Element::kF32};

/// What a number format can hold. Double holds every number of these formats exactly, so the test
/// calculates in double.
struct Format {
  int digits;    ///< of the significand, with the hidden one
  int exponent;  ///< of the smallest normal number
  double largest;
  unsigned bits, payload;  ///< bits in all, and bits of the stored significand
};

Format FormatOf(Element e) {
  switch (e) {
    case Element::kBF16:
      return {8, -126, 0x1.fep127, 16, 7};
    case Element::kF16:
      return {11, -14, 65504, 16, 10};
    default:
      return {24, -126, std::numeric_limits<float>::max(), 32, 23};
  }
}

uint64_t SignOf(uint64_t bits, Element e) { return bits >> (FormatOf(e).bits - 1) & 1; }

double ValueOf(uint64_t bits, Element e) {
  const Format f = FormatOf(e);
  const uint64_t fraction = bits & ((uint64_t{1} << f.payload) - 1);
  const uint64_t all_ones = (uint64_t{1} << (f.bits - 1 - f.payload)) - 1;
  const uint64_t exponent = bits >> f.payload & all_ones;
  const double sign = SignOf(bits, e) != 0 ? -1 : 1;
  if (exponent == all_ones) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  const uint64_t significand = exponent == 0 ? fraction : fraction | uint64_t{1} << f.payload;
  const int scale =
      static_cast<int>(exponent == 0 ? 1 : exponent) - 1 + f.exponent - static_cast<int>(f.payload);
  return sign * std::ldexp(static_cast<double>(significand), scale);
}

/// Rounds to nearest even: nearbyint of the number in units of its last place.
double Rounded(double v, Element e) {
  const Format f = FormatOf(e);
  if (!std::isfinite(v) || v == 0) return v;
  const int unit = std::max(std::ilogb(v), f.exponent) - f.digits + 1;
  const double r = std::ldexp(std::nearbyint(std::ldexp(v, -unit)), unit);
  return std::abs(r) > f.largest ? std::copysign(std::numeric_limits<double>::infinity(), v) : r;
}

/// The NaN of format `to` with the sign and the leading payload bits of `bits`. It is made quiet,
/// except where bf16 becomes fp32 and nothing is added.
uint64_t NaNOf(uint64_t bits, const Convert& c) {
  const Format from = FormatOf(c.from), to = FormatOf(c.to);
  const uint64_t wide = (bits & ((uint64_t{1} << from.payload) - 1)) << (23 - from.payload);
  const bool keeps = c.from == Element::kBF16 && c.to == Element::kF32 && c.add == 0;
  const uint64_t payload = (keeps ? wide : wide | uint64_t{1} << 22) >> (23 - to.payload);
  const uint64_t exponent = ((uint64_t{1} << (to.bits - 1 - to.payload)) - 1) << to.payload;
  return SignOf(bits, c.from) << (to.bits - 1) | exponent | payload;
}

bool IsRight(uint64_t in, uint64_t out, const Convert& c) {
  const double v = ValueOf(in, c.from);
  if (std::isnan(v)) return out == NaNOf(in, c);
  // The kernels add -1 and 1 in fp32. A sum in double may be rounded too, but only at bits far
  // below those at which fp32 rounds it.
  const double sum = c.add == 0 ? v : Rounded(v + c.add, Element::kF32);
  const double wanted = Rounded(sum, c.to), got = ValueOf(out, c.to);
  return got == wanted && std::signbit(got) == std::signbit(wanted);
}

std::vector<Convert> Conversions() {
  std::vector<Convert> all;
  for (const Element from : kNumbers) {
    for (const Element to : kNumbers) {
      for (const int add : {-1, 0, 1}) {
        const Convert c{from, to, static_cast<int8_t>(add)};
        if (!c.moves_only()) all.push_back(c);
      }
    }
  }
  return all;
}

/// All numbers of a 16-bit format. Of fp32, those at and around every number that the upper 16 bits
/// alone can say, ties among them, and random ones.
std::vector<uint32_t> Numbers(Element e, Random& random) {
  std::vector<uint32_t> all;
  for (uint32_t i = 0; i < 65536; ++i) {
    if (e != Element::kF32) {
      all.push_back(i);
      continue;
    }
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      all.push_back(i << 16 | low);
    }
    all.push_back(static_cast<uint32_t>(random.Next()));
    // These are numbers of fp16, ties between them, and their neighbours; some are subnormal in
    // fp16.
    const auto f16 = static_cast<uint32_t>((0x32800000u + random.Below(0x16000000)) & ~0x0fffu);
    for (const uint32_t v : {f16 - 1, f16, f16 + 1}) {
      all.push_back(v | static_cast<uint32_t>(random.Below(2) << 31));
    }
  }
  return all;
}

TEST_CASE("Conversions of all numbers are right on every backend") {
  const uint64_t seed = 411;
  CAPTURE(seed);
  Random random(seed);
  for (const Convert& c : Conversions()) {
    const std::vector<uint32_t> numbers = Numbers(c.from, random);
    const unsigned from = static_cast<unsigned>(WidthOf(c.from));
    const unsigned to = static_cast<unsigned>(WidthOf(c.to));
    Buffer src(numbers.size() * from), wanted(numbers.size() * to);
    for (size_t i = 0; i < numbers.size(); ++i) StoreAt(src, i, from, numbers[i]);
    StridedCopy whole;
    whole.run_bytes = wanted.size();
    Scalar().place_convert(whole, c, src, wanted);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const uint64_t out = LoadAt(wanted, i, to);
      // A REQUIRE for each of ten million numbers would take half a minute.
      if (IsRight(numbers[i], out, c)) continue;
      FAIL(fmt::format("{:#x} became {:#x} (from {}, to {}, add {})", numbers[i], out,
                       static_cast<int>(c.from), static_cast<int>(c.to), c.add));
    }
    for (const Backend* backend : All()) {
      CAPTURE(backend->name, static_cast<int>(c.from), static_cast<int>(c.to),
              static_cast<int>(c.add));
      Buffer got(wanted.size());
      backend->place_convert(whole, c, src, got);
      REQUIRE(Equal(got, wanted));
    }
  }
}

TEST_CASE("A conversion of nothing but place moves every bit") {
  Random random(412);
  Buffer src(4096), dst(4096);
  src.Fill(random);
  StridedCopy whole;
  whole.run_bytes = 4096;
  for (const Element e : {Element::kBytes, Element::kBF16, Element::kF16, Element::kF32}) {
    for (const Backend* backend : All()) {
      backend->place_convert(whole, {e, e, 0}, src, dst);
      CHECK(Equal(src, dst));
      std::memset(dst.data(), 0, dst.size());
    }
  }
}

}  // namespace
}  // namespace deltawire::kernels::test::place_convert_test
