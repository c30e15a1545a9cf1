#include "bench/export/place_cases.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>

#include "bench/export/copy_cases.h"
#include "bench/harness/huge_buffer.h"
#include "bench/harness/scratch_dir.h"
#include "common/base/thread_pool.h"
#include "kernels/place_pieces.h"

namespace deltawire::bench {
namespace {

using kernels::StridedCopy;

/// Memory of either kind.
class Buffer {
 public:
  static StatusOr<Buffer> Create(uint64_t bytes, const ScratchDir* shm, const char* name) {
    Buffer buffer;
    if (shm != nullptr) {
      DW_ASSIGN_OR_RETURN(buffer.mapping_, MapNewFile(shm->path() / name, bytes));
      buffer.bytes_ = {static_cast<std::byte*>(buffer.mapping_.base()), bytes};
    } else {
      DW_ASSIGN_OR_RETURN(buffer.huge_, HugeBuffer::Create(bytes));
      buffer.bytes_ = buffer.huge_.data();
    }
    return buffer;
  }
  MutableBytes bytes() const { return bytes_; }

 private:
  HugeBuffer huge_;
  Mapping mapping_;
  MutableBytes bytes_;
};

double Seconds(bool cpu_time) {
  timespec t{};
  clock_gettime(cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Bench {
  const PlaceOptions& options;
  Buffer src, dst;
  Report& report;
};

struct Task {
  StridedCopy copy;
  kernels::Convert convert;
};

std::vector<Task> Tasks(const CopyCase& c, size_t piece_bytes) {
  std::vector<Task> tasks;
  for (const StridedCopy& copy : c.copies) {
    const kernels::CopyPieces pieces(copy, c.convert, piece_bytes);
    for (size_t i = 0; i < pieces.count(); ++i) tasks.push_back({pieces[i], c.convert});
  }
  return tasks;
}

void RunTasks(const kernels::Backend& backend, std::span<const Task> tasks, const Bench& bench,
              ThreadPool& pool) {
  pool.ParallelFor(tasks.size(), [&](size_t i) {
    backend.place_convert(tasks[i].copy, tasks[i].convert, bench.src.bytes(), bench.dst.bytes());
  });
}

/// As many bytes as the case reads and writes, half of it each, in one call a thread.
void CopyPlainly(uint64_t bytes, const Bench& bench, ThreadPool& pool) {
  const size_t threads = pool.size();
  pool.ParallelFor(threads, [&](size_t i) {
    const uint64_t first = bytes * i / threads, end = bytes * (i + 1) / threads;
    std::memcpy(bench.dst.bytes().data() + first, bench.src.bytes().data() + first, end - first);
  });
}

Status Check(const CopyCase& c, std::span<const Task> tasks, const Bench& bench, ThreadPool& pool) {
  const MutableBytes dst = bench.dst.bytes().first(c.dst_span);
  std::memset(dst.data(), 0xa5, dst.size());
  std::vector<std::byte> wanted(dst.begin(), dst.end());
  RunTasks(kernels::Best(), tasks, bench, pool);
  for (const StridedCopy& copy : c.copies) {
    kernels::Scalar().place_convert(copy, c.convert, bench.src.bytes(), wanted);
  }
  if (std::memcmp(wanted.data(), dst.data(), dst.size()) == 0) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "{}: not the scalar backend's bytes", c.name);
}

Status RunCase(const CopyCase& c, size_t threads, const Bench& bench) {
  const PlaceOptions& options = bench.options;
  ThreadPool pool(threads);
  const std::vector<Task> tasks = Tasks(c, options.piece_bytes);
  if (options.check) DW_RETURN_IF_ERROR(Check(c, tasks, bench, pool));
  const uint64_t bytes =
      std::min((c.src_bytes + c.dst_bytes) / 2, uint64_t{bench.dst.bytes().size()});
  const auto timed = [&](const auto& work) {
    const double start = Seconds(options.cpu_time);
    work();
    const double taken = Seconds(options.cpu_time) - start;
    return options.cpu_time ? taken / static_cast<double>(threads) : taken;
  };
  DW_ASSIGN_OR_RETURN(const Series series, Measure(options.rounds, [&](Series& s) -> Status {
                        s.Add("memcpy", timed([&] { CopyPlainly(bytes, bench, pool); }));
                        s.Add("place",
                              timed([&] { RunTasks(kernels::Best(), tasks, bench, pool); }));
                        return absl::OkStatus();
                      }));
  Row row;
  row.name = c.name;
  row.metric = "throughput";
  row.unit = "GB/s";
  row.threads = threads;
  row.value = Rate(series.Of("place"), static_cast<double>(c.src_bytes + c.dst_bytes) / 2e9);
  row.reference = "memcpy";
  row.reference_value = Rate(series.Of("memcpy"), static_cast<double>(bytes) / 1e9);
  row.wanted.ratio_at_least = 0.75;
  bench.report.Add(std::move(row));
  return absl::OkStatus();
}

/// Numbers of ordinary size, in whatever element they are read as.
void FillWithNumbers(MutableBytes bytes) {
  uint64_t state = 1;
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const uint64_t v = (state >> 7 & 0x81ff81ff81ff81ff) | 0x3c003c003c003c00;
    std::memcpy(bytes.data() + i, &v, 8);
  }
}

}  // namespace

Status PlaceCases(const PlaceOptions& options, Report& report) {
  std::vector<CopyCase> cases = CopyCases(options.bytes);
  std::erase_if(cases,
                [&](const CopyCase& c) { return c.name.find(options.only) == std::string::npos; });
  uint64_t src = 0, dst = 0;
  for (const CopyCase& c : cases) {
    src = std::max({src, c.src_span, c.dst_span});
    dst = std::max(dst, c.dst_span);
  }
  if (src == 0) return absl::OkStatus();
  std::unique_ptr<ScratchDir> shm;
  if (options.shm) {
    DW_ASSIGN_OR_RETURN(shm, ScratchDir::Create());
  }
  Bench bench{options, {}, {}, report};
  DW_ASSIGN_OR_RETURN(bench.src, Buffer::Create(src, shm.get(), "src"));
  DW_ASSIGN_OR_RETURN(bench.dst, Buffer::Create(dst, shm.get(), "dst"));
  FillWithNumbers(bench.src.bytes());
  for (const CopyCase& c : cases) {
    for (const size_t threads : options.threads) {
      DW_RETURN_IF_ERROR(RunCase(c, threads, bench));
    }
  }
  return absl::OkStatus();
}

}  // namespace deltawire::bench
