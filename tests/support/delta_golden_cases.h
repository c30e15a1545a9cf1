// The inputs of the delta format's golden files (tests/golden/delta_v3): only their payloads are
// frozen, and the digests in manifest.json tell if these functions make other inputs. A new format
// version may take other cases. Owner: a case owns its bytes. Threads: one. Cost: a few copies of
// each chunk. Errors: none.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/delta_case.h"

namespace deltawire::kernels::test {

struct GoldenCase {
  DeltaCase c;
  std::vector<unsigned> depths = {0};  ///< a tight payload for each of these depths of history
  bool dense = false;                  ///< has a dense payload
};

namespace internal {

inline GoldenCase Pair(std::string name, unsigned width, const Buffer& a, const Buffer& b) {
  GoldenCase g;
  g.c.name = std::move(name);
  g.c.width = width;
  g.c.base = Buffer(a, 0);
  g.c.old_data = Buffer(a, 0);
  g.c.new_data = Buffer(b, 0);
  return g;
}

/// Gaps and differences of every length class, including the extreme ones.
inline GoldenCase Borders(unsigned width) {
  Random random(width);
  const size_t elements = 2400 / width + 1100;
  Buffer a(elements * width);
  a.Fill(random);
  Buffer b(a, 0);
  constexpr int64_t kMost = INT64_MAX;
  const unsigned unused = 64 - 8 * width;
  const int64_t differences[] = {
      1, -1, 2,  -2, 3, kMost >> unused, INT64_MIN >> unused, (kMost >> unused) - 1, 127, -128, -64,
      1, -1, 63, -3, 1};
  size_t at = 0, i = 0;
  for (const size_t gap : {0, 0, 1, 7, 253, 254, 255, 256, 0, 3, 2, 1, 0, 0, 4, 1}) {
    at += gap;
    StoreAt(b, at, width, LoadAt(a, at, width) + static_cast<uint64_t>(differences[i++]));
    ++at;
  }
  StoreAt(b, elements - 1, width, LoadAt(a, elements - 1, width) + 1);
  return Pair(fmt::format("w{}", width), width, a, b);
}

inline GoldenCase RawBlock(unsigned width) {
  Random random(100 + width);
  const size_t elements = width == 1 ? 43 : 40;
  Buffer a(elements * width), b(a.size());
  a.Fill(random);
  b.Fill(random);
  return Pair("raw_w" + std::to_string(width), width, a, b);
}

/// A sparse, an unchanged and a raw block.
inline GoldenCase ThreeBlocks() {
  Buffer a(2 * kBlockElements + 50), b(a.size());
  Random random(200);
  for (size_t i = 100; i < 30000; i += 1000) b.data()[i] = static_cast<std::byte>(i / 100);
  for (size_t i = 2 * kBlockElements; i < b.size(); ++i) {
    b.data()[i] = static_cast<std::byte>(random.Next() | 1);
  }
  return Pair("blocks", 1, a, b);
}

/// Most elements change by little, as dense expects.
inline GoldenCase ManyChanges(unsigned width) {
  const CaseShape s{
      "dense_w" + std::to_string(width), ClassFunction::kNone, width, 2000, 0.4, 0.3, 0};
  return {MakeDeltaCase(s, 2000, 20 + width), {0}, true};
}

}  // namespace internal

/// All golden cases, in the manifest's order.
inline std::vector<GoldenCase> GoldenCases() {
  std::vector<GoldenCase> all;
  for (const unsigned width : kWidths) all.push_back(internal::Borders(width));
  for (const unsigned width : kWidths) all.push_back(internal::RawBlock(width));
  all.push_back(internal::ThreeBlocks());
  using F = ClassFunction;
  const auto add = [&](const CaseShape& shape, size_t pattern, uint64_t seed) {
    all.push_back({MakeDeltaCase(shape, pattern, seed), {0, 1, 2, 8}});
  };
  add({"bf16", F::kBF16, 2, 12000, 0.01, 0.1, 8}, 1000, 1);
  add({"fp16", F::kF16, 2, 12000, 0.01, 0.1, 8}, 1000, 2);
  add({"fp32", F::kF32, 4, 12000, 0.01, 0.9, 8}, 1000, 3);
  add({"e4m3", F::kF8E4M3, 1, 12000, 0.01, 0.2, 8}, 1000, 4);
  add({"e5m2", F::kF8E5M2, 1, 12000, 0.01, 0.2, 8}, 1000, 5);
  add({"none_w2", F::kNone, 2, 3000, 0.05, 0.1, 8}, 3000, 6);
  add({"none_w8", F::kNone, 8, 8000, 0.05, 0, 8}, 500, 7);
  for (const unsigned width : kWidths) all.push_back(internal::ManyChanges(width));
  // Four lanes over four blocks, with changes counted in part; two lanes over five; one over two.
  add({"lanes4", F::kF8E4M3, 1, 3 * kBlockElements + 500, 0.012, 0.1, 8}, 2000, 8);
  add({"lanes2", F::kBF16, 2, 4 * kBlockElements + 77, 0.0017, 0.1, 8}, 2000, 9);
  add({"lanes1", F::kBF16, 2, kBlockElements + 77, 0.0003, 0.1, 8}, 2000, 10);
  return all;
}

}  // namespace deltawire::kernels::test
