// place/KIND: Backend::place_convert by kind of copy.
#include <algorithm>
#include <cstring>
#include <ctime>

#include "bench/export/cases.h"
#include "bench/export/copy_cases.h"
#include "bench/export/job.h"
#include "bench/harness/buffers.h"
#include "kernels/place_pieces.h"

namespace deltawire::bench {
namespace {

constexpr size_t kPieceBytes = size_t{2} << 20;  // what a thread takes at once

struct Buffers {
  HugeBuffer huge[2];
  Mapping mapped[2];
  MutableBytes src, dst;
};

StatusOr<Buffers> MakeBuffers(uint64_t src, uint64_t dst, const ScratchDir* shm) {
  Buffers b;
  MutableBytes* const spans[] = {&b.src, &b.dst};
  const uint64_t sizes[] = {src, dst};
  for (size_t i = 0; i < 2; ++i) {
    if (shm != nullptr) {
      DW_ASSIGN_OR_RETURN(b.mapped[i], MapNewFile(shm->path() / std::to_string(i), sizes[i]));
      *spans[i] = {b.mapped[i].base(), sizes[i]};
    } else {
      DW_ASSIGN_OR_RETURN(b.huge[i], HugeBuffer::Create(sizes[i]));
      *spans[i] = b.huge[i].data();
    }
  }
  return b;
}

/// Fills `bytes` with numbers that are of ordinary size in every element type.
void FillWithNumbers(MutableBytes bytes) {
  uint64_t state = 1;
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    state = state * 6364136223846793005 + 1442695040888963407;
    StoreLe<uint64_t>(&bytes[i], (state >> 7 & 0x81ff81ff81ff81ff) | 0x3c003c003c003c00);
  }
}

using Pieces = std::vector<kernels::StridedCopy>;

Pieces PiecesOf(const CopyCase& c) {
  Pieces out;
  for (const kernels::StridedCopy& copy : c.copies) {
    const kernels::CopyPieces pieces(copy, c.convert, kPieceBytes);
    for (size_t i = 0; i < pieces.count(); ++i) out.push_back(pieces[i]);
  }
  return out;
}

void Place(const CopyCase& c, const Pieces& pieces, const Buffers& buffers, ThreadPool& pool) {
  pool.ParallelFor(pieces.size(), [&](size_t i) {
    kernels::Best().place_convert(pieces[i], c.convert, buffers.src, buffers.dst);
  });
}

/// Compares with the scalar backend.
Status Check(const CopyCase& c, const Pieces& pieces, const Buffers& buffers, ThreadPool& pool) {
  const MutableBytes dst = buffers.dst.first(c.dst_bytes);
  std::memset(dst.data(), 0xa5, dst.size());
  std::vector<std::byte> wanted(dst.begin(), dst.end());
  Place(c, pieces, buffers, pool);
  for (const kernels::StridedCopy& copy : c.copies) {
    kernels::Scalar().place_convert(copy, c.convert, buffers.src, wanted);
  }
  if (std::memcmp(wanted.data(), dst.data(), dst.size()) == 0) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "{}: not the scalar backend's bytes", c.name);
}

Status RunCase(const CopyCase& c, size_t threads, const Buffers& buffers, bool cpu_time,
               Bench& bench) {
  ThreadPool pool(threads);
  const Pieces pieces = PiecesOf(c);
  if (bench.quick) DW_RETURN_IF_ERROR(Check(c, pieces, buffers, pool));
  // A copied byte counts once, so this is the mean of what the case reads and what it writes.
  const uint64_t moved = (c.src_bytes + c.dst_bytes) / 2;
  const uint64_t bytes = std::min(moved, uint64_t{buffers.dst.size()});
  const auto timed = [&](const auto& work) {
    const auto start = SteadyClock::now();
    const std::clock_t cpu_start = std::clock();
    work();
    return cpu_time ? static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC /
                          static_cast<double>(threads)
                    : SecondsSince(start);
  };
  DW_ASSIGN_OR_RETURN(const Series series, bench.Measure([&](Series& s) {
    s.Add("memcpy", timed([&] { CopyInParts(buffers.src.first(bytes), buffers.dst, pool); }));
    s.Add("place", timed([&] { Place(c, pieces, buffers, pool); }));
    return absl::OkStatus();
  }));
  bench.Add(c.name, threads, series,
            {Throughput("place", moved).Against("memcpy").AgainstBytes(bytes).AtLeast(0.75)});
  return absl::OkStatus();
}

}  // namespace

Status PlaceCases(const ExportOptions& options, Bench& bench) {
  std::vector<CopyCase> cases = CopyCases((bench.quick ? 1 : options.mib) << 20);
  std::erase_if(cases, [&](const CopyCase& c) { return !bench.Asked(c.name); });
  if (cases.empty()) return absl::OkStatus();
  uint64_t src = 0, dst = 0;
  for (const CopyCase& c : cases) {
    src = std::max({src, c.src_bytes, c.dst_bytes});
    dst = std::max(dst, c.dst_bytes);
  }
  std::unique_ptr<ScratchDir> shm;
  if (options.shm) {
    DW_ASSIGN_OR_RETURN(shm, ScratchDir::Create());
  }
  DW_ASSIGN_OR_RETURN(const Buffers buffers, MakeBuffers(src, dst, shm.get()));
  FillWithNumbers(buffers.src);
  for (const CopyCase& c : cases) {
    for (const size_t threads : options.threads) {
      DW_RETURN_IF_ERROR(RunCase(c, threads, buffers, options.cpu_time, bench));
    }
  }
  return absl::OkStatus();
}

}  // namespace deltawire::bench
