#include "sender/export/trainer_client.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "proto/convert.h"
#include "proto/deltawire/v1/trainer.grpc.pb.h"

namespace deltawire {
namespace {

// Tensors are marked in batches of about this many bytes: early enough to overlap, few enough
// calls.
constexpr uint64_t kMarkBytes = uint64_t{64} << 20;

// A shared, writable mapping of one half.
class HalfMapping {
 public:
  /// `populate`: of the whole file, which must have no holes then.
  static StatusOr<std::shared_ptr<HalfMapping>> Map(const std::string& path, bool populate) {
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return ErrnoError("open " + path);
    struct stat info {};
    if (fstat(fd, &info) != 0) {
      const Status error = ErrnoError("fstat " + path);
      close(fd);
      return error;
    }
    const auto size = static_cast<size_t>(info.st_size);
    // Pages are there already; populating only fills this process's page tables, once per half.
    const int flags = MAP_SHARED | (populate ? MAP_POPULATE : 0);
    void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, fd, 0);
    const int err = errno;
    close(fd);
    if (base == MAP_FAILED) return ErrnoError("mmap " + path, err);
    auto mapping = std::shared_ptr<HalfMapping>(new HalfMapping);
    mapping->bytes_ = {static_cast<std::byte*>(base), size};
    mapping->inode_ = info.st_ino;
    mapping->path_ = path;
    return mapping;
  }
  ~HalfMapping() { munmap(bytes_.data(), bytes_.size()); }

  MutableBytes bytes() const { return bytes_; }
  /// Still the file that has this path (an agent may have made its halves anew).
  bool Current(const std::string& path) const {
    struct stat info {};
    return path == path_ && stat(path.c_str(), &info) == 0 && info.st_ino == inode_;
  }

 private:
  HalfMapping() = default;
  MutableBytes bytes_;
  ino_t inode_ = 0;
  std::string path_;
};

}  // namespace

struct TrainerClient::Impl {
  std::string socket, model;
  uint32_t rank = 0, world = 1;
  std::chrono::milliseconds timeout;
  std::unique_ptr<v1::TrainerService::Stub> stub;
  std::optional<Layout> layout;
  std::vector<ByteRange> owned;  // of the data section; empty: all
  std::vector<std::shared_ptr<HalfMapping>> mappings;

  void Prepare(grpc::ClientContext& context) const {
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    context.set_wait_for_ready(true);
  }
  Status Check(const grpc::Status& status, std::string_view call) const {
    return FromGrpc(status, fmt::format("sender at {}: {}", socket, call));
  }
  StatusOr<std::shared_ptr<HalfMapping>> MapHalf(const std::string& path) {
    std::erase_if(mappings, [](const auto& m) { return m == nullptr; });
    for (auto& m : mappings) {
      if (m->Current(path)) return m;
    }
    if (mappings.size() >= 2) mappings.clear();
    DW_ASSIGN_OR_RETURN(std::shared_ptr<HalfMapping> fresh, HalfMapping::Map(path, owned.empty()));
    mappings.push_back(fresh);
    return fresh;
  }
};

struct TrainerClient::Offload::State {
  Impl* client = nullptr;
  uint64_t version = 0;
  uint64_t lease = 0;
  uint64_t data_offset = 0;
  double waited = 0;
  std::shared_ptr<HalfMapping> half;
  std::mutex mu;
  std::vector<uint32_t> written, unchanged;
  std::vector<uint32_t> pending;  // written, not yet marked
  uint64_t pending_bytes = 0;
};

TrainerClient::TrainerClient(std::string socket, std::string model, uint32_t rank, uint32_t world,
                             std::chrono::milliseconds timeout)
    : impl_(std::make_unique<Impl>()) {
  impl_->socket = std::move(socket);
  impl_->model = std::move(model);
  impl_->rank = rank;
  impl_->world = world;
  impl_->timeout = timeout;
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxControlMessage);
  args.SetMaxSendMessageSize(kMaxControlMessage);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  impl_->stub = v1::TrainerService::NewStub(
      grpc::CreateCustomChannel("unix:" + impl_->socket, grpc::InsecureChannelCredentials(), args));
}

TrainerClient::~TrainerClient() = default;

StatusOr<StateId> TrainerClient::Register(const Layout& layout,
                                          const std::vector<SideFile>& side_files, bool replace,
                                          const std::vector<ChunkRange>& owned) {
  DW_ASSIGN_OR_RETURN(const ChunkTable chunks, ChunkTable::Create(layout));
  DW_ASSIGN_OR_RETURN(const Coverage coverage, Coverage::Create(owned, chunks.size()));
  v1::RegisterModelRequest request;
  request.set_model(impl_->model);
  ToProto(layout, request.mutable_tensors_meta());
  ToProto(side_files, request.mutable_side_files());
  request.set_replace(replace);
  if (!coverage.all()) ToProto(coverage, request.mutable_owned());
  v1::RegisterModelResponse response;
  grpc::ClientContext context;
  impl_->Prepare(context);
  DW_RETURN_IF_ERROR(
      impl_->Check(impl_->stub->RegisterModel(&context, request, &response), "RegisterModel"));
  if (response.fingerprint() != layout.fingerprint().Hex()) {
    return Errorf(StatusCode::kInternal,
                  "sender at {} computes another fingerprint ({} against {}); "
                  "are both of the same release?",
                  impl_->socket, response.fingerprint(), layout.fingerprint().Hex());
  }
  impl_->layout = layout;
  impl_->owned.clear();
  if (!coverage.all()) impl_->owned = coverage.ByteRanges(chunks);
  return FromProto(response.published());
}

StatusOr<std::unique_ptr<TrainerClient::Offload>> TrainerClient::Begin(uint64_t version) {
  if (!impl_->layout) return absl::FailedPreconditionError("register the model before offloading");
  v1::BeginOffloadRequest request;
  request.set_model(impl_->model);
  request.set_version(version);
  request.set_rank(impl_->rank);
  request.set_world(impl_->world);
  v1::BeginOffloadResponse response;
  grpc::ClientContext context;
  impl_->Prepare(context);
  DW_RETURN_IF_ERROR(
      impl_->Check(impl_->stub->BeginOffload(&context, request, &response), "BeginOffload"));
  auto state = std::make_unique<Offload::State>();
  state->client = impl_.get();
  state->version = version;
  state->lease = response.lease();
  state->data_offset = response.data_offset();
  state->waited = response.waited_seconds();
  DW_ASSIGN_OR_RETURN(state->half, impl_->MapHalf(response.half_path()));
  if (state->data_offset + impl_->layout->total_bytes() > state->half->bytes().size()) {
    return Errorf(StatusCode::kInternal, "{} is smaller than the model; restart the sender",
                  response.half_path());
  }
  return std::unique_ptr<Offload>(new Offload(std::move(state)));
}

StatusOr<PublishedVersion> TrainerClient::WaitPublished(uint64_t version) {
  v1::WaitPublishedRequest request;
  request.set_model(impl_->model);
  request.set_version(version);
  v1::WaitPublishedResponse response;
  grpc::ClientContext context;
  impl_->Prepare(context);
  DW_RETURN_IF_ERROR(
      impl_->Check(impl_->stub->WaitPublished(&context, request, &response), "WaitPublished"));
  const v1::VersionInfo& info = response.info();
  PublishedVersion out;
  out.id = FromProto(info.id());
  out.model_bytes = info.model_bytes();
  out.delta_bytes = info.delta_bytes();
  out.full_bytes = info.full_bytes();
  out.elements = info.elements();
  out.changed_elements = info.changed_elements();
  out.trainer_wait_seconds = info.trainer_wait_seconds();
  out.offload_seconds = info.offload_seconds();
  out.publish_seconds = info.publish_seconds();
  out.ready_unix_nanos = info.ready_unix_nanos();
  return out;
}

TrainerClient::Offload::Offload(std::unique_ptr<State> state) : state_(std::move(state)) {}
TrainerClient::Offload::~Offload() = default;

double TrainerClient::Offload::waited_seconds() const { return state_->waited; }

MutableBytes TrainerClient::Offload::tensor(size_t t) {
  const Layout& layout = *state_->client->layout;
  return state_->half->bytes().subspan(state_->data_offset + layout.offset(t), layout.bytes(t));
}

Status TrainerClient::Offload::Write(size_t t, Bytes data) {
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
  return Written({&index, 1});
}

Status TrainerClient::Offload::Written(std::span<const uint32_t> tensors) {
  v1::MarkWrittenRequest request;
  {
    std::lock_guard lock(state_->mu);
    for (const uint32_t t : tensors) {
      state_->written.push_back(t);
      state_->pending.push_back(t);
      state_->pending_bytes += state_->client->layout->bytes(t);
    }
    // With several ranks a tensor is final only when all have written their share of it.
    if (state_->client->world > 1 || state_->pending_bytes < kMarkBytes) return absl::OkStatus();
    request.mutable_tensors()->Assign(state_->pending.begin(), state_->pending.end());
    state_->pending.clear();
    state_->pending_bytes = 0;
  }
  request.set_model(state_->client->model);
  request.set_lease(state_->lease);
  v1::MarkWrittenResponse response;
  grpc::ClientContext context;
  state_->client->Prepare(context);
  return state_->client->Check(state_->client->stub->MarkWritten(&context, request, &response),
                               "MarkWritten");
}

void TrainerClient::Offload::Unchanged(size_t t) {
  std::lock_guard lock(state_->mu);
  state_->unchanged.push_back(static_cast<uint32_t>(t));
}

Status TrainerClient::Offload::Ready() {
  v1::NotifyBufferReadyRequest request;
  {
    std::lock_guard lock(state_->mu);
    request.mutable_written()->Assign(state_->written.begin(), state_->written.end());
    request.mutable_unchanged()->Assign(state_->unchanged.begin(), state_->unchanged.end());
  }
  request.set_model(state_->client->model);
  request.set_version(state_->version);
  request.set_rank(state_->client->rank);
  request.set_world(state_->client->world);
  request.set_lease(state_->lease);
  v1::NotifyBufferReadyResponse response;
  grpc::ClientContext context;
  state_->client->Prepare(context);
  return state_->client->Check(
      state_->client->stub->NotifyBufferReady(&context, request, &response), "NotifyBufferReady");
}

}  // namespace deltawire
