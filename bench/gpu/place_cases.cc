#include <algorithm>
#include <cstring>

#include "bench/gpu/suite.h"
#include "bench/harness/parallel.h"

namespace deltawire::bench {
namespace {

using kernels::StridedCopy;

/// The goal for a trainer's offload into the pinned half: 80% of the link.
constexpr double kOfTheLink = 0.8;

/// Returns copies of whole adjacent tensors of `tensor_bytes`.
std::vector<StridedCopy> Tensors(uint64_t half_bytes, uint64_t tensor_bytes) {
  std::vector<StridedCopy> copies;
  for (uint64_t at = 0; at < half_bytes; at += tensor_bytes) {
    StridedCopy copy;
    copy.src_offset = copy.dst_offset = static_cast<int64_t>(at);
    copy.run_bytes = std::min(tensor_bytes, half_bytes - at);
    copies.push_back(copy);
  }
  return copies;
}

/// Returns the copy of two column shards into one matrix, whose rows have two runs of 2 KiB.
StridedCopy ColumnShards(uint64_t half_bytes) {
  constexpr size_t kRun = 2048;
  const uint64_t rows = half_bytes / (2 * kRun);
  const auto shard = static_cast<int64_t>(rows * kRun);
  StridedCopy copy;
  copy.run_bytes = kRun;
  copy.dims = 2;
  copy.counts[0] = 2, copy.src_strides[0] = shard, copy.dst_strides[0] = kRun;
  copy.counts[1] = rows, copy.src_strides[1] = kRun, copy.dst_strides[1] = 2 * kRun;
  return copy;
}

/// Returns the transposition of a square matrix of 2-byte elements, of at most 512 MiB.
StridedCopy Transposition(uint64_t half_bytes) {
  uint64_t side = 16384;
  while (side * side * 2 > half_bytes) side /= 2;
  const auto row = static_cast<int64_t>(side * 2);
  StridedCopy copy;
  copy.run_bytes = 2;
  copy.dims = 2;
  copy.counts[0] = side, copy.src_strides[0] = 2, copy.dst_strides[0] = row;
  copy.counts[1] = side, copy.src_strides[1] = row, copy.dst_strides[1] = 2;
  return copy;
}

uint64_t BytesOf(const std::vector<StridedCopy>& copies) {
  uint64_t bytes = 0;
  for (const StridedCopy& copy : copies) {
    uint64_t runs = 1;
    for (size_t d = 0; d < copy.dims; ++d) runs *= copy.counts[d];
    bytes += runs * copy.run_bytes;
  }
  return bytes;
}

/// Runs the copies from the new version on the device into the pinned half, and checks it: the
/// copied bytes are the oracle's, and all bytes around them are untouched.
StatusOr<double> PlaceInHalf(GpuSuite& suite, const char* operation,
                             const std::vector<StridedCopy>& copies, bool wait_each) {
  DW_ASSIGN_OR_RETURN(const Bytes from, suite.OnDevice(GpuSuite::kNew));
  DW_ASSIGN_OR_RETURN(const GpuSuite::Half half, suite.half());
  DW_ASSIGN_OR_RETURN(kernels::GpuQueue* const queue, suite.queue());
  CopyInParts(suite.host(GpuSuite::kOld), half.bytes, suite.pool());
  DW_ASSIGN_OR_RETURN(const double seconds, TimedOnGpu([&] {
                        kernels::GpuStatus status;
                        for (const StridedCopy& copy : copies) {
                          status = queue->Place(copy, from, half.mapped, {});
                          if (status.ok() && wait_each) status = queue->Wait();
                          if (!status.ok()) break;
                        }
                        const kernels::GpuStatus done = queue->Wait();
                        return status.ok() ? done : status;
                      }));
  if (BytesOf(copies) == suite.pair().bytes() && copies.front().dims == 0) {
    suite.Expect(operation, suite.Holds(half.bytes, GpuSuite::kNew));
    return seconds;
  }
  DW_ASSIGN_OR_RETURN(HugeBuffer wanted, HugeBuffer::Create(suite.pair().bytes()));
  CopyInParts(suite.host(GpuSuite::kOld), wanted.data(), suite.pool());
  for (const StridedCopy& copy : copies) {
    suite.PlaceOnCpu(copy, suite.host(GpuSuite::kNew), wanted.data());
  }
  const Status same = ForAll(suite.pool(), suite.all().size(), [&](size_t i) {
    const kernels::GpuChunk& c = suite.chunks()[i];
    const bool equal =
        std::memcmp(half.bytes.data() + c.offset, wanted.data().data() + c.offset, c.bytes) == 0;
    return equal ? absl::OkStatus() : absl::DataLossError("");
  });
  suite.Expect(operation, same.ok());
  return seconds;
}

/// Copies the column shards from one device buffer to another: the kernel without the link.
StatusOr<double> PlaceOnDevice(GpuSuite& suite, const StridedCopy& copy) {
  DW_ASSIGN_OR_RETURN(const Bytes from, suite.OnDevice(GpuSuite::kNew));
  DW_ASSIGN_OR_RETURN(const MutableBytes to, suite.Spare());
  return TimedOnGpu([&] { return kernels::GpuPlace({&copy, 1}, from, to); });
}

}  // namespace

void PlaceCases(GpuSuite& suite) {
  struct Way {
    const char* operation;
    std::vector<StridedCopy> copies;
    bool wait_each;
    double wanted;
  };
  const uint64_t bytes = suite.pair().bytes();
  constexpr uint64_t kExpert = 1 << 20, kTensor = 40 * kExpert;
  const Way ways[] = {
      {"place/tensors", Tensors(bytes, kTensor), false, kOfTheLink},
      {"place/tensors-waited", Tensors(bytes, kTensor), true, kOfTheLink},
      {"place/experts-waited", Tensors(bytes, kExpert), true, 0},
      {"place/columns", {ColumnShards(bytes)}, false, kOfTheLink},
      {"place/transposed", {Transposition(bytes)}, false, 0},
  };
  for (const Way& way : ways) {
    suite.Measure(
        {.operation = way.operation,
         .work = [&] { return PlaceInHalf(suite, way.operation, way.copies, way.wait_each); },
         .beside = Beside::kCopyToHost,
         .bytes = BytesOf(way.copies),
         .ratio_at_least = way.wanted});
  }
  const StridedCopy columns = ColumnShards(bytes);
  suite.Measure({.operation = "place/on-device",
                 .work = [&] { return PlaceOnDevice(suite, columns); },
                 .beside = Beside::kDeviceCopy,
                 .bytes = BytesOf({columns})});
}

}  // namespace deltawire::bench
