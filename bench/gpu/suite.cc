#include "bench/gpu/suite.h"

#include <algorithm>

#include "kernels/place_pieces.h"

namespace deltawire::bench {
namespace {

constexpr const char* kBesideNames[] = {"", "device copy", "copy to device", "copy to host"};
constexpr size_t kCpuPieceBytes = size_t{4} << 20;

}  // namespace

Status FromGpu(const kernels::GpuStatus& status) {
  if (status.ok()) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "{}", status.message);
}

StatusOr<double> TimedOnGpu(const std::function<kernels::GpuStatus()>& call) {
  const auto start = SteadyClock::now();
  DW_RETURN_IF_ERROR(FromGpu(call()));
  return SecondsSince(start);
}

void Findings::Expect(const std::string& what, bool right) {
  if (right || std::ranges::find(wrong_, what) != wrong_.end()) return;
  wrong_.push_back(what);
  fmt::print("WRONG {}: not the CPU's bytes\n", what);
  std::fflush(stdout);
}

void Findings::Failed(const std::string& what, const Status& status) {
  failed_.push_back(what);
  fmt::print("FAILED {}: {}\n", what, MessageOf(status));
  std::fflush(stdout);
}

Status Findings::Result() const {
  std::string text;
  if (!wrong_.empty()) {
    text = fmt::format("{} results were not the CPU's: {}", wrong_.size(), fmt::join(wrong_, ", "));
  }
  if (!failed_.empty()) {
    text += fmt::format("{}{} cases failed: {}", text.empty() ? "" : "; ", failed_.size(),
                        fmt::join(failed_, ", "));
  }
  return text.empty() ? absl::OkStatus() : absl::DataLossError(text);
}

GpuSuite::GpuSuite(const Workload& pair, const std::filesystem::path& dir, ThreadPool& pool,
                   Bench& bench, Findings& findings)
    : pair_(pair), dir_(dir), pool_(pool), bench_(bench), findings_(findings) {
  for (uint32_t i = 0; i < pair.chunks.size(); ++i) {
    const Chunk& c = pair.chunks[i];
    chunks_.push_back({c.offset, c.bytes, c.width});
    all_.push_back(i);
  }
  for (const Version v : {kOld, kNew}) digests_[v] = DigestsOf(host(v));
  // Copies from memory that is not pinned are slower.
  for (const Version v : {kOld, kNew}) {
    if (kernels::GpuPin::Create(host(v), &pins_[v]).ok()) continue;
    fmt::print("a version could not be pinned: links are slower so\n");
  }
}

std::string GpuSuite::NameOf(std::string_view operation) const {
  return fmt::format("{}/{}", operation, pair_.name);
}

bool GpuSuite::AnyAsked(const std::vector<std::string>& operations) const {
  return std::ranges::any_of(
      operations, [this](const std::string& name) { return bench_.Asked(NameOf(name)); });
}

StatusOr<MutableBytes> GpuSuite::OnDevice(Version v) {
  if (device_[v] == nullptr) {
    DW_RETURN_IF_ERROR(FromGpu(kernels::GpuBuffer::Create(pair_.bytes(), &device_[v])));
    DW_RETURN_IF_ERROR(FromGpu(kernels::GpuCopy(device_[v]->bytes(), host(v))));
  }
  return device_[v]->bytes();
}

StatusOr<MutableBytes> GpuSuite::Spare() {
  constexpr size_t kSpare = 2;
  if (device_[kSpare] == nullptr) {
    DW_RETURN_IF_ERROR(FromGpu(kernels::GpuBuffer::Create(pair_.bytes(), &device_[kSpare])));
  }
  return device_[kSpare]->bytes();
}

StatusOr<kernels::GpuQueue*> GpuSuite::queue() {
  if (queue_ == nullptr) DW_RETURN_IF_ERROR(FromGpu(kernels::GpuQueue::Create(0, &queue_)));
  return queue_.get();
}

StatusOr<GpuSuite::Half> GpuSuite::half() {
  DW_ASSIGN_OR_RETURN(kernels::GpuQueue* const queue, this->queue());
  if (file_.bytes() == 0) {
    DW_ASSIGN_OR_RETURN(file_, MapNewFile(dir_ / "half", pair_.bytes()));
    std::error_code ignored;
    std::filesystem::remove(dir_ / "half", ignored);
  }
  Half half{{file_.base(), file_.bytes()}, {}};
  constexpr size_t kHalf = 2;
  if (pins_[kHalf] == nullptr) DW_RETURN_IF_ERROR(FromGpu(queue->Pin(half.bytes, &pins_[kHalf])));
  DW_RETURN_IF_ERROR(FromGpu(queue->Mapped(half.bytes, &half.mapped)));
  return half;
}

Status GpuSuite::Copy(MutableBytes to, Bytes from) {
  DW_ASSIGN_OR_RETURN(kernels::GpuQueue* const queue, this->queue());
  const Status queued = FromGpu(queue->Copy(to, from));
  const Status done = FromGpu(queue->Wait());
  return queued.ok() ? done : queued;
}

std::vector<uint64_t> GpuSuite::DigestsOf(Bytes half) const {
  std::vector<uint64_t> digests(chunks_.size());
  pool_.ParallelFor(digests.size(), [&](size_t i) {
    digests[i] =
        kernels::Scalar().digest(pair_.key, half.subspan(chunks_[i].offset, chunks_[i].bytes));
  });
  return digests;
}

bool GpuSuite::Holds(Bytes half, Version v) const { return DigestsOf(half) == digests_[v]; }

void GpuSuite::PlaceOnCpu(const kernels::StridedCopy& copy, Bytes from, MutableBytes to) const {
  const kernels::CopyPieces pieces(copy, {}, kCpuPieceBytes);
  pool_.ParallelFor(pieces.count(),
                    [&](size_t i) { kernels::Scalar().place(pieces[i], from, to); });
}

StatusOr<double> GpuSuite::RunBeside(Beside beside, uint64_t bytes) {
  MutableBytes to;
  Bytes from;
  if (beside == Beside::kCopyToHost) {
    DW_ASSIGN_OR_RETURN(const Half half, this->half());
    DW_ASSIGN_OR_RETURN(from, OnDevice(kNew));
    to = half.bytes;
  } else {
    DW_ASSIGN_OR_RETURN(to, Spare());
    from = host(kNew);
    if (beside == Beside::kDeviceCopy) {
      DW_ASSIGN_OR_RETURN(from, OnDevice(kNew));
    }
  }
  const auto start = SteadyClock::now();
  DW_RETURN_IF_ERROR(Copy(to.first(bytes), from.first(bytes)));
  return SecondsSince(start);
}

void GpuSuite::Measure(const Measured& measured) {
  const std::string name = NameOf(measured.operation);
  if (!bench_.Asked(name)) return;
  if (findings_.Late()) return bench_.NotMeasured(name, "no time is left");
  const uint64_t bytes = measured.bytes == 0 ? pair_.bytes() : measured.bytes;
  const std::string beside = kBesideNames[static_cast<size_t>(measured.beside)];
  std::vector<Figure> figures = {Throughput(name, bytes)};
  if (measured.beside != Beside::kNothing) {
    figures[0].Against(beside).AtLeast(measured.ratio_at_least);
  }
  if (measured.seconds_at_most > 0) {
    figures.push_back(Value("time", name).AtMost(measured.seconds_at_most));
  }
  std::vector<Case> cases;
  if (measured.beside != Beside::kNothing) {
    cases.push_back({beside, 1, [&] { return RunBeside(measured.beside, bytes); }, {}});
  }
  cases.push_back({name, 1, measured.work, figures});
  const Status status = bench_.Run(cases);
  if (!status.ok()) findings_.Failed(name, status);
}

}  // namespace deltawire::bench
