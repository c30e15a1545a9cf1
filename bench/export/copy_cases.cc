// The kinds of copies of place/KIND.
#include <algorithm>

#include "bench/export/cases.h"
#include "kernels/place_pieces.h"

namespace deltawire::bench {
namespace {

using kernels::Convert;
using kernels::Element;
using kernels::StridedCopy;

constexpr int64_t kBF16 = 2;
constexpr int64_t kWide = 2880;  // gpt-oss: both dimensions of an expert's matrices

struct Dim {
  int64_t count, src, dst;
};

StridedCopy Copy(int64_t run_bytes, std::initializer_list<Dim> dims, int64_t src = 0,
                 int64_t dst = 0) {
  StridedCopy copy;
  copy.src_offset = src;
  copy.dst_offset = dst;
  copy.run_bytes = static_cast<size_t>(run_bytes);
  for (const Dim& d : dims) {
    copy.counts[copy.dims] = static_cast<uint64_t>(d.count);
    copy.src_strides[copy.dims] = d.src;
    copy.dst_strides[copy.dims++] = d.dst;
  }
  return copy;
}

/// The same copies the other way.
std::vector<StridedCopy> Back(std::vector<StridedCopy> copies) {
  for (StridedCopy& copy : copies) {
    std::swap(copy.src_offset, copy.dst_offset);
    std::swap(copy.src_strides, copy.dst_strides);
  }
  return copies;
}

/// A case between two dense buffers, as all cases here are.
CopyCase Dense(std::string name, std::vector<StridedCopy> copies, const Convert& convert = {}) {
  CopyCase c{"place/" + std::move(name), std::move(copies), convert};
  for (const StridedCopy& copy : c.copies) c.dst_bytes += kernels::CopiedBytes(copy);
  c.src_bytes = c.dst_bytes / WidthOf(convert.to) * WidthOf(convert.from);
  return c;
}

/// A tensor whose columns are split over 4 ranks, in shards with rows of `strip` bytes: the shards
/// to the tensor.
std::vector<StridedCopy> Strips(int64_t bytes, int64_t strip) {
  constexpr int64_t kRanks = 4;
  const int64_t rows = bytes / (strip * kRanks);
  std::vector<StridedCopy> copies;
  for (int64_t r = 0; r < kRanks; ++r) {
    copies.push_back(Copy(strip, {{rows, strip, kRanks * strip}}, r * rows * strip, r * strip));
  }
  return copies;
}

/// Takes fused q, k and v apart: [groups, 8 + 1 + 1, 128, hidden], that is, groups of 8 query
/// heads, a key and a value head, with 128 rows per head.
std::vector<StridedCopy> Heads(int64_t bytes) {
  constexpr int64_t kHidden = 4096, kHead = 128 * kHidden * kBF16, kQueries = 8 * kHead;
  constexpr int64_t kGroup = kQueries + 2 * kHead;
  const int64_t groups = std::max<int64_t>(1, bytes / kGroup);
  return {Copy(kQueries, {{groups, kGroup, kQueries}}),
          Copy(kHead, {{groups, kGroup, kHead}}, kQueries, groups * kQueries),
          Copy(kHead, {{groups, kGroup, kHead}}, kQueries + kHead, groups * (kQueries + kHead))};
}

/// Transposes experts whose elements take `from` and `to` bytes.
std::vector<StridedCopy> Transposed(int64_t bytes, int64_t from, int64_t to) {
  constexpr int64_t kElements = kWide * kWide;
  const int64_t experts = std::max<int64_t>(1, bytes / (kElements * to));
  return {Copy(to, {{experts, kElements * from, kElements * to},
                    {kWide, kWide * from, to},
                    {kWide, from, kWide * to}})};
}

/// gate_up_proj: [E, H, 2 I] with gate and up in turn, from E matrices [2 I, H] with gate before
/// up.
std::vector<StridedCopy> GateUp(int64_t bytes) {
  constexpr int64_t kHalf = kWide * kWide * kBF16, kExpert = 2 * kHalf;
  const int64_t experts = std::max<int64_t>(1, bytes / kExpert);
  std::vector<StridedCopy> copies;
  for (int64_t half = 0; half < 2; ++half) {
    copies.push_back(Copy(kBF16,
                          {{experts, kExpert, kExpert},
                           {kWide, kWide * kBF16, 2 * kBF16},
                           {kWide, kBF16, 2 * kWide * kBF16}},
                          half * kHalf, half * kBF16));
  }
  return copies;
}

std::vector<StridedCopy> Joined(const std::vector<StridedCopy>& halves) {
  StridedCopy both = halves[0];
  JoinCopies(halves[0], halves[1], &both);
  return {both};
}

/// Separates the rows of gate from those of up. In the source they alternate, `together` rows of
/// each at a time.
std::vector<StridedCopy> RowsInTurn(int64_t bytes, int64_t together) {
  const int64_t run = together * kWide * kBF16;
  const int64_t turns = std::max<int64_t>(1, bytes / (2 * run));
  return {Copy(run, {{turns, 2 * run, run}}), Copy(run, {{turns, 2 * run, run}}, run, turns * run)};
}

void AddConversions(int64_t bytes, std::vector<CopyCase>& cases) {
  struct Kind {
    const char* name;
    Convert convert;
  };
  static constexpr Kind kKinds[] = {
      {"fp32-bf16", {Element::kF32, Element::kBF16, 0}},
      {"bf16-fp32", {Element::kBF16, Element::kF32, 0}},
      {"fp32-fp16", {Element::kF32, Element::kF16, 0}},
      {"fp16-fp32", {Element::kF16, Element::kF32, 0}},
      {"fp16-bf16", {Element::kF16, Element::kBF16, 0}},
      {"bf16 + 1", {Element::kBF16, Element::kBF16, 1}},
      {"fp32 + 1-bf16", {Element::kF32, Element::kBF16, 1}},
  };
  for (const Kind& k : kKinds) {
    cases.push_back(
        Dense(fmt::format("convert/{}", k.name), {Copy(bytes / 4096 * 4096, {})}, k.convert));
  }
  for (const Kind& k : {kKinds[0], kKinds[1]}) {
    cases.push_back(Dense(fmt::format("convert/transposed {}", k.name),
                          Transposed(bytes, WidthOf(k.convert.from), WidthOf(k.convert.to)),
                          k.convert));
  }
}

}  // namespace

std::vector<CopyCase> CopyCases(uint64_t size) {
  const auto bytes = static_cast<int64_t>(size);
  std::vector<CopyCase> cases = {Dense("whole", {Copy(bytes, {})}), Dense("heads", Heads(bytes))};
  for (const int64_t strip : {256, 1024, 4096}) {
    const std::vector<StridedCopy> strips = Strips(bytes, strip);
    cases.push_back(Dense(fmt::format("strips scattered/{} B", strip), strips));
    cases.push_back(Dense(fmt::format("strips gathered/{} B", strip), Back(strips)));
  }
  // 720 elements are a rank's share of 2880 columns on 4 ranks. They are no whole cache lines.
  cases.push_back(Dense("strips scattered/1440 B", Strips(bytes, 1440)));
  for (const int64_t width : {1, 2, 4, 8}) {
    cases.push_back(Dense(fmt::format("transposed/{} B", width), Transposed(bytes, width, width)));
  }
  const std::vector<StridedCopy> two = GateUp(bytes), back = Back(two);
  cases.push_back(Dense("columns in turn/joined", Joined(two)));
  cases.push_back(Dense("columns in turn/joined, back", Joined(back)));
  cases.push_back(Dense("columns in turn/two copies", two));
  cases.push_back(Dense("columns in turn/two copies, back", back));
  for (const int64_t together : {1, 32}) {
    cases.push_back(Dense(fmt::format("rows in turn/{}", together), RowsInTurn(bytes, together)));
  }
  AddConversions(bytes, cases);
  return cases;
}

}  // namespace deltawire::bench
