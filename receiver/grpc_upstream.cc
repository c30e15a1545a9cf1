#include "receiver/grpc_upstream.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "common/wire/wire_versions.h"
#include "proto/convert.h"
#include "proto/deltawire/v1/sender.grpc.pb.h"
#include "proto/dial.h"
#include "receiver/replica/request_queue.h"

namespace deltawire::receiver {
namespace {

using Seconds = std::chrono::duration<double>;

/// The time for which a call waits for its answer. A request that is lost on a connection which
/// survives is never answered, and a receiver must not be stale for more than 5 s after it.
constexpr Seconds kShortCall{3};

/// The same for calls whose answers may take longer: tensors_meta and side files have megabytes and
/// may come over a slow link, and for an OpenPull with corrupt chunks the sender digests their
/// bytes first. Such a call waits four times as long as the last answer took, and no less than a
/// short one. After a call that got no answer in time, the next one waits twice as long.
class Patience {
 public:
  Seconds deadline() const { return deadline_; }
  void Answered(Seconds elapsed) { deadline_ = std::clamp(4 * elapsed, kShortCall, kLongest); }
  void NotAnswered() { deadline_ = std::min(2 * deadline_, kLongest); }

 private:
  static constexpr Seconds kLongest{30};
  Seconds deadline_ = kShortCall;
};

// One attachment: its stream, and the two threads that serve it. The reading thread also dials,
// since that may take seconds, and the caller attends to other agents meanwhile.
class Attachment {
 public:
  Attachment(std::shared_ptr<v1::PullService::Stub> stub,
             std::function<void(const SenderEvent&)> event,
             std::function<void(const Status&)> ended, std::string name, v1::ReceiverReport first)
      : stub_(std::move(stub)),
        event_(std::move(event)),
        ended_(std::move(ended)),
        name_(std::move(name)) {
    context_.set_wait_for_ready(false);
    queue_.emplace_back(std::move(first), true);
    reader_ = std::thread([this] { Read(); });
  }

  ~Attachment() {
    context_.TryCancel();
    Close();
    reader_.join();
  }

  // Ends the attachment as a lost connection would.
  void Break() { context_.TryCancel(); }

  // Only the newest progress report matters, but every answer to a request must arrive. A peer that
  // asks and never reads the answers loses the connection.
  void Send(v1::ReceiverReport report, bool must_arrive) {
    std::lock_guard lock(mu_);
    if (queue_.size() > RequestQueue::kMostRemote) return context_.TryCancel();
    if (!queue_.empty() && !queue_.back().second) queue_.pop_back();
    queue_.emplace_back(std::move(report), must_arrive);
    cv_.notify_all();
  }

 private:
  void Close() {
    std::lock_guard lock(mu_);
    closed_ = true;
    cv_.notify_all();
  }

  void Read() {
    const auto stream = stub_->Attach(&context_);
    std::thread writer([this, &stream] { Write(*stream); });
    v1::SenderEvent event;
    while (stream->Read(&event)) event_(deltawire::FromProto(event));
    Close();
    writer.join();
    ended_(FromGrpc(stream->Finish(), name_));
  }

  void Write(grpc::ClientReaderWriter<v1::ReceiverReport, v1::SenderEvent>& stream) {
    std::unique_lock lock(mu_);
    while (true) {
      cv_.wait(lock, [this] { return closed_ || !queue_.empty(); });
      if (closed_) return;
      const v1::ReceiverReport report = std::move(queue_.front().first);
      queue_.pop_front();
      lock.unlock();
      const bool written = stream.Write(report);
      lock.lock();
      if (!written) return;
    }
  }

  const std::shared_ptr<v1::PullService::Stub> stub_;
  const std::function<void(const SenderEvent&)> event_;
  const std::function<void(const Status&)> ended_;
  const std::string name_;
  grpc::ClientContext context_;
  std::mutex mu_;
  std::condition_variable cv_;
  bool closed_ = false;
  std::deque<std::pair<v1::ReceiverReport, bool>> queue_;
  std::thread reader_;
};

class GrpcUpstream : public Upstream {
 public:
  GrpcUpstream(std::string sender, std::string receiver_id,
               std::shared_ptr<security::Credentials> credentials, SiteOffer offer)
      : sender_(std::move(sender)),
        receiver_id_(std::move(receiver_id)),
        credentials_(std::move(credentials)),
        offer_(std::move(offer)) {}

  ~GrpcUpstream() override { Detach(); }

  const std::string& address() const override { return sender_; }
  double round_trip() const override {
    std::lock_guard lock(mu_);
    return round_trip_;
  }

  StatusOr<ModelDescription> Describe(const std::string& model) override {
    v1::DescribeModelRequest request;
    request.set_model(model);
    v1::DescribeModelResponse response;
    DW_RETURN_IF_ERROR(
        LongCall("DescribeModel", [&](v1::PullService::Stub& stub, grpc::ClientContext* context) {
          return stub.DescribeModel(context, request, &response);
        }));
    DW_ASSIGN_OR_RETURN(std::vector<TensorMeta> meta,
                        deltawire::FromProto(response.tensors_meta()));
    DW_ASSIGN_OR_RETURN(Layout layout, Layout::Create(std::move(meta)));
    if (layout.fingerprint().Hex() != response.fingerprint()) {
      return Errorf(StatusCode::kDataLoss,
                    "sender {}: model \"{}\": its fingerprint {} is not that of its tensors_meta; "
                    "are both ends of the same release?",
                    sender_, model, response.fingerprint());
    }
    if (response.digest_seed() != layout.fingerprint().lo) {
      return Errorf(StatusCode::kDataLoss,
                    "sender {}: model \"{}\": its digest seed {:016x} is not of its layout: the "
                    "answer was changed on its way",
                    sender_, model, response.digest_seed());
    }
    DW_ASSIGN_OR_RETURN(const ChunkTable chunks, ChunkTable::Create(layout));
    auto owned = Coverage::Create(deltawire::FromProto(response.owned()), chunks.size());
    if (!owned.ok()) {
      return Annotate(owned.status(),
                      fmt::format("sender {}: model \"{}\", owned", sender_, model));
    }
    ModelDescription d{.layout = std::move(layout),
                       .digest_seed = response.digest_seed(),
                       .side_files = deltawire::FromProto(response.side_files()),
                       .side_files_hash = response.side_files_hash(),
                       .owned = std::move(*owned),
                       .lineage = deltawire::FromProto(response.newest().id()).lineage};
    DW_RETURN_IF_ERROR(CheckSideFiles(model, d.side_files, d.side_files_hash));
    return d;
  }

  StatusOr<Identity> Newest(const std::string& model) override {
    v1::GetNewestRequest request;
    request.set_model(model);
    v1::GetNewestResponse response;
    DW_RETURN_IF_ERROR(Call("GetNewest", kShortCall,
                            [&](v1::PullService::Stub& stub, grpc::ClientContext* context) {
                              return stub.GetNewest(context, request, &response);
                            }));
    return deltawire::FromProto(response.newest());
  }

  StatusOr<std::vector<SideFile>> SideFiles(const std::string& model, uint64_t hash) override {
    v1::GetSideFilesRequest request;
    request.set_model(model);
    request.set_hash(hash);
    v1::GetSideFilesResponse response;
    DW_RETURN_IF_ERROR(
        LongCall("GetSideFiles", [&](v1::PullService::Stub& stub, grpc::ClientContext* context) {
          return stub.GetSideFiles(context, request, &response);
        }));
    std::vector<SideFile> files = deltawire::FromProto(response.side_files());
    DW_RETURN_IF_ERROR(CheckSideFiles(model, files, hash));
    return files;
  }

  StatusOr<PullGrant> OpenPull(const PullRequest& request) override {
    PullRequest own = request;
    own.receiver_id = receiver_id_;
    own.site = offer_.site;
    v1::OpenPullRequest message;
    deltawire::ToProto(own, &message);
    message.set_oldest_wire_version(wire::kOwnVersions.oldest);
    message.set_newest_wire_version(wire::kOwnVersions.newest);
    v1::OpenPullResponse response;
    const auto open = [&](v1::PullService::Stub& stub, grpc::ClientContext* context) {
      return stub.OpenPull(context, message, &response);
    };
    DW_RETURN_IF_ERROR(request.corrupt.empty() ? Call("OpenPull", kShortCall, open)
                                               : LongCall("OpenPull", open));
    PullGrant grant;
    if (response.ticket().size() != grant.ticket.size() || response.bulk_port() == 0 ||
        response.bulk_port() > 65535) {
      return Errorf(StatusCode::kDataLoss, "sender {}: OpenPull: a malformed answer", sender_);
    }
    // A sender that speaks none of our versions has refused. This one does not name its version.
    DW_RETURN_IF_ERROR(wire::AgreedVersion(wire::kOwnVersions,
                                           {response.wire_version(), response.wire_version()},
                                           fmt::format("sender {}", sender_))
                           .status());
    std::memcpy(grant.ticket.data(), response.ticket().data(), grant.ticket.size());
    grant.host = response.bulk_host();
    if (grant.host.empty()) grant.host = HostOf(sender_);
    grant.port = static_cast<uint16_t>(response.bulk_port());
    grant.history = response.history();
    grant.newest = deltawire::FromProto(response.newest());
    return grant;
  }

  Status Attach(const std::string& model, const ReceiverReport& first,
                std::function<void(const SenderEvent&)> event,
                std::function<void(const Status&)> ended) override {
    Detach();
    v1::ReceiverReport report;
    deltawire::ToProto(first, &report);
    report.set_model(model);
    report.set_receiver_id(receiver_id_);
    report.set_site(offer_.site);
    report.set_serve_address(offer_.address);
    DW_ASSIGN_OR_RETURN(std::shared_ptr<v1::PullService::Stub> stub, Dial());
    std::lock_guard lock(mu_);
    if (cancelled_) return absl::CancelledError("stopping");
    // A call on the old connection would get no answer.
    if (std::exchange(dialled_, true) && call_ != nullptr) call_->TryCancel();
    stub_ = stub;
    attachment_ =
        std::make_unique<Attachment>(std::move(stub), std::move(event), std::move(ended),
                                     fmt::format("sender {}: Attach", sender_), std::move(report));
    return absl::OkStatus();
  }

  void Send(const ReceiverReport& report) override {
    std::lock_guard lock(mu_);
    if (attachment_ == nullptr) return;
    v1::ReceiverReport message;
    deltawire::ToProto(report, &message);
    attachment_->Send(std::move(message), report.sync_request != 0);
  }

  void Detach() override {
    std::unique_ptr<Attachment> old;
    {
      std::lock_guard lock(mu_);
      old = std::move(attachment_);
    }
  }

  void Cancel() override {
    std::lock_guard lock(mu_);
    cancelled_ = true;
    if (call_ != nullptr) call_->TryCancel();
  }

 private:
  // REQUIRES (here and below): one call at a time.
  template <typename Fn>
  Status LongCall(std::string_view name, Fn fn) {
    const auto start = std::chrono::steady_clock::now();
    Status status = Call(name, patience_.deadline(), fn);
    if (status.ok()) patience_.Answered(std::chrono::steady_clock::now() - start);
    if (status.code() == StatusCode::kDeadlineExceeded) patience_.NotAnswered();
    return status;
  }

  template <typename Fn>
  Status Call(std::string_view name, Seconds deadline, Fn fn) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::duration_cast<std::chrono::milliseconds>(deadline));
    std::shared_ptr<v1::PullService::Stub> stub;
    {
      std::lock_guard lock(mu_);
      stub = stub_;
    }
    if (stub == nullptr) {
      DW_ASSIGN_OR_RETURN(stub, Dial());
    }
    {
      std::lock_guard lock(mu_);
      if (cancelled_) return absl::CancelledError("stopping");
      call_ = &context;
      stub_ = stub;
    }
    const auto began = std::chrono::steady_clock::now();
    const grpc::Status status = fn(*stub, &context);
    const Seconds took = std::chrono::steady_clock::now() - began;
    std::lock_guard lock(mu_);
    call_ = nullptr;
    if (status.ok() && (round_trip_ == 0 || took.count() < round_trip_)) round_trip_ = took.count();
    // Without an attachment nothing else dials. After a failed handshake a new connection may
    // succeed: a channel keeps the certificate and the authorities that it was made with.
    const bool lone_failure =
        status.error_code() == grpc::StatusCode::UNAVAILABLE && attachment_ == nullptr;
    if ((IsUseless(status) || lone_failure) && stub_ == stub) {
      // The attachment is the sender's proof that this peer may pull, so it must move to the new
      // connection, too.
      if (attachment_ != nullptr) attachment_->Break();
      stub_ = nullptr;
    }
    return FromGrpc(status, fmt::format("sender {}: {}", sender_, name));
  }

  // Whether a call with this end makes its connection useless.
  static bool IsUseless(const grpc::Status& status) {
    // A channel keeps the token that it was made with; a new one has the new token.
    if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) return true;
    // After a garbled frame a server may ignore all new calls of a connection, and go on with its
    // open streams. So calls may be dead although the attachment lives.
    return status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  }

  // Each attachment gets a new connection, because a mute one stays mute.
  StatusOr<std::shared_ptr<v1::PullService::Stub>> Dial() const {
    grpc::ChannelArguments args;
    // The replica pauses between attempts itself; gRPC's longer pauses would only add to that.
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    // With a channel shared by several replicas, the backoff of one would hold up the others.
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    DW_ASSIGN_OR_RETURN(const auto channel, DialControl(sender_, *credentials_, args));
    return std::shared_ptr<v1::PullService::Stub>(v1::PullService::NewStub(channel));
  }

  // The control connection has no checksum of ours, so side files are compared with their hash.
  Status CheckSideFiles(const std::string& model, const std::vector<SideFile>& files,
                        uint64_t hash) const {
    if (SideFilesHash(files) == hash) return absl::OkStatus();
    return Errorf(StatusCode::kDataLoss,
                  "sender {}: model \"{}\": the side files are not those of their hash {:016x}: "
                  "they were changed on their way",
                  sender_, model, hash);
  }

  // The host of "host:port" or "[v6]:port", without brackets.
  static std::string HostOf(const std::string& endpoint) {
    std::string host = endpoint.substr(0, endpoint.rfind(':'));
    if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
    return host;
  }

  const std::string sender_;
  const std::string receiver_id_;
  const std::shared_ptr<security::Credentials> credentials_;
  const SiteOffer offer_;
  mutable std::mutex mu_;
  std::shared_ptr<v1::PullService::Stub> stub_;
  double round_trip_ = 0;  // the least time of a call; 0: no call was answered yet
  bool dialled_ = false;
  bool cancelled_ = false;
  grpc::ClientContext* call_ = nullptr;
  Patience patience_;
  std::unique_ptr<Attachment> attachment_;
};

}  // namespace

std::unique_ptr<Upstream> MakeGrpcUpstream(const std::string& sender,
                                           const std::string& receiver_id,
                                           std::shared_ptr<security::Credentials> credentials,
                                           SiteOffer offer) {
  return std::make_unique<GrpcUpstream>(sender, receiver_id, std::move(credentials),
                                        std::move(offer));
}

}  // namespace deltawire::receiver
