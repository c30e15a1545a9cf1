// place/KIND: Backend::place_convert by kind of copy.
#include <algorithm>
#include <cstring>
#include <ctime>

#include "bench/export/cases.h"
#include "bench/export/job.h"
#include "kernels/place_pieces.h"

namespace deltawire::bench {
namespace {

constexpr size_t kPieceBytes = size_t{2} << 20;  // what a thread takes at once

/// Memory in huge pages, or in a tmpfs file as halves are.
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

/// Fills `bytes` with numbers that are of ordinary size in every element type.
void FillWithNumbers(MutableBytes bytes) {
  uint64_t state = 1;
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    state = state * 6364136223846793005 + 1442695040888963407;
    StoreLe<uint64_t>(&bytes[i], (state >> 7 & 0x81ff81ff81ff81ff) | 0x3c003c003c003c00);
  }
}

Status RunCase(const CopyCase& c, size_t threads, Bytes src, MutableBytes dst, bool cpu_time,
               Bench& bench) {
  ThreadPool pool(threads);
  std::vector<kernels::StridedCopy> pieces;
  for (const kernels::StridedCopy& copy : c.copies) {
    const kernels::CopyPieces cut(copy, c.convert, kPieceBytes);
    for (size_t i = 0; i < cut.count(); ++i) pieces.push_back(cut[i]);
  }
  const auto place = [&] {
    pool.ParallelFor(pieces.size(), [&](size_t i) {
      kernels::Best().place_convert(pieces[i], c.convert, src, dst);
    });
  };
  if (bench.quick) {
    const MutableBytes written = dst.first(c.dst_bytes);
    std::ranges::fill(written, std::byte{0xa5});
    std::vector<std::byte> wanted(written.begin(), written.end());
    place();
    for (const kernels::StridedCopy& copy : c.copies) {
      kernels::Scalar().place_convert(copy, c.convert, src, wanted);
    }
    if (!std::ranges::equal(wanted, written)) {
      return Errorf(StatusCode::kInternal, "{}: not the scalar backend's bytes", c.name);
    }
  }
  // A copied byte counts once, so this is the mean of what the case reads and what it writes.
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
  FillWithNumbers(src.data);
  for (const CopyCase& c : cases) {
    for (const size_t threads : options.threads) {
      DW_RETURN_IF_ERROR(RunCase(c, threads, src.data, dst.data, options.cpu_time, bench));
    }
  }
  return absl::OkStatus();
}

}  // namespace deltawire::bench
