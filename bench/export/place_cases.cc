// The case place/KIND: Backend::place_convert by kind of copy, against memcpy.
#include <algorithm>
#include <ctime>

#include "bench/export/cases.h"
#include "bench/harness/buffers.h"
#include "bench/harness/parallel.h"
#include "kernels/place_pieces.h"

namespace deltawire::bench {
namespace {

using kernels::Convert;
using kernels::Element;
using kernels::StridedCopy;
using Copies = std::vector<StridedCopy>;

constexpr int64_t kBF16 = 2;
constexpr int64_t kWide = 2880;                  // gpt-oss: both sides of an expert's matrices
constexpr size_t kPieceBytes = size_t{2} << 20;  // a thread's unit of work

// The kinds -----------------------------------------------------------------------------------

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

/// Returns the same copies in the other direction.
Copies Back(Copies copies) {
  for (StridedCopy& copy : copies) {
    std::swap(copy.src_offset, copy.dst_offset);
    std::swap(copy.src_strides, copy.dst_strides);
  }
  return copies;
}

Copies Joined(const Copies& halves) {
  StridedCopy both = halves[0];
  JoinCopies(halves[0], halves[1], &both);
  return {both};
}

/// Copies from shards to a tensor whose columns are split over 4 ranks; shards have rows of `strip`
/// bytes.
Copies Strips(int64_t bytes, int64_t strip) {
  constexpr int64_t kRanks = 4;
  const int64_t rows = bytes / (strip * kRanks);
  Copies copies;
  for (int64_t r = 0; r < kRanks; ++r) {
    copies.push_back(Copy(strip, {{rows, strip, kRanks * strip}}, r * rows * strip, r * strip));
  }
  return copies;
}

/// Splits fused q, k and v: [groups, 8 + 1 + 1, 128, hidden], that is, groups of 8 query heads, a
/// key and a value head, with 128 rows per head.
Copies Heads(int64_t bytes) {
  constexpr int64_t kHidden = 4096, kHead = 128 * kHidden * kBF16, kQueries = 8 * kHead;
  constexpr int64_t kGroup = kQueries + 2 * kHead;
  const int64_t groups = std::max<int64_t>(1, bytes / kGroup);
  return {Copy(kQueries, {{groups, kGroup, kQueries}}),
          Copy(kHead, {{groups, kGroup, kHead}}, kQueries, groups * kQueries),
          Copy(kHead, {{groups, kGroup, kHead}}, kQueries + kHead, groups * (kQueries + kHead))};
}

/// Transposes experts whose elements take `from` and `to` bytes.
Copies Transposed(int64_t bytes, int64_t from, int64_t to) {
  constexpr int64_t kElements = kWide * kWide;
  const int64_t experts = std::max<int64_t>(1, bytes / (kElements * to));
  return {Copy(to, {{experts, kElements * from, kElements * to},
                    {kWide, kWide * from, to},
                    {kWide, from, kWide * to}})};
}

/// Makes gate_up_proj, [E, H, 2 I] with gate and up interleaved, from E matrices [2 I, H] with gate
/// before up.
Copies GateUp(int64_t bytes) {
  constexpr int64_t kHalf = kWide * kWide * kBF16, kExpert = 2 * kHalf;
  const int64_t experts = std::max<int64_t>(1, bytes / kExpert);
  const auto half = [&](int64_t i) {
    return Copy(kBF16,
                {{experts, kExpert, kExpert},
                 {kWide, kWide * kBF16, 2 * kBF16},
                 {kWide, kBF16, 2 * kWide * kBF16}},
                i * kHalf, i * kBF16);
  };
  return {half(0), half(1)};
}

/// Separates the rows of gate from those of up. In the source they alternate, `together` rows of
/// each at a time.
Copies RowsInTurn(int64_t bytes, int64_t together) {
  const int64_t run = together * kWide * kBF16;
  const int64_t turns = std::max<int64_t>(1, bytes / (2 * run));
  return {Copy(run, {{turns, 2 * run, run}}), Copy(run, {{turns, 2 * run, run}}, run, turns * run)};
}

struct Conversion {
  const char* name;
  Convert convert;
};
constexpr Conversion kConversions[] = {
    {"fp32-bf16", {Element::kF32, Element::kBF16, 0}},
    {"bf16-fp32", {Element::kBF16, Element::kF32, 0}},
    {"fp32-fp16", {Element::kF32, Element::kF16, 0}},
    {"fp16-fp32", {Element::kF16, Element::kF32, 0}},
    {"fp16-bf16", {Element::kF16, Element::kBF16, 0}},
    {"bf16 + 1", {Element::kBF16, Element::kBF16, 1}},
    {"fp32 + 1-bf16", {Element::kF32, Element::kBF16, 1}},
};

// The measurement -----------------------------------------------------------------------------

/// Memory in huge pages, or in a tmpfs file like halves.
struct Buffer {
  HugeBuffer huge;
  Mapping mapped;
  MutableBytes data;

  static StatusOr<Buffer> Make(uint64_t bytes, const ScratchDir* shm, const char* name) {
    Buffer b;
    if (shm != nullptr) {
      DW_ASSIGN_OR_RETURN(b.mapped, MapNewFile(shm->path() / name, bytes));
      b.data = {b.mapped.base(), bytes};
    } else {
      DW_ASSIGN_OR_RETURN(b.huge, HugeBuffer::Create(bytes));
      b.data = b.huge.data();
    }
    return b;
  }
};

Status CheckAgainstScalar(const CopyCase& c, Bytes src, MutableBytes dst,
                          const std::function<void()>& place) {
  const MutableBytes written = dst.first(c.dst_bytes);
  std::ranges::fill(written, std::byte{0xa5});
  std::vector<std::byte> wanted(written.begin(), written.end());
  place();
  for (const StridedCopy& copy : c.copies) {
    kernels::Scalar().place_convert(copy, c.convert, src, wanted);
  }
  if (std::ranges::equal(wanted, written)) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "{}: not the scalar backend's bytes", c.name);
}

Status RunCase(const CopyCase& c, size_t threads, Bytes src, MutableBytes dst, bool cpu_time,
               Bench& bench) {
  ThreadPool pool(threads);
  Copies pieces;
  for (const StridedCopy& copy : c.copies) {
    const kernels::CopyPieces cut(copy, c.convert, kPieceBytes);
    for (size_t i = 0; i < cut.count(); ++i) pieces.push_back(cut[i]);
  }
  const auto place = [&] {
    pool.ParallelFor(pieces.size(), [&](size_t i) {
      kernels::Best().place_convert(pieces[i], c.convert, src, dst);
    });
  };
  if (bench.quick) DW_RETURN_IF_ERROR(CheckAgainstScalar(c, src, dst, place));
  // A copied byte counts once, so this is the mean of the bytes read and written.
  const uint64_t moved = (c.src_bytes + c.dst_bytes) / 2, bytes = std::min(moved, dst.size());
  const auto timed = [&](const auto& work) {
    const auto start = SteadyClock::now();
    const std::clock_t cpu_start = std::clock();
    work();
    return cpu_time ? static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC /
                          static_cast<double>(threads)
                    : SecondsSince(start);
  };
  return bench.Run(c.name, threads,
                   {Throughput("place", moved).Against("memcpy").AgainstBytes(bytes).AtLeast(0.75)},
                   [&](Series& s) {
                     s.Add("memcpy", timed([&] { CopyInParts(src.first(bytes), dst, pool); }));
                     s.Add("place", timed(place));
                     return absl::OkStatus();
                   });
}

}  // namespace

std::vector<CopyCase> CopyCases(uint64_t size) {
  const auto bytes = static_cast<int64_t>(size);
  std::vector<CopyCase> cases;
  const auto add = [&](const std::string& name, Copies copies, const Convert& convert = {}) {
    CopyCase c{"place/" + name, std::move(copies), convert};
    for (const StridedCopy& copy : c.copies) c.dst_bytes += kernels::CopiedBytes(copy);
    c.src_bytes = c.dst_bytes / WidthOf(convert.to) * WidthOf(convert.from);
    cases.push_back(std::move(c));
  };
  add("whole", {Copy(bytes, {})});
  add("heads", Heads(bytes));
  for (const int64_t strip : {256, 1024, 4096}) {
    add(fmt::format("strips scattered/{} B", strip), Strips(bytes, strip));
    add(fmt::format("strips gathered/{} B", strip), Back(Strips(bytes, strip)));
  }
  // 720 elements are a rank's share of 2880 columns on 4 ranks. They do not fill whole cache lines.
  add("strips scattered/1440 B", Strips(bytes, 1440));
  for (const int64_t width : {1, 2, 4, 8}) {
    add(fmt::format("transposed/{} B", width), Transposed(bytes, width, width));
  }
  const Copies two = GateUp(bytes);
  add("columns in turn/joined", Joined(two));
  add("columns in turn/joined, back", Joined(Back(two)));
  add("columns in turn/two copies", two);
  add("columns in turn/two copies, back", Back(two));
  for (const int64_t rows : {1, 32}) {
    add(fmt::format("rows in turn/{}", rows), RowsInTurn(bytes, rows));
  }
  for (const Conversion& k : kConversions) {
    add(fmt::format("convert/{}", k.name), {Copy(bytes / 4096 * 4096, {})}, k.convert);
  }
  for (const Conversion& k : {kConversions[0], kConversions[1]}) {
    add(fmt::format("convert/transposed {}", k.name),
        Transposed(bytes, WidthOf(k.convert.from), WidthOf(k.convert.to)), k.convert);
  }
  return cases;
}

Status PlaceCases(const ExportOptions& options, Bench& bench) {
  std::vector<CopyCase> cases = CopyCases((bench.quick ? 1 : options.mib) << 20);
  std::erase_if(cases, [&](const CopyCase& c) { return !bench.Asked(c.name); });
  if (cases.empty()) return absl::OkStatus();
  uint64_t src_bytes = 0, dst_bytes = 0;
  for (const CopyCase& c : cases) {
    src_bytes = std::max({src_bytes, c.src_bytes, c.dst_bytes});
    dst_bytes = std::max(dst_bytes, c.dst_bytes);
  }
  std::unique_ptr<ScratchDir> shm;
  if (options.shm) {
    DW_ASSIGN_OR_RETURN(shm, ScratchDir::Create());
  }
  DW_ASSIGN_OR_RETURN(const Buffer src, Buffer::Make(src_bytes, shm.get(), "src"));
  DW_ASSIGN_OR_RETURN(const Buffer dst, Buffer::Make(dst_bytes, shm.get(), "dst"));
  FillByPlace(src.data);
  for (const CopyCase& c : cases) {
    for (const size_t threads : options.threads) {
      DW_RETURN_IF_ERROR(RunCase(c, threads, src.data, dst.data, options.cpu_time, bench));
    }
  }
  return absl::OkStatus();
}

}  // namespace deltawire::bench
