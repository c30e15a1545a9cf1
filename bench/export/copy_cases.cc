#include "bench/export/copy_cases.h"

#include <algorithm>

#include "common/base/status.h"
#include "kernels/place_pieces.h"

namespace deltawire::bench {
namespace {

using kernels::Convert;
using kernels::Element;
using kernels::StridedCopy;

constexpr int64_t kBF16 = 2;

struct Dim {
  uint64_t count;
  int64_t src, dst;
};

StridedCopy Copy(size_t run_bytes, std::initializer_list<Dim> dims, int64_t src = 0,
                 int64_t dst = 0) {
  StridedCopy copy;
  copy.src_offset = src;
  copy.dst_offset = dst;
  copy.run_bytes = run_bytes;
  for (const Dim& d : dims) {
    copy.counts[copy.dims] = d.count;
    copy.src_strides[copy.dims] = d.src;
    copy.dst_strides[copy.dims++] = d.dst;
  }
  return copy;
}

/// A case between two dense buffers, as all cases here are.
CopyCase Dense(std::string name, std::vector<StridedCopy> copies, const Convert& convert = {}) {
  CopyCase c;
  c.name = std::move(name);
  c.copies = std::move(copies);
  c.convert = convert;
  for (const StridedCopy& copy : c.copies) c.dst_bytes += kernels::CopiedBytes(copy);
  c.src_bytes = c.dst_bytes / WidthOf(convert.to) * WidthOf(convert.from);
  return c;
}

/// A tensor whose columns are split over 4 ranks, in shards with rows of `strip` bytes. `scatter`:
/// copies the shards to the tensor, else the tensor to the shards.
CopyCase Strips(uint64_t bytes, int64_t strip, bool scatter) {
  constexpr int64_t kRanks = 4;
  const auto rows = static_cast<int64_t>(bytes) / (strip * kRanks);
  std::vector<StridedCopy> copies;
  for (int64_t r = 0; r < kRanks; ++r) {
    const int64_t shard = r * rows * strip, column = r * strip, row = kRanks * strip;
    const auto count = static_cast<uint64_t>(rows);
    const auto run = static_cast<size_t>(strip);
    copies.push_back(scatter ? Copy(run, {{count, strip, row}}, shard, column)
                             : Copy(run, {{count, row, strip}}, column, shard));
  }
  return Dense(fmt::format("place/strips {}/{} B", scatter ? "scattered" : "gathered", strip),
               std::move(copies));
}

/// Takes fused q, k and v apart: [groups, 8 + 1 + 1, 128, hidden], that is, groups of 8 query
/// heads, a key and a value head, with 128 rows per head.
CopyCase Heads(uint64_t bytes) {
  constexpr int64_t kHidden = 4096, kHead = 128 * kHidden * kBF16, kQueries = 8;
  constexpr int64_t kGroup = (kQueries + 2) * kHead;
  const auto groups = std::max<int64_t>(1, static_cast<int64_t>(bytes) / kGroup);
  const auto count = static_cast<uint64_t>(groups);
  return Dense("place/heads",
               {Copy(kQueries * kHead, {{count, kGroup, kQueries * kHead}}),
                Copy(kHead, {{count, kGroup, kHead}}, kQueries * kHead, groups * kQueries * kHead),
                Copy(kHead, {{count, kGroup, kHead}}, (kQueries + 1) * kHead,
                     groups * (kQueries + 1) * kHead)});
}

constexpr int64_t kModel = 2880, kInner = 2880;  // gpt-oss

/// Transposes experts: [E, columns, rows] from E matrices [rows, columns].
CopyCase Transposed(std::string name, uint64_t bytes, int64_t rows, int64_t columns,
                    const Convert& convert, int64_t width) {
  const int64_t from = convert.moves_only() ? width : int64_t(WidthOf(convert.from));
  const int64_t to = convert.moves_only() ? width : int64_t(WidthOf(convert.to));
  const auto experts = std::max<uint64_t>(1, bytes / static_cast<uint64_t>(rows * columns * to));
  return Dense(
      std::move(name),
      {Copy(static_cast<size_t>(to), {{experts, rows * columns * from, rows * columns * to},
                                      {uint64_t(rows), columns * from, to},
                                      {uint64_t(columns), from, rows * to}})},
      convert);
}

/// gate_up_proj: [E, H, 2 I] with gate and up in turn, from E matrices [2 I, H] with gate before
/// up. `back`: the other way round.
std::vector<StridedCopy> GateUp(uint64_t bytes, bool back) {
  constexpr int64_t kExpert = 2 * kInner * kModel * kBF16, kHalf = kInner * kModel * kBF16;
  const auto experts = std::max<uint64_t>(1, bytes / kExpert);
  std::vector<StridedCopy> copies;
  for (int64_t half = 0; half < 2; ++half) {
    StridedCopy copy = Copy(kBF16,
                            {{experts, kExpert, kExpert},
                             {kInner, kModel * kBF16, 2 * kBF16},
                             {kModel, kBF16, 2 * kInner * kBF16}},
                            half * kHalf, half * kBF16);
    if (back) {
      std::swap(copy.src_offset, copy.dst_offset);
      std::swap(copy.src_strides, copy.dst_strides);
    }
    copies.push_back(copy);
  }
  return copies;
}

std::vector<StridedCopy> Joined(const std::vector<StridedCopy>& halves) {
  StridedCopy both = halves[0];
  JoinCopies(halves[0], halves[1], &both);
  return {both};
}

/// Takes rows of gate and up apart that stand in turn, `together` rows of each at a time.
CopyCase RowsInTurn(uint64_t bytes, int64_t together) {
  constexpr int64_t kRow = kModel * kBF16;
  const int64_t run = together * kRow;
  const auto turns = std::max<int64_t>(1, static_cast<int64_t>(bytes) / (2 * run));
  const auto count = static_cast<uint64_t>(turns);
  const auto length = static_cast<size_t>(run);
  return Dense(fmt::format("place/rows in turn/{}", together),
               {Copy(length, {{count, 2 * run, run}}),
                Copy(length, {{count, 2 * run, run}}, run, turns * run)});
}

void AddConversions(uint64_t bytes, std::vector<CopyCase>& cases) {
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
        Dense(fmt::format("place/convert/{}", k.name), {Copy(bytes / 4096 * 4096, {})}, k.convert));
  }
  for (const Kind& k : {kKinds[0], kKinds[1]}) {
    cases.push_back(Transposed(fmt::format("place/convert/transposed {}", k.name), bytes, kInner,
                               kModel, k.convert, 0));
  }
}

}  // namespace

std::vector<CopyCase> CopyCases(uint64_t bytes) {
  std::vector<CopyCase> cases;
  cases.push_back(Dense("place/whole", {Copy(bytes, {})}));
  cases.push_back(Heads(bytes));
  for (const int64_t strip : {256, 1024, 4096}) {
    cases.push_back(Strips(bytes, strip, true));
    cases.push_back(Strips(bytes, strip, false));
  }
  // 720 elements are a rank's share of 2880 columns on 4 ranks. They are no whole cache lines.
  cases.push_back(Strips(bytes, 1440, true));
  for (const int64_t width : {1, 2, 4, 8}) {
    cases.push_back(
        Transposed(fmt::format("place/transposed/{} B", width), bytes, kInner, kModel, {}, width));
  }
  cases.push_back(Dense("place/columns in turn/joined", Joined(GateUp(bytes, false))));
  cases.push_back(Dense("place/columns in turn/joined, back", Joined(GateUp(bytes, true))));
  cases.push_back(Dense("place/columns in turn/two copies", GateUp(bytes, false)));
  cases.push_back(Dense("place/columns in turn/two copies, back", GateUp(bytes, true)));
  for (const int64_t together : {1, 32}) cases.push_back(RowsInTurn(bytes, together));
  AddConversions(bytes, cases);
  return cases;
}

}  // namespace deltawire::bench
