#include "sender/export/device/foreign_collective.h"

#include <sys/mman.h>

#include <algorithm>

#include "sender/export/gather/gpu_status.h"

namespace deltawire {
namespace {

// The size of the host memory between a callback and memory that the callback cannot write.
constexpr uint64_t kHopBytes = 8 << 20;
constexpr uint64_t kSourceAlignment = 64;

uint64_t Aligned(uint64_t bytes) {
  return (bytes + kSourceAlignment - 1) / kSourceAlignment * kSourceAlignment;
}

}  // namespace

StatusOr<std::unique_ptr<ForeignCollective>> ForeignCollective::Create(
    Collective& inner, std::span<const LiveTensor> live) {
  auto made = std::unique_ptr<ForeignCollective>(new ForeignCollective(inner));
  for (const LiveTensor& t : live) {
    if (t.read) made->reserved_bytes_ += Aligned(t.data.size());
  }
  if (made->reserved_bytes_ > 0) {
    void* address = mmap(nullptr, made->reserved_bytes_, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) return ErrnoError("reserving addresses for a gather's sources");
    made->reserved_ = address;
  }
  auto* next = static_cast<const std::byte*>(made->reserved_);
  for (const LiveTensor& t : live) {
    Bytes source = t.data;
    if (t.read) {
      source = {next, t.data.size()};
      next += Aligned(t.data.size());
    }
    made->sources_.push_back(source);
    const bool device = !t.read && t.device != kHostMemory;
    if (source.empty() || t.on_host() || (device && t.device == inner.device())) continue;
    made->foreign_[source.data()] = {source, &t};
    if (device && !made->queues_.contains(t.device)) {
      std::unique_ptr<kernels::GpuQueue> queue;
      DW_RETURN_IF_ERROR(FromGpu(kernels::GpuQueue::Create(t.device, &queue)));
      made->queues_[t.device] = std::move(queue);
    }
  }
  return made;
}

ForeignCollective::~ForeignCollective() {
  if (reserved_ != nullptr) munmap(reserved_, reserved_bytes_);
}

const LiveTensor* ForeignCollective::Find(Bytes bytes) const {
  auto after = foreign_.upper_bound(bytes.data());
  if (bytes.empty() || after == foreign_.begin()) return nullptr;
  const auto& [whole, live] = std::prev(after)->second;
  return bytes.data() < whole.data() + whole.size() ? live : nullptr;
}

Status ForeignCollective::CopyOne(const LiveTensor& live, const CopyJob& job, Deadline deadline) {
  if (!live.read) return FromGpu(queues_.at(live.device)->Copy(job.to, job.from));
  const Bytes whole = std::prev(foreign_.upper_bound(job.from.data()))->second.first;
  const auto offset = static_cast<uint64_t>(job.from.data() - whole.data());
  if (device() < 0) return live.read(offset, job.to);
  std::vector<std::byte> hop(std::min<uint64_t>(kHopBytes, job.from.size()));
  for (uint64_t at = 0; at < job.from.size(); at += kHopBytes) {
    const MutableBytes part = MutableBytes(hop).first(std::min(kHopBytes, job.from.size() - at));
    DW_RETURN_IF_ERROR(live.read(offset + at, part));
    const CopyJob onward{job.to.subspan(at, part.size()), part};
    DW_RETURN_IF_ERROR(inner_.Copy({&onward, 1}, deadline));
  }
  return absl::OkStatus();
}

Status ForeignCollective::Copy(std::span<const CopyJob> jobs, Deadline deadline) {
  std::vector<CopyJob> plain;
  Status status;
  for (const CopyJob& job : jobs) {
    const LiveTensor* const live = Find(job.from);
    if (live == nullptr) {
      plain.push_back(job);
    } else if (status.ok()) {
      status = CopyOne(*live, job, deadline);
      if (!status.ok()) status = Annotate(status, live->param.name);
    }
  }
  if (status.ok() && !plain.empty()) status = inner_.Copy(plain, deadline);
  for (const auto& [device, queue] : queues_) {
    const Status done = FromGpu(queue->Wait());
    if (status.ok()) status = done;
  }
  return status;
}

}  // namespace deltawire
