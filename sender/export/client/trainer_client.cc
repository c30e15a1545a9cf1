#include "sender/export/client/trainer_client.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>

#include "common/base/attempt.h"
#include "proto/convert.h"
#include "proto/deltawire/v1/trainer.grpc.pb.h"
#include "proto/dial.h"
#include "proto/grpc_lifetime.h"
#include "sender/export/client/half_mapping.h"
#include "sender/export/client/held_stream.h"
#include "sender/export/client/sender_socket.h"
#include "sender/export/client/strided_copy.h"
#include "sender/export/client/this_process.h"
#include "sender/export/client/trainer_socket.h"
#include "sender/export/client/written_marks.h"

namespace deltawire {
namespace {

constexpr std::chrono::milliseconds kGoneEvery{100};
constexpr std::chrono::milliseconds kNotedWithin{2000};
constexpr std::string_view kPass = "give its data directory as the endpoint";
constexpr size_t kCopyThreads = 4;  // a few saturate a memory bus, and a node has several ranks

// Returns "[2, 3]", for messages.
std::string ShapeText(std::span<const uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Returns row-major strides in bytes.
std::vector<int64_t> DenseStrides(std::span<const uint64_t> shape, unsigned element) {
  std::vector<int64_t> strides(shape.size());
  auto stride = static_cast<int64_t>(element);
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= static_cast<int64_t>(shape[i]);
  }
  return strides;
}

// Returns an error if `s` does not fit into a tensor of `meta`.
Status CheckSource(const TensorMeta& meta, const StridedSource& s) {
  const unsigned element = DTypeBytes(meta.dtype);
  bool fits = s.shape.size() == meta.shape.size();
  for (size_t i = 0; fits && i < s.shape.size(); ++i) {
    const uint64_t start = s.start.empty() ? 0 : s.start[i];
    fits = start <= meta.shape[i] && s.shape[i] <= meta.shape[i] - start;
  }
  if (s.element_bytes == element && fits &&
      (s.strides.empty() || s.strides.size() == s.shape.size()) &&
      (s.start.empty() || s.start.size() == s.shape.size())) {
    return absl::OkStatus();
  }
  return Errorf(StatusCode::kInvalidArgument,
                "tensor \"{}\" is {} {}; a block of shape {} with {} bytes an element, starting at "
                "{}, does not fit into it",
                meta.name, DTypeName(meta.dtype), ShapeText(meta.shape), ShapeText(s.shape),
                s.element_bytes, ShapeText(s.start));
}

// Waits for the call that `start` begins. It stays one call throughout, so that the agent counts
// its caller as waiting. `start` gets the callback for gRPC to call at the end.
grpc::Status Await(grpc::ClientContext& context, const std::function<bool()>& gone,
                   const std::function<void(std::function<void(grpc::Status)>)>& start) {
  std::mutex mu;
  std::condition_variable cv;
  std::optional<grpc::Status> done;
  start([&](grpc::Status status) {
    std::lock_guard lock(mu);
    done = std::move(status);
    cv.notify_all();  // under the lock, since the waiter destroys all this
  });
  const auto is_done = [&] { return done.has_value(); };
  std::unique_lock lock(mu);
  while (!cv.wait_for(lock, kGoneEvery, is_done)) {
    lock.unlock();
    const bool is_gone = gone && gone();
    if (is_gone) context.TryCancel();
    lock.lock();
    if (!is_gone) continue;
    cv.wait(lock, is_done);
    return {grpc::StatusCode::CANCELLED, "nobody waits any longer"};
  }
  return *done;
}

/// The stream that shows the agent that this rank lives while it writes. Destroying it ends the
/// offload if the rank was not ready.
using Attendance = HeldStream<v1::AttendOffloadRequest, v1::AttendOffloadEvent>;
/// The stream that shows the agent that this process uses the model, also between offloads.
using ModelUse = HeldStream<v1::AttendModelRequest, v1::AttendModelEvent>;

grpc::ChannelArguments SocketArguments() {
  grpc::ChannelArguments args;
  SetControlArguments(args);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  return args;
}

std::unique_ptr<v1::TrainerService::Stub> StubOf(const std::string& socket) {
  return v1::TrainerService::NewStub(grpc::CreateCustomChannel(
      "unix:" + socket, grpc::InsecureChannelCredentials(), SocketArguments()));
}

}  // namespace

struct TrainerClient::Impl {
  std::string socket, model, job;
  std::string publisher = ThisProcess();
  const uint64_t client = DrawAttempt();
  uint32_t rank = 0, world = 1;
  std::chrono::milliseconds timeout;
  std::unique_ptr<v1::TrainerService::Stub> stub;
  std::unique_ptr<ModelUse> use;  // destroyed before the stub
  std::function<bool()> gone;
  std::function<void(const std::string&)> notice;
  bool noticed = false;              // the notice of the sender's absence was given
  std::optional<SenderPeer> sender;  // at the last look; null: none, or the sender was restarted
  std::optional<Layout> layout;
  std::optional<ChunkTable> chunks;  // of the layout
  std::vector<ByteRange> owned;      // in the data section, as whole chunks; empty: all
  std::vector<std::shared_ptr<HalfMapping>> mappings;
  uint64_t last_version = 0, last_lease = 0, last_attempt = 0;
  /// The last version that this client made ready, unless it has been abandoned.
  uint64_t ready_version = 0, ready_attempt = 0;
  std::unique_ptr<GpuBase> base;  // of `chunks`; made when first used
  Hash128 based_on;               // the layout's fingerprint
  size_t copy_threads = 0;
  std::unique_ptr<ThreadPool> copiers;  // created on first use
  std::once_flag copiers_made;
  const pid_t process = ::getpid();

  Impl() = default;
  // A forked child has none of gRPC's threads, so the end of the stream and of the channel would
  // never come there. The parent owns both.
  ~Impl() {
    if (::getpid() == process) return;
    (void)use.release();
    (void)stub.release();
    (void)copiers.release();
    (void)base.release();
  }

  void Prepare(grpc::ClientContext& context) const {
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    context.set_wait_for_ready(true);
  }
  /// Gives the notice, before a wait, that no sender listens: the caller may have to start it.
  void SayIfAbsent() {
    if (!notice) return;
    const Status there = ProbeTrainerSocket(socket, kPass);
    if (there.ok() == !noticed) return;
    noticed = !there.ok();
    if (!there.ok()) notice(fmt::format("{}; waiting for it", MessageOf(there)));
  }
  Status Check(const grpc::Status& status, std::string_view call) const {
    using Code = grpc::StatusCode;
    if (status.error_code() == Code::DEADLINE_EXCEEDED ||
        status.error_code() == Code::UNAVAILABLE) {
      const Status there = ProbeTrainerSocket(socket, kPass);
      if (!there.ok()) {
        return Status(static_cast<StatusCode>(status.error_code()),
                      fmt::format("{} ({} waited for it)", MessageOf(there), call));
      }
    }
    return FromGrpc(status, fmt::format("sender at {}: {}", socket, call));
  }
  // Checks the process that listens at the socket, once for each of the sender's processes. Returns
  // OK if none listens yet, unless `answered` says that one has.
  Status CheckSender(bool answered) {
    if (sender) return absl::OkStatus();
    DW_ASSIGN_OR_RETURN(sender, LookAtSender(socket));
    if (sender) CloseInForkedChildren(sender->bound);
    if (sender || !answered) return absl::OkStatus();
    const Status there = ProbeTrainerSocket(socket, kPass);
    if (there.ok()) {
      return Errorf(StatusCode::kUnavailable, "the sender at {} was started anew; try again",
                    socket);
    }
    return Errorf(StatusCode::kUnavailable,
                  "the sender has answered, but now {}; if it still runs, its socket was removed: "
                  "restart it",
                  MessageOf(there));
  }
  // Opens the stream that shows that this process uses the model. Returns when the agent has noted
  // it, or cannot: for an agent of an older release the stream ends at once, without harm.
  // kNotFound: the model is being unregistered.
  Status ShowUse(std::chrono::milliseconds noted_within) {
    v1::AttendModelRequest request;
    request.set_model(model);
    request.set_rank(rank);
    request.set_publisher(publisher);
    request.set_client(client);
    auto fresh = std::make_unique<ModelUse>();
    fresh->Open(std::move(request), true,
                [this](auto*... call) { stub->async()->AttendModel(call...); });
    const grpc::Status noted = fresh->AwaitNoted(noted_within, gone);
    use = std::move(fresh);  // assigned last, so that the agent always sees one open stream
    if (noted.error_code() != grpc::StatusCode::NOT_FOUND) return absl::OkStatus();
    return Check(noted, "AttendModel");
  }
  bool Owns(uint64_t chunk_offset) const {
    const auto after =
        std::upper_bound(owned.begin(), owned.end(), chunk_offset,
                         [](uint64_t at, const ByteRange& r) { return at < r.last; });
    return owned.empty() || (after != owned.end() && after->first <= chunk_offset);
  }
  ThreadPool* Copiers() {
    std::call_once(copiers_made, [this] {
      const size_t cores = std::max(1u, std::thread::hardware_concurrency());
      const size_t threads = copy_threads == 0 ? std::min(kCopyThreads, cores) : copy_threads;
      if (threads > 1) copiers = std::make_unique<ThreadPool>(threads);
    });
    return copiers.get();
  }
  StatusOr<std::shared_ptr<HalfMapping>> MapHalf(const std::string& path) {
    std::erase_if(mappings, [](const auto& m) { return m == nullptr; });
    for (auto& m : mappings) {
      if (m->Current(path)) return m;
    }
    if (mappings.size() >= 2) mappings.clear();
    DW_ASSIGN_OR_RETURN(std::shared_ptr<HalfMapping> fresh,
                        HalfMapping::Map(path, sender->uid, owned.empty()));
    mappings.push_back(fresh);
    return fresh;
  }
  Status MapAndAttend(const v1::BeginOffloadResponse& granted, Offload::State& state);
  void Abandon(uint64_t lease, std::string_view reason) const;
};

struct TrainerClient::Offload::State {
  Impl* client = nullptr;
  uint64_t version = 0;
  uint64_t lease = 0;
  uint64_t attempt = 0;
  std::optional<Identity> published;  // the base for carried-over tensors; null: unknown
  bool takes_payloads = false;        // of changes of `published`
  MutableBytes data;
  double waited = 0;
  std::shared_ptr<HalfMapping> half;
  std::unique_ptr<Attendance> attendance;
  std::unique_ptr<WrittenMarks> marks;
  bool on_gpu = false;  // DiffOnGpu was called
  std::mutex mu;
  std::vector<uint32_t> written, unchanged;
  std::set<uint32_t> uncounted;   // tensors in `written` with bytes that Finished did not get
  std::vector<uint32_t> counted;  // by chunk, once Finished is called; only with one rank
};

StatusOr<std::vector<RegisteredModel>> ListModels(const std::string& socket,
                                                  std::chrono::milliseconds timeout) {
  KeepGrpc();
  const std::string path = TrainerSocketOf(socket);
  const auto stub = StubOf(path);
  v1::ListModelsResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  context.set_wait_for_ready(true);
  DW_RETURN_IF_ERROR(FromGrpc(stub->ListModels(&context, v1::ListModelsRequest(), &response),
                              fmt::format("sender at {}: ListModels", path)));
  std::vector<RegisteredModel> all;
  for (const v1::RegisteredModel& m : response.models()) {
    all.push_back({m.model(), FromProto(m.published()), m.total_bytes(), m.highest_version()});
  }
  return all;
}

TrainerClient::TrainerClient(std::string socket, std::string model, uint32_t rank, uint32_t world,
                             std::chrono::milliseconds timeout)
    : impl_(std::make_unique<Impl>()) {
  KeepGrpc();
  impl_->socket = TrainerSocketOf(std::move(socket));
  impl_->model = std::move(model);
  impl_->rank = rank;
  impl_->world = world;
  impl_->timeout = timeout;
  impl_->stub = StubOf(impl_->socket);
}

TrainerClient::~TrainerClient() = default;

StatusOr<Identity> TrainerClient::Register(const Layout& layout,
                                           const std::vector<SideFile>& side_files,
                                           RegisterOptions options) {
  DW_ASSIGN_OR_RETURN(ChunkTable chunks, ChunkTable::Create(layout));
  DW_ASSIGN_OR_RETURN(const Coverage coverage, Coverage::Create(options.owned, chunks.size()));
  v1::RegisterModelRequest request;
  request.set_model(impl_->model);
  ToProto(layout, request.mutable_tensors_meta());
  if (!options.keep_side_files) ToProto(side_files, request.mutable_side_files());
  request.set_replace(options.replace);
  request.set_keep_side_files(options.keep_side_files);
  if (!coverage.all()) ToProto(coverage, request.mutable_owned());
  v1::RegisterModelResponse response;
  impl_->SayIfAbsent();
  grpc::ClientContext context;
  impl_->Prepare(context);
  const auto start = [&](std::function<void(grpc::Status)> done) {
    impl_->stub->async()->RegisterModel(&context, &request, &response, std::move(done));
  };
  impl_->sender.reset();
  DW_RETURN_IF_ERROR(impl_->CheckSender(false));
  DW_RETURN_IF_ERROR(impl_->Check(Await(context, impl_->gone, start), "RegisterModel"));
  DW_RETURN_IF_ERROR(impl_->CheckSender(true));
  if (response.fingerprint() != layout.fingerprint().Hex()) {
    return Errorf(StatusCode::kInternal,
                  "sender at {} computes another fingerprint ({} against {}); "
                  "are both of the same release?",
                  impl_->socket, response.fingerprint(), layout.fingerprint().Hex());
  }
  impl_->layout = layout;
  impl_->owned.clear();
  if (!coverage.all()) impl_->owned = coverage.ByteRanges(chunks);
  if (impl_->base != nullptr && impl_->based_on != layout.fingerprint()) impl_->base.reset();
  impl_->based_on = layout.fingerprint();
  impl_->chunks = std::move(chunks);
  // Open a new stream each time, because the agent may have another model under this name now.
  DW_RETURN_IF_ERROR(impl_->ShowUse(std::min(impl_->timeout, kNotedWithin)));
  return FromProto(response.published());
}

StatusOr<std::unique_ptr<TrainerClient::Offload>> TrainerClient::Begin(uint64_t version,
                                                                       uint64_t attempt,
                                                                       bool again) {
  if (!impl_->layout) return absl::FailedPreconditionError("register the model before offloading");
  v1::BeginOffloadRequest request;
  request.set_model(impl_->model);
  request.set_version(version);
  request.set_rank(impl_->rank);
  request.set_world(impl_->world);
  request.set_fingerprint(impl_->layout->fingerprint().Hex());
  request.set_attempt(attempt);
  request.set_again(again);
  request.set_publisher(impl_->publisher);
  request.set_client(impl_->client);
  request.set_job(impl_->job);
  // The agent was restarted. Open the stream before the call, so that from the grant on the agent
  // notices this process's death.
  if (impl_->use->done()) {
    impl_->sender.reset();
    DW_RETURN_IF_ERROR(impl_->CheckSender(false));
    (void)impl_->ShowUse({});
  }
  v1::BeginOffloadResponse response;
  impl_->SayIfAbsent();
  grpc::ClientContext context;
  impl_->Prepare(context);
  const auto start = [&](std::function<void(grpc::Status)> done) {
    impl_->stub->async()->BeginOffload(&context, &request, &response, std::move(done));
  };
  DW_RETURN_IF_ERROR(impl_->Check(Await(context, impl_->gone, start), "BeginOffload"));
  auto state = std::make_unique<Offload::State>();
  state->client = impl_.get();
  state->version = version;
  state->lease = response.lease();
  state->attempt = response.attempt();
  state->takes_payloads = response.takes_payloads();
  if (response.has_published()) state->published = FromProto(response.published());
  state->waited = response.waited_seconds();
  const Status attended = impl_->MapAndAttend(response, *state);
  if (!attended.ok()) {
    // Otherwise the other ranks would wait for this one.
    impl_->Abandon(state->lease, MessageOf(attended));
    return attended;
  }
  state->marks = std::make_unique<WrittenMarks>(
      *impl_->stub,
      WrittenMarks::Writer{impl_->model, response.lease(), impl_->rank, impl_->world > 1},
      [impl = impl_.get()](grpc::ClientContext& of_marks) { impl->Prepare(of_marks); });
  impl_->last_version = version;
  impl_->last_lease = response.lease();
  impl_->last_attempt = state->attempt;
  return std::unique_ptr<Offload>(new Offload(std::move(state)));
}

Status TrainerClient::Impl::MapAndAttend(const v1::BeginOffloadResponse& granted,
                                         Offload::State& state) {
  DW_RETURN_IF_ERROR(CheckSender(true));
  DW_ASSIGN_OR_RETURN(state.half, MapHalf(granted.half_path()));
  const MutableBytes file = state.half->bytes();
  if (granted.data_offset() + layout->total_bytes() > file.size()) {
    return Errorf(StatusCode::kInternal, "{} is smaller than the model; restart the sender",
                  granted.half_path());
  }
  state.data = file.subspan(granted.data_offset(), layout->total_bytes());
  v1::AttendOffloadRequest attend;
  attend.set_model(model);
  attend.set_lease(granted.lease());
  attend.set_rank(rank);
  state.attendance = std::make_unique<Attendance>();
  state.attendance->Open(std::move(attend), false,
                         [this](auto*... call) { stub->async()->AttendOffload(call...); });
  return Check(state.attendance->AwaitNoted(timeout, gone), "AttendOffload");
}

void TrainerClient::Impl::Abandon(uint64_t lease, std::string_view reason) const {
  v1::AbandonOffloadRequest request;
  request.set_model(model);
  request.set_lease(lease);
  request.set_rank(rank);
  request.set_reason(std::string(reason));
  v1::AbandonOffloadResponse response;
  grpc::ClientContext context;
  Prepare(context);
  context.set_wait_for_ready(false);
  // If this call fails, the offload is over, or the end of the attendance notifies the agent.
  (void)stub->AbandonOffload(&context, request, &response);
}

const std::optional<Layout>& TrainerClient::layout() const { return impl_->layout; }

void TrainerClient::SetTimeout(std::chrono::milliseconds timeout) { impl_->timeout = timeout; }

void TrainerClient::SetCopyThreads(size_t threads) { impl_->copy_threads = threads; }

void TrainerClient::SetGone(std::function<bool()> gone) { impl_->gone = std::move(gone); }

void TrainerClient::SetNotice(std::function<void(const std::string&)> notice) {
  impl_->notice = std::move(notice);
}

void TrainerClient::SetPublisher(std::string publisher) { impl_->publisher = std::move(publisher); }

void TrainerClient::SetJob(std::string job) { impl_->job = std::move(job); }

StatusOr<VersionInfo> TrainerClient::WaitPublished(uint64_t version,
                                                   std::chrono::milliseconds timeout) {
  v1::WaitPublishedRequest request;
  request.set_model(impl_->model);
  request.set_version(version);
  if (version == impl_->last_version) {
    request.set_lease(impl_->last_lease);
    request.set_attempt(impl_->last_attempt);
  }
  v1::WaitPublishedResponse response;
  const auto deadline =
      std::chrono::system_clock::now() + (timeout.count() != 0 ? timeout : impl_->timeout);
  const auto ask = [&] {
    impl_->SayIfAbsent();
    grpc::ClientContext context;
    impl_->Prepare(context);
    context.set_deadline(deadline);
    const auto start = [&](std::function<void(grpc::Status)> done) {
      impl_->stub->async()->WaitPublished(&context, &request, &response, std::move(done));
    };
    return impl_->Check(Await(context, impl_->gone, start), "WaitPublished");
  };
  Status asked = ask();
  // A restart of the sender may have broken the connection, and its new process knows the version
  // by its attempt. Asking changes nothing there, so ask once more.
  if (absl::IsUnavailable(asked)) asked = ask();
  if (absl::IsAborted(asked) && version == impl_->ready_version) impl_->ready_version = 0;
  DW_RETURN_IF_ERROR(asked);
  return FromProto<VersionInfo>(response.info());
}

TrainerClient::Offload::Offload(std::unique_ptr<State> state) : state_(std::move(state)) {}
TrainerClient::Offload::~Offload() {
  // As in ~Impl, nothing would end there.
  if (state_ != nullptr && ::getpid() != state_->client->process) (void)state_.release();
}

double TrainerClient::Offload::waited_seconds() const { return state_->waited; }

uint64_t TrainerClient::Offload::attempt() const { return state_->attempt; }

MutableBytes TrainerClient::Offload::data() { return state_->data; }

std::shared_ptr<HalfMapping> TrainerClient::Offload::whole_mapping() const {
  return state_->client->owned.empty() ? state_->half : nullptr;
}

MutableBytes TrainerClient::Offload::tensor(size_t t) {
  const Layout& layout = *state_->client->layout;
  return state_->data.subspan(layout.offset(t), layout.bytes(t));
}

Status TrainerClient::Offload::Write(size_t t, Bytes data, Share share) {
  const MutableBytes to = tensor(t);
  if (data.size() != to.size()) {
    return Errorf(StatusCode::kInvalidArgument, "tensor \"{}\" has {} bytes, was given {}",
                  state_->client->layout->tensor(t).name, to.size(), data.size());
  }
  const uint64_t begin = state_->client->layout->offset(t), end = begin + to.size();
  const auto copy = [&](uint64_t first, uint64_t last) {
    std::memcpy(to.data() + (first - begin), data.data() + (first - begin), last - first);
  };
  const std::vector<ByteRange>& owned = state_->client->owned;
  if (owned.empty()) copy(begin, end);
  auto range = std::upper_bound(owned.begin(), owned.end(), begin,
                                [](uint64_t at, const ByteRange& r) { return at < r.last; });
  for (; range != owned.end() && range->first < end; ++range) {
    copy(std::max(begin, range->first), std::min(end, range->last));
  }
  const auto index = static_cast<uint32_t>(t);
  return Written({&index, 1}, share);
}

StatusOr<TrainerClient::Offload::BlockStrides> TrainerClient::Offload::StridesOf(
    size_t t, const StridedSource& source) const {
  DW_RETURN_IF_ERROR(Check());
  const TensorMeta& meta = state_->client->layout->tensor(t);
  DW_RETURN_IF_ERROR(CheckSource(meta, source));
  BlockStrides strides;
  strides.to = DenseStrides(meta.shape, source.element_bytes);
  strides.from.assign(source.strides.begin(), source.strides.end());
  if (source.strides.empty()) strides.from = DenseStrides(source.shape, source.element_bytes);
  for (size_t i = 0; i < source.start.size(); ++i) {
    strides.first += source.start[i] * static_cast<uint64_t>(strides.to[i]);
  }
  return strides;
}

Status TrainerClient::Offload::Copy(size_t t, const StridedSource& source) {
  DW_ASSIGN_OR_RETURN(const BlockStrides strides, StridesOf(t, source));
  CopyStrided(tensor(t).data() + strides.first, strides.to, source.data, strides.from, source.shape,
              source.element_bytes, state_->client->Copiers());
  return absl::OkStatus();
}

StatusOr<BlockCopy> TrainerClient::Offload::CopyFor(size_t t, const StridedSource& source) const {
  DW_ASSIGN_OR_RETURN(const BlockStrides strides, StridesOf(t, source));
  DW_ASSIGN_OR_RETURN(BlockCopy block, BlockCopyOf(strides.to, source.data, strides.from,
                                                   source.shape, source.element_bytes));
  block.copy.dst_offset = static_cast<int64_t>(strides.first);
  return block;
}

StatusOr<std::vector<DiffedChunk>> TrainerClient::Offload::DiffOnGpu(
    std::span<const DevicePiece> pieces, Share share) {
  DW_RETURN_IF_ERROR(Check());
  Impl& client = *state_->client;
  if (share == Share::kPart && client.world > 1) return std::vector<DiffedChunk>();
  if (client.base == nullptr) {
    client.base = std::make_unique<GpuBase>(*client.chunks, client.layout->fingerprint().lo);
  }
  if (!std::exchange(state_->on_gpu, true)) {
    client.base->Begin(state_->takes_payloads ? state_->published : std::nullopt, state_->version,
                       state_->attempt);
  }
  return client.base->Write(pieces, state_->data);
}

std::vector<kernels::StridedCopy> TrainerClient::Offload::OutsideOf(
    std::span<const DiffedChunk> diffed, uint32_t t, const kernels::StridedCopy& copy,
    const kernels::Convert& convert) const {
  return deltawire::OutsideOf(diffed, *state_->client->chunks, t, copy, convert);
}

Status TrainerClient::Offload::Diffed(std::span<const DiffedChunk> payloads) {
  std::vector<WrittenBytes> counted;
  for (const DiffedChunk& p : payloads) counted.push_back({p.chunk, p.length});
  CountHere(counted);
  return state_->client->Check(state_->marks->AddPayloads(payloads), "MarkWritten");
}

std::string TrainerClient::Offload::diffed_on() const {
  return state_->on_gpu ? state_->client->base->Describe() : "";
}

void TrainerClient::Offload::CountHere(std::span<const WrittenBytes> counted) {
  const Impl& client = *state_->client;
  if (client.world != 1) return;
  std::lock_guard lock(state_->mu);
  state_->counted.resize(client.chunks->size());
  for (const WrittenBytes& c : counted) state_->counted[c.chunk] += c.bytes;
}

Status TrainerClient::Offload::Finished(uint32_t t, const Destination& bytes) {
  const Impl& client = *state_->client;
  const std::vector<WrittenBytes> counted = CountWrittenBytes(*client.chunks, t, bytes);
  CountHere(counted);
  return client.Check(state_->marks->AddChunks(counted), "MarkWritten");
}

Status TrainerClient::Offload::FinishedBlock(uint32_t t, std::span<const uint64_t> start,
                                             std::span<const uint64_t> shape) {
  const TensorMeta& meta = state_->client->layout->tensor(t);
  const unsigned element = DTypeBytes(meta.dtype);
  DW_RETURN_IF_ERROR(CheckSource(meta, {nullptr, element, shape, {}, start}));
  return Finished(t, Destination::OfBlock(meta.shape, element, start, shape));
}

Status TrainerClient::Offload::Written(std::span<const uint32_t> tensors, Share share) {
  const Impl& client = *state_->client;
  {
    std::lock_guard lock(state_->mu);
    state_->written.insert(state_->written.end(), tensors.begin(), tensors.end());
    if (share != Share::kCounted) {
      state_->uncounted.insert(tensors.begin(), tensors.end());
    }
  }
  if (share == Share::kCounted) return absl::OkStatus();
  // With several ranks a tensor is final only when all have written their shares of it.
  if (client.world > 1 && share == Share::kPart) return absl::OkStatus();
  uint64_t bytes = 0;
  for (const uint32_t t : tensors) bytes += client.layout->bytes(t);
  return client.Check(state_->marks->AddTensors(tensors, bytes), "MarkWritten");
}

void TrainerClient::Offload::Unchanged(size_t t) {
  std::lock_guard lock(state_->mu);
  state_->unchanged.push_back(static_cast<uint32_t>(t));
}

Status TrainerClient::Offload::Check() const {
  return state_->client->Check(state_->attendance->status(), "offload");
}

void TrainerClient::Offload::Abandon(const std::string& reason) {
  state_->client->Abandon(state_->lease, reason);
  state_->attendance->End();
}

// Without other writers, bytes that this rank's blocks leave out would be published as they were
// before the offload: bytes of an older version, or zeros.
Status TrainerClient::Offload::CheckCounted() {
  const Impl& client = *state_->client;
  if (client.world != 1) return absl::OkStatus();  // only the agent knows of all ranks
  std::lock_guard lock(state_->mu);
  const std::set<uint32_t> written(state_->written.begin(), state_->written.end());
  for (const uint32_t t : written) {
    if (state_->uncounted.contains(t)) continue;
    const ChunkTable& chunks = *client.chunks;
    uint64_t wanted = 0, counted = 0;
    for (uint32_t c = chunks.first_of_tensor(t); c < chunks.end_of_tensor(t); ++c) {
      if (!client.Owns(chunks[c].offset)) continue;
      wanted += chunks[c].bytes;
      counted += state_->counted.empty() ? 0 : state_->counted[c];
    }
    if (counted == wanted) continue;
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\", version {}: the only rank (of a world of 1) has written {} of {} "
                  "bytes of tensor {}; where other ranks have the rest, make every rank's client "
                  "with the number of ranks",
                  client.model, state_->version, counted, wanted, client.layout->tensor(t).name);
  }
  return absl::OkStatus();
}

// The rank declares tensors unchanged since the version that it offloaded last. If the agent
// carried them over from another version, it would publish bytes that no rank has offered.
Status TrainerClient::Offload::CheckCarried() {
  Impl& client = *state_->client;
  const std::optional<Identity>& from = state_->published;
  std::lock_guard lock(state_->mu);
  if (state_->unchanged.empty() || client.ready_version == 0 || !from) return absl::OkStatus();
  if (from->id.version == client.ready_version && from->attempt == client.ready_attempt) {
    return absl::OkStatus();
  }
  // This error informs the caller, so the next declaration is relative to the published version.
  return Errorf(
      StatusCode::kFailedPrecondition,
      "model \"{}\", version {}: {} tensors are declared unchanged since version {}, which "
      "was not published or was rolled back, and would be carried over from version {}; "
      "offload again with these tensors, or declare what equals version {}",
      client.model, state_->version, state_->unchanged.size(),
      std::exchange(client.ready_version, 0), from->id.version, from->id.version);
}

Status TrainerClient::Offload::Ready() {
  DW_RETURN_IF_ERROR(CheckCounted());
  DW_RETURN_IF_ERROR(CheckCarried());
  v1::NotifyBufferReadyRequest request;
  request.set_diffed_on(diffed_on());
  {
    std::lock_guard lock(state_->mu);
    if (state_->on_gpu) {
      for (const uint32_t t : state_->unchanged) state_->client->base->Carry(t);
    }
    std::vector<uint32_t>& written = state_->written;
    std::sort(written.begin(), written.end());
    written.erase(std::unique(written.begin(), written.end()), written.end());
    request.mutable_written()->Assign(written.begin(), written.end());
    request.mutable_unchanged()->Assign(state_->unchanged.begin(), state_->unchanged.end());
  }
  // The agent must know this rank's claims (kWhole) before the other ranks are ready, and what its
  // GPU has diffed.
  if (state_->client->world > 1 || state_->on_gpu) {
    DW_RETURN_IF_ERROR(state_->client->Check(state_->marks->Flush(), "MarkWritten"));
  }
  request.set_model(state_->client->model);
  request.set_version(state_->version);
  request.set_rank(state_->client->rank);
  request.set_world(state_->client->world);
  request.set_lease(state_->lease);
  v1::NotifyBufferReadyResponse response;
  grpc::ClientContext context;
  state_->client->Prepare(context);
  Impl& client = *state_->client;
  DW_RETURN_IF_ERROR(client.Check(client.stub->NotifyBufferReady(&context, request, &response),
                                  "NotifyBufferReady"));
  client.ready_version = state_->version;
  client.ready_attempt = state_->attempt;
  return absl::OkStatus();
}

}  // namespace deltawire
