#include "sender/export/gather/nccl_collective.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "kernels/cuda/memory.h"
#include "sender/export/gather/gpu_status.h"

namespace deltawire {
namespace {

namespace gpu = kernels::gpu;
using Clock = Collective::Clock;
using Deadline = Collective::Deadline;

constexpr std::chrono::microseconds kFirstPoll{50};
constexpr std::chrono::microseconds kLastPoll{1000};
// The time limit for an intact communicator's end.
constexpr std::chrono::seconds kFinalize{10};

Status FromCuda(cudaError_t error, const char* what) { return FromGpu(gpu::Check(error, what)); }

using gpu::OnDevice;

class Event {
 public:
  Event() = default;
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  ~Event() {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }
  Status Record(const gpu::Stream& stream) {
    DW_RETURN_IF_ERROR(
        FromCuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "an event"));
    return FromCuda(cudaEventRecord(event_, stream.get()), "recording an event");
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// The state that handles and buffers share with the collective.
class Communicator {
 public:
  Communicator(std::unique_ptr<Collective> control, int device)
      : control_(std::move(control)), device_(device) {}
  ~Communicator();

  Status Create(Deadline deadline);
  // Polls until CUDA has reached `event`.
  Status WaitFor(const Event& event, Deadline deadline);
  // Polls until NCCL has accepted the last call.
  Status WaitUntilTaken(Deadline deadline);
  Status Nccl(ncclResult_t result, const char* what);
  Status Break(Status why);

  Collective& control() { return *control_; }
  int device() const { return device_; }
  bool is_root() const { return control_->rank() == control_->root(); }
  const Status& broken() const { return broken_; }
  ncclComm_t get() const { return comm_; }

  gpu::Stream transfers, from_device, copies;
  // The root's buffers: the device memory whose bytes must reach `host`.
  struct Mirror {
    MutableBytes host;
    std::byte* device;
  };
  std::vector<Mirror> mirrors;
  int pending = 0;

 private:
  template <typename Done>
  Status Poll(Deadline deadline, const char* what, const Done& done);

  std::unique_ptr<Collective> control_;
  const int device_;
  ncclComm_t comm_ = nullptr;
  Status broken_;
};

Communicator::~Communicator() {
  if (comm_ == nullptr) return;
  const OnDevice here(device_);
  // Finalizing needs every rank, so it must not wait longer than this for one of them.
  if (broken_.ok() && pending == 0) {
    const ncclResult_t begun = ncclCommFinalize(comm_);
    if ((begun == ncclSuccess || begun == ncclInProgress) &&
        WaitUntilTaken(Clock::now() + kFinalize).ok()) {
      (void)ncclCommDestroy(comm_);
      return;
    }
  }
  if (comm_ != nullptr) (void)ncclCommAbort(comm_);
}

Status Communicator::Create(Deadline deadline) {
  const OnDevice here(device_);
  Status ready = FromGpu(here.status());
  for (gpu::Stream* s : {&transfers, &from_device, &copies}) {
    if (ready.ok()) ready = FromGpu(s->Make());
  }
  ncclUniqueId id{};
  if (ready.ok() && is_root()) ready = Nccl(ncclGetUniqueId(&id), "an identity");
  if (!ready.ok()) return Break(std::move(ready));
  const Bytes mine = is_root() ? std::as_bytes(std::span(id.internal)) : Bytes();
  DW_ASSIGN_OR_RETURN(const auto all, control_->AllGather(mine, deadline));
  const std::vector<std::byte>& root_id = all[control_->root()];
  if (root_id.size() != sizeof id.internal) {
    return Break(absl::InternalError("the root's NCCL has another kind of identity"));
  }
  std::memcpy(id.internal, root_id.data(), root_id.size());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t begun =
      ncclCommInitRankConfig(&comm_, control_->size(), id, control_->rank(), &config);
  DW_RETURN_IF_ERROR(Nccl(begun, "meeting the other ranks"));
  return WaitUntilTaken(deadline);
}

Status Communicator::Nccl(ncclResult_t result, const char* what) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  const bool peer = result == ncclRemoteError || result == ncclSystemError;
  return Break(Errorf(peer ? StatusCode::kUnavailable : StatusCode::kInternal,
                      "rank {}: NCCL: {}: {} ({})", control_->rank(), what,
                      ncclGetErrorString(result), ncclGetLastError(comm_)));
}

template <typename Done>
Status Communicator::Poll(Deadline deadline, const char* what, const Done& done) {
  DW_RETURN_IF_ERROR(broken_);
  auto pause = kFirstPoll;
  for (;;) {
    ncclResult_t state = ncclSuccess;
    DW_RETURN_IF_ERROR(Nccl(ncclCommGetAsyncError(comm_, &state), what));
    DW_RETURN_IF_ERROR(Nccl(state, what));
    StatusOr<bool> is_done = done(state);
    if (!is_done.ok()) return Break(is_done.status());
    if (*is_done) return absl::OkStatus();
    if (Clock::now() >= deadline) {
      return Break(Errorf(StatusCode::kDeadlineExceeded,
                          "rank {}: NCCL: {} did not end in time; {}", control_->rank(), what,
                          is_root() ? "some rank hangs or is gone (NCCL does not say which)"
                                    : "the root hangs or is gone"));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLastPoll);
  }
}

Status Communicator::WaitUntilTaken(Deadline deadline) {
  return Poll(deadline, "a request",
              [](ncclResult_t state) -> StatusOr<bool> { return state == ncclSuccess; });
}

Status Communicator::WaitFor(const Event& event, Deadline deadline) {
  return Poll(deadline, "a transfer", [&](ncclResult_t) -> StatusOr<bool> {
    const cudaError_t state = cudaEventQuery(event.get());
    if (state == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    DW_RETURN_IF_ERROR(FromCuda(state, "a transfer"));
    return true;
  });
}

Status Communicator::Break(Status why) {
  if (!broken_.ok()) return broken_;
  broken_ = std::move(why);
  control_->Abort(broken_);
  if (comm_ != nullptr) (void)ncclCommAbort(std::exchange(comm_, nullptr));
  return broken_;
}

class NcclBuffer final : public CollectiveBuffer {
 public:
  explicit NcclBuffer(std::shared_ptr<Communicator> comm) : comm_(std::move(comm)) {}
  ~NcclBuffer() override {
    std::erase_if(comm_->mirrors,
                  [&](const auto& mirror) { return mirror.device == device_.data(); });
  }
  Status Make(Collective::BufferUse use, uint64_t bytes) {
    DW_RETURN_IF_ERROR(FromGpu(device_.Make(bytes)));
    bytes_ = {device_.data(), bytes};
    if (use == Collective::BufferUse::kSend) return absl::OkStatus();
    DW_RETURN_IF_ERROR(FromGpu(host_.Make(bytes)));
    bytes_ = {host_.data(), bytes};
    comm_->mirrors.push_back({bytes_, device_.data()});
    return absl::OkStatus();
  }
  MutableBytes bytes() override { return bytes_; }

 private:
  std::shared_ptr<Communicator> comm_;
  gpu::DeviceArray<std::byte> device_;
  gpu::PinnedArray<std::byte> host_;
  MutableBytes bytes_;
};

class NcclGather final : public PendingGather {
 public:
  NcclGather(std::shared_ptr<Communicator> comm, Event done)
      : comm_(std::move(comm)), done_(std::move(done)) {
    ++comm_->pending;
  }
  ~NcclGather() override {
    --comm_->pending;
    if (waited_) return;
    comm_->Break(absl::CancelledError("a gather was dropped before its end")).IgnoreError();
  }
  Status Wait(Deadline deadline) override {
    waited_ = true;
    return comm_->WaitFor(done_, deadline);
  }

 private:
  std::shared_ptr<Communicator> comm_;
  Event done_;
  bool waited_ = false;
};

class NcclCollective final : public Collective {
 public:
  explicit NcclCollective(std::shared_ptr<Communicator> comm) : comm_(std::move(comm)) {}

  int rank() const override { return comm_->control().rank(); }
  int size() const override { return comm_->control().size(); }
  int root() const override { return comm_->control().root(); }
  int device() const override { return comm_->device(); }
  Status Barrier(Deadline deadline) override { return AllGather({}, deadline).status(); }
  StatusOr<std::vector<std::vector<std::byte>>> AllGather(Bytes mine, Deadline deadline) override {
    DW_RETURN_IF_ERROR(comm_->broken());
    auto all = comm_->control().AllGather(mine, deadline);
    const auto code = all.status().code();
    if (!all.ok() && code != StatusCode::kInvalidArgument) return comm_->Break(all.status());
    return all;
  }
  StatusOr<std::unique_ptr<PendingGather>> StartGather(uint32_t slot, Bytes mine,
                                                       std::span<const MutableBytes> parts,
                                                       Deadline deadline) override;
  StatusOr<std::unique_ptr<CollectiveBuffer>> NewBuffer(BufferUse use, uint64_t bytes) override;
  bool CanSendFrom(Bytes bytes) const override { return bytes.empty() || IsOnDevice(bytes); }
  bool CanRead(Bytes bytes) const override { return bytes.empty() || !IsOnDevice(bytes); }
  Status Copy(std::span<const CopyJob> jobs, Deadline deadline) override;
  void Abort(const Status& why) override { comm_->Break(why).IgnoreError(); }

 private:
  static bool IsOnDevice(Bytes bytes) {
    cudaPointerAttributes attributes{};
    if (cudaPointerGetAttributes(&attributes, bytes.data()) != cudaSuccess) {
      (void)cudaGetLastError();
      return false;
    }
    return attributes.type == cudaMemoryTypeDevice;
  }
  StatusOr<std::byte*> MirrorOf(MutableBytes part) const;
  Status Exchange(Bytes mine, std::span<const MutableBytes> parts, Deadline deadline);
  Status BringToHost(std::span<const MutableBytes> parts, Event& done);

  std::shared_ptr<Communicator> comm_;
};

StatusOr<std::byte*> NcclCollective::MirrorOf(MutableBytes part) const {
  for (const Communicator::Mirror& m : comm_->mirrors) {
    if (part.data() >= m.host.data() &&
        part.data() + part.size() <= m.host.data() + m.host.size()) {
      return m.device + (part.data() - m.host.data());
    }
  }
  return absl::InvalidArgumentError("a gather over NCCL to memory that is not of its NewBuffer");
}

// Queues all of this rank's sends or receives as one group.
Status NcclCollective::Exchange(Bytes mine, std::span<const MutableBytes> parts,
                                Deadline deadline) {
  const cudaStream_t stream = comm_->transfers.get();
  DW_RETURN_IF_ERROR(comm_->Nccl(ncclGroupStart(), "a group's start"));
  Status queued;
  if (!comm_->is_root()) {
    queued = comm_->Nccl(ncclSend(mine.data(), mine.size(), ncclInt8, root(), comm_->get(), stream),
                         "a send");
  }
  for (int r = 0; comm_->is_root() && r < size() && queued.ok(); ++r) {
    if (r == rank() || parts[r].empty()) continue;
    StatusOr<std::byte*> device = MirrorOf(parts[r]);
    queued =
        !device.ok()
            ? device.status()
            : comm_->Nccl(ncclRecv(*device, parts[r].size(), ncclInt8, r, comm_->get(), stream),
                          "a receive");
  }
  const ncclResult_t ended = ncclGroupEnd();
  if (!queued.ok()) return comm_->Break(queued);
  DW_RETURN_IF_ERROR(comm_->Nccl(ended, "a group's end"));
  return comm_->WaitUntilTaken(deadline);
}

// Runs after the transfers, on a separate stream, so that the next bucket's transfers overlap.
Status NcclCollective::BringToHost(std::span<const MutableBytes> parts, Event& done) {
  Event received;
  DW_RETURN_IF_ERROR(received.Record(comm_->transfers));
  DW_RETURN_IF_ERROR(
      FromCuda(cudaStreamWaitEvent(comm_->from_device.get(), received.get(), 0), "a dependency"));
  for (int r = 0; r < size(); ++r) {
    if (r == rank() || parts[r].empty()) continue;
    DW_ASSIGN_OR_RETURN(const std::byte* device, MirrorOf(parts[r]));
    DW_RETURN_IF_ERROR(FromGpu(comm_->from_device.Copy(parts[r].data(), device, parts[r].size())));
  }
  return done.Record(comm_->from_device);
}

StatusOr<std::unique_ptr<PendingGather>> NcclCollective::StartGather(
    uint32_t, Bytes mine, std::span<const MutableBytes> parts, Deadline deadline) {
  DW_RETURN_IF_ERROR(comm_->broken());
  const OnDevice here(comm_->device());
  DW_RETURN_IF_ERROR(FromGpu(here.status()));
  const bool root = comm_->is_root();
  if (root && parts.size() != static_cast<size_t>(size())) {
    return Errorf(StatusCode::kInvalidArgument, "a gather to {} places, but there are {} ranks",
                  parts.size(), size());
  }
  if (!root && !CanSendFrom(mine)) {
    return absl::InvalidArgumentError(
        "a gather over NCCL from host memory: copy it into a buffer of NewBuffer first");
  }
  if (root || !mine.empty()) DW_RETURN_IF_ERROR(Exchange(mine, parts, deadline));
  Event done;
  Status queued = root ? BringToHost(parts, done) : done.Record(comm_->transfers);
  if (!queued.ok()) return comm_->Break(std::move(queued));
  return std::make_unique<NcclGather>(comm_, std::move(done));
}

StatusOr<std::unique_ptr<CollectiveBuffer>> NcclCollective::NewBuffer(BufferUse use,
                                                                      uint64_t bytes) {
  const OnDevice here(comm_->device());
  DW_RETURN_IF_ERROR(FromGpu(here.status()));
  auto buffer = std::make_unique<NcclBuffer>(comm_);
  DW_RETURN_IF_ERROR(buffer->Make(use, bytes));
  return std::unique_ptr<CollectiveBuffer>(std::move(buffer));
}

Status NcclCollective::Copy(std::span<const CopyJob> jobs, Deadline deadline) {
  DW_RETURN_IF_ERROR(comm_->broken());
  const OnDevice here(comm_->device());
  DW_RETURN_IF_ERROR(FromGpu(here.status()));
  for (const CopyJob& job : jobs) {
    DW_RETURN_IF_ERROR(
        FromGpu(comm_->copies.Copy(job.to.data(), job.from.data(), job.from.size())));
  }
  Event done;
  DW_RETURN_IF_ERROR(done.Record(comm_->copies));
  return comm_->WaitFor(done, deadline);
}

}  // namespace

StatusOr<std::unique_ptr<Collective>> NewNcclCollective(std::unique_ptr<Collective> control,
                                                        int device, Deadline deadline) {
  auto comm = std::make_shared<Communicator>(std::move(control), device);
  DW_RETURN_IF_ERROR(comm->Create(deadline));
  auto collective = std::make_unique<NcclCollective>(std::move(comm));
  DW_RETURN_IF_ERROR(collective->Barrier(deadline));
  return std::unique_ptr<Collective>(std::move(collective));
}

}  // namespace deltawire
