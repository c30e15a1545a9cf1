#include "receiver/grpc_upstream.h"

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "proto/convert.h"
#include "proto/deltawire/v1/sender.grpc.pb.h"

namespace deltawire::receiver {
namespace {

constexpr std::chrono::seconds kCallDeadline{30};

v1::ReceiverReport ToProto(const Report& r) {
  v1::ReceiverReport out;
  deltawire::ToProto(r.committed, out.mutable_committed());
  out.set_phase(r.phase);
  out.set_bytes_done(r.bytes_done);
  out.set_bytes_total(r.bytes_total);
  out.set_message(r.message);
  out.set_sync_request(r.sync_request);
  v1::PullStats* p = out.mutable_last_pull();
  p->set_chunks_full(r.last_pull.chunks_full);
  p->set_chunks_delta(r.last_pull.chunks_delta);
  p->set_chunks_unchanged(r.last_pull.chunks_unchanged);
  p->set_payload_bytes(r.last_pull.payload_bytes);
  p->set_seconds(r.last_pull.seconds);
  p->set_transfer_seconds(r.last_pull.transfer_seconds);
  p->set_apply_seconds(r.last_pull.apply_seconds);
  p->set_repaired_chunks(r.last_pull.repaired_chunks);
  p->set_chunks_tight(r.last_pull.forms.chunks[2]);
  p->set_chunks_dense(r.last_pull.forms.chunks[3]);
  p->set_refused_chunks(r.last_pull.refused_chunks);
  p->set_history_chunks(r.last_pull.history_chunks);
  return out;
}

UpstreamEvent FromProto(const v1::SenderEvent& in) {
  return {deltawire::FromProto(in.newest().id()), in.newest().delta_bytes(), in.sync_request(),
          in.force_full()};
}

// One attachment: its stream, and the two threads that serve it.
class Attachment {
 public:
  Attachment(v1::PullService::Stub& stub, std::function<void(const UpstreamEvent&)> event,
             std::function<void(const Status&)> ended, std::string context)
      : event_(std::move(event)), ended_(std::move(ended)), context_name_(std::move(context)) {
    context_.set_wait_for_ready(false);
    stream_ = stub.Attach(&context_);
  }

  void Start(v1::ReceiverReport first) {
    Send(std::move(first), true);
    writer_ = std::thread([this] { Write(); });
    reader_ = std::thread([this] { Read(); });  // second: it joins the writer
  }

  ~Attachment() {
    context_.TryCancel();
    Close();
    if (reader_.joinable()) reader_.join();
    if (writer_.joinable()) writer_.join();
  }

  // Only the newest progress report matters; answers to requests must all arrive.
  void Send(v1::ReceiverReport report, bool must_arrive) {
    std::lock_guard lock(mu_);
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
    v1::SenderEvent event;
    while (stream_->Read(&event)) event_(FromProto(event));
    Close();
    writer_.join();
    ended_(FromGrpc(stream_->Finish(), context_name_));
  }

  void Write() {
    std::unique_lock lock(mu_);
    while (true) {
      cv_.wait(lock, [this] { return closed_ || !queue_.empty(); });
      if (closed_) return;
      const v1::ReceiverReport report = std::move(queue_.front().first);
      queue_.pop_front();
      lock.unlock();
      const bool written = stream_->Write(report);
      lock.lock();
      if (!written) return;
    }
  }

  const std::function<void(const UpstreamEvent&)> event_;
  const std::function<void(const Status&)> ended_;
  const std::string context_name_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ReceiverReport, v1::SenderEvent>> stream_;
  std::mutex mu_;
  std::condition_variable cv_;
  bool closed_ = false;
  std::deque<std::pair<v1::ReceiverReport, bool>> queue_;
  std::thread writer_;
  std::thread reader_;
};

class GrpcUpstream : public Upstream {
 public:
  GrpcUpstream(std::string sender, std::string receiver_id)
      : sender_(std::move(sender)), receiver_id_(std::move(receiver_id)) {
    grpc::ChannelArguments args;
    args.SetMaxReceiveMessageSize(kMaxControlMessage);
    args.SetMaxSendMessageSize(kMaxControlMessage);
    // A sender whose machine vanished is noticed within these, also on a quiet attachment.
    args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
    args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
    args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    // The replica has its own pauses; gRPC's longer ones would only add to them.
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    // Replicas of one process must not share a channel, or one's backoff would hold up another.
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = v1::PullService::NewStub(
        grpc::CreateCustomChannel(sender_, grpc::InsecureChannelCredentials(), args));
  }

  ~GrpcUpstream() override { Detach(); }

  const std::string& address() const override { return sender_; }

  StatusOr<ModelDescription> Describe(const std::string& model) override {
    v1::DescribeModelRequest request;
    request.set_model(model);
    v1::DescribeModelResponse response;
    DW_RETURN_IF_ERROR(Call("DescribeModel", [&](grpc::ClientContext* context) {
      return stub_->DescribeModel(context, request, &response);
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
    DW_ASSIGN_OR_RETURN(const ChunkTable chunks, ChunkTable::Create(layout));
    auto owned = Coverage::Create(deltawire::FromProto(response.owned()), chunks.size());
    if (!owned.ok()) {
      return Annotate(owned.status(),
                      fmt::format("sender {}: model \"{}\", owned", sender_, model));
    }
    return ModelDescription{std::move(layout), response.digest_seed(),
                            deltawire::FromProto(response.side_files()), response.side_files_hash(),
                            std::move(*owned)};
  }

  StatusOr<StateId> Newest(const std::string& model) override {
    v1::GetNewestRequest request;
    request.set_model(model);
    v1::GetNewestResponse response;
    DW_RETURN_IF_ERROR(Call("GetNewest", [&](grpc::ClientContext* context) {
      return stub_->GetNewest(context, request, &response);
    }));
    return deltawire::FromProto(response.newest());
  }

  StatusOr<PullGrant> OpenPull(const std::string& model, const PullWish& wish) override {
    v1::OpenPullRequest request;
    request.set_model(model);
    request.set_receiver_id(receiver_id_);
    request.set_fingerprint(wish.fingerprint.Hex());
    request.set_streams(wish.streams);
    request.set_tight_decode_bytes_per_s(wish.decode.tight);
    request.set_dense_decode_bytes_per_s(wish.decode.dense);
    request.set_owned_hash(wish.owned_hash);
    if (wish.at.epoch != 0) deltawire::ToProto(wish.at, request.mutable_at());
    v1::OpenPullResponse response;
    DW_RETURN_IF_ERROR(Call("OpenPull", [&](grpc::ClientContext* context) {
      return stub_->OpenPull(context, request, &response);
    }));
    PullGrant grant;
    if (response.ticket().size() != grant.ticket.size() || response.bulk_port() == 0 ||
        response.bulk_port() > 65535) {
      return Errorf(StatusCode::kDataLoss, "sender {}: OpenPull: a malformed answer", sender_);
    }
    std::memcpy(grant.ticket.data(), response.ticket().data(), grant.ticket.size());
    grant.host = response.bulk_host();
    if (grant.host.empty()) grant.host = HostOf(sender_);
    grant.port = static_cast<uint16_t>(response.bulk_port());
    grant.newest = deltawire::FromProto(response.newest());
    grant.side_files_hash = response.side_files_hash();
    grant.history = response.history();
    return grant;
  }

  Status Attach(const std::string& model, const Report& first,
                std::function<void(const UpstreamEvent&)> event,
                std::function<void(const Status&)> ended) override {
    Detach();
    std::lock_guard lock(mu_);
    if (cancelled_) return absl::CancelledError("stopping");
    attachment_ = std::make_unique<Attachment>(*stub_, std::move(event), std::move(ended),
                                               fmt::format("sender {}: Attach", sender_));
    v1::ReceiverReport report = ToProto(first);
    report.set_model(model);
    report.set_receiver_id(receiver_id_);
    attachment_->Start(std::move(report));
    return absl::OkStatus();
  }

  void Send(const Report& report) override {
    std::lock_guard lock(mu_);
    if (attachment_ != nullptr) attachment_->Send(ToProto(report), report.sync_request != 0);
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
  template <typename Fn>
  Status Call(std::string_view name, Fn fn) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
    {
      std::lock_guard lock(mu_);
      if (cancelled_) return absl::CancelledError("stopping");
      call_ = &context;
    }
    const grpc::Status status = fn(&context);
    std::lock_guard lock(mu_);
    call_ = nullptr;
    return FromGrpc(status, fmt::format("sender {}: {}", sender_, name));
  }

  // "host:port" or "[v6]:port" without the port and the brackets.
  static std::string HostOf(const std::string& endpoint) {
    std::string host = endpoint.substr(0, endpoint.rfind(':'));
    if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
    return host;
  }

  const std::string sender_;
  const std::string receiver_id_;
  std::unique_ptr<v1::PullService::Stub> stub_;
  std::mutex mu_;
  bool cancelled_ = false;
  grpc::ClientContext* call_ = nullptr;
  std::unique_ptr<Attachment> attachment_;
};

}  // namespace

std::unique_ptr<Upstream> MakeGrpcUpstream(const std::string& sender,
                                           const std::string& receiver_id) {
  return std::make_unique<GrpcUpstream>(sender, receiver_id);
}

}  // namespace deltawire::receiver
