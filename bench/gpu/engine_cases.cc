#include <algorithm>
#include <cstring>

#include "bench/gpu/suite.h"
#include "bench/harness/parallel.h"
#include "kernels/gpu_scatter.h"

namespace deltawire::bench {
namespace {

using kernels::GpuScatter;
using kernels::StridedCopy;

/// The goal: 10 ms for 16 GB with 1% changed.
constexpr double kWantedSecondsPerByte = 0.010 / 16e9;

/// The parameters of an engine: all tensors whole, or those of the first of two ranks, which halve
/// every second matrix by its columns.
class Engine {
 public:
  Engine(GpuSuite& suite, bool cut) : suite_(suite) {
    const Layout& layout = suite.pair().layout;
    for (size_t t = 0; t < layout.size(); ++t) {
      const TensorMeta& tensor = layout.tensor(t);
      StridedCopy copy;
      copy.src_offset = static_cast<int64_t>(layout.offset(t));
      copy.dst_offset = static_cast<int64_t>(bytes_);
      copy.run_bytes = layout.bytes(t);
      if (cut && tensor.shape.size() == 2 && t % 2 == 0 && tensor.shape[1] % 2 == 0) {
        const uint64_t row = layout.bytes(t) / tensor.shape[0];
        copy.run_bytes = row / 2;
        copy.dims = 1;
        copy.counts[0] = tensor.shape[0];
        copy.src_strides[0] = static_cast<int64_t>(row);
        copy.dst_strides[0] = static_cast<int64_t>(row / 2);
      }
      bytes_ += copy.dims == 0 ? copy.run_bytes : copy.run_bytes * copy.counts[0];
      bytes_ = (bytes_ + kAlignment - 1) / kAlignment * kAlignment;
      copies_.push_back(copy);
    }
  }

  Status Make() {
    if (scatter_ != nullptr) return absl::OkStatus();
    std::unique_ptr<GpuScatter> scatter;
    DW_RETURN_IF_ERROR(FromGpu(kernels::GpuBuffer::Create(bytes_, &memory_)));
    DW_ASSIGN_OR_RETURN(HugeBuffer old_data, OnCpu(GpuSuite::kOld));
    DW_RETURN_IF_ERROR(FromGpu(kernels::GpuCopy(memory_->bytes(), old_data.data())));
    const Layout& layout = suite_.pair().layout;
    std::vector<kernels::GpuBox> boxes;
    for (size_t t = 0; t < copies_.size(); ++t) {
      StridedCopy copy = copies_[t];
      copy.src_offset -= static_cast<int64_t>(layout.offset(t));
      boxes.push_back({memory_->bytes().data(), copy});
    }
    DW_RETURN_IF_ERROR(FromGpu(GpuScatter::Create(0, boxes, &scatter)));
    for (const ChunkDelta& entry : suite_.pair().deltas.back()->chunks())
      payloads_.push_back(entry.payload);
    size_t next = 0;
    for (const ChunkDelta& entry : suite_.pair().deltas.back()->chunks()) {
      const Chunk& c = suite_.pair().chunks[entry.chunk];
      items_.push_back({.first_byte = c.offset - layout.offset(c.tensor),
                        .bytes = c.bytes,
                        .width = c.width,
                        .first_box = c.tensor,
                        .boxes = 1,
                        .payloads = {&payloads_[next++], 1}});
    }
    scatter_ = std::move(scatter);
    return absl::OkStatus();
  }

  /// Copies the payloads to the device: an engine's prepare, during which it serves.
  StatusOr<double> Load() {
    DW_RETURN_IF_ERROR(Make());
    return TimedOnGpu([&] { return scatter_->Load(items_); });
  }
  /// Adds the payloads, and then undoes them, which is not timed.
  StatusOr<double> Apply(const char* operation) {
    if (!loaded_) {
      DW_RETURN_IF_ERROR(Load().status());
      loaded_ = true;
    }
    DW_ASSIGN_OR_RETURN(const double seconds, TimedOnGpu([&] { return Run(false); }));
    if (!checked_) {
      checked_ = true;
      DW_ASSIGN_OR_RETURN(const bool right, Holds(GpuSuite::kNew));
      suite_.Expect(operation, right);
    }
    DW_RETURN_IF_ERROR(FromGpu(Run(true)));
    if (!taken_back_checked_) {
      taken_back_checked_ = true;
      DW_ASSIGN_OR_RETURN(const bool right, Holds(GpuSuite::kOld));
      suite_.Expect(std::string(operation) + ", taken back", right);
    }
    return seconds;
  }

 private:
  static constexpr uint64_t kAlignment = 256;

  kernels::GpuStatus Run(bool backwards) {
    const kernels::GpuStatus queued = scatter_->Queue(backwards, nullptr);
    const kernels::GpuStatus done = scatter_->Wait(nullptr);
    return queued.ok() ? done : queued;
  }
  /// Returns the memory at a version, as the oracle computes it.
  StatusOr<HugeBuffer> OnCpu(GpuSuite::Version v) const {
    DW_ASSIGN_OR_RETURN(HugeBuffer memory, HugeBuffer::Create(bytes_));
    for (const StridedCopy& copy : copies_) suite_.PlaceOnCpu(copy, suite_.host(v), memory.data());
    return memory;
  }
  StatusOr<bool> Holds(GpuSuite::Version v) const {
    DW_ASSIGN_OR_RETURN(const HugeBuffer wanted, OnCpu(v));
    DW_ASSIGN_OR_RETURN(HugeBuffer now, HugeBuffer::Create(bytes_));
    DW_RETURN_IF_ERROR(FromGpu(kernels::GpuCopy(now.data(), memory_->bytes())));
    constexpr size_t kPart = size_t{4} << 20;
    return ForAll(suite_.pool(), (bytes_ + kPart - 1) / kPart,
                  [&](size_t i) {
                    const size_t at = i * kPart, n = std::min<size_t>(kPart, bytes_ - at);
                    return std::memcmp(now.data().data() + at, wanted.data().data() + at, n) == 0
                               ? absl::OkStatus()
                               : absl::DataLossError("");
                  })
        .ok();
  }

  GpuSuite& suite_;
  std::vector<StridedCopy> copies_;  // from the version to the memory
  uint64_t bytes_ = 0;
  std::unique_ptr<kernels::GpuBuffer> memory_;
  std::vector<Bytes> payloads_;
  std::vector<kernels::GpuScatterItem> items_;
  std::unique_ptr<GpuScatter> scatter_;  // destroyed before the memory
  bool loaded_ = false, checked_ = false, taken_back_checked_ = false;
};

}  // namespace

void EngineCases(GpuSuite& suite) {
  const auto bytes = static_cast<double>(suite.pair().bytes());
  const double density = static_cast<double>(suite.pair().changed) /
                         static_cast<double>(std::max<uint64_t>(suite.pair().elements, 1));
  for (const bool cut : {false, true}) {
    Engine engine(suite, cut);
    const std::string kind = cut ? "engine-columns" : "engine";
    const std::string load = kind + "/load", apply = kind + "/apply";
    suite.Measure({.operation = load, .work = [&] { return engine.Load(); }});
    suite.Measure(
        {.operation = apply,
         .work = [&] { return engine.Apply(apply.c_str()); },
         .seconds_at_most = density <= kWantedUpToDensity ? bytes * kWantedSecondsPerByte : 0});
  }
}

}  // namespace deltawire::bench
