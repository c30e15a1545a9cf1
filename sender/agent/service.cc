// TrainerServiceImpl: the service for trainers.
#include "sender/agent/service.h"

#include "common/base/call_end.h"
#include "proto/convert.h"
#include "sender/agent/service_convert.h"

namespace deltawire::sender {
namespace {

constexpr size_t kMaxDiffedOn = 512;

/// A rank's attendance of its offload: one message at the start, and the end when the rank is
/// ready. If the call ends before that, the rank has died.
class AttendSource final : public WatchSource<v1::AttendOffloadEvent> {
 public:
  /// REQUIRES: Attend has returned OK.
  AttendSource(std::shared_ptr<Model> model, uint64_t lease, uint32_t rank,
               std::function<void()> news)
      : model_(std::move(model)),
        lease_(lease),
        rank_(rank),
        listener_(model_->offloads().OnNews(std::move(news))) {}
  ~AttendSource() override { model_->offloads().EndAttend(lease_, rank_); }

  StatusOr<Found> Next(v1::AttendOffloadEvent*) override {
    if (!std::exchange(told_, true)) return Found::kMessage;
    DW_ASSIGN_OR_RETURN(const bool ready, model_->offloads().IsReady(lease_, rank_));
    return ready ? Found::kEnd : Found::kNothing;
  }

 private:
  const std::shared_ptr<Model> model_;
  const uint64_t lease_;
  const uint32_t rank_;
  const Listeners::Listener listener_;
  bool told_ = false;
};

/// A trainer's use of a model, which shows that its client is alive until the call ends. One
/// message confirms it.
class UseSource final : public WatchSource<v1::AttendModelEvent> {
 public:
  UseSource(ModelUsers& users, ModelUsers::Use use, std::function<void()> news)
      : users_(users), use_(std::move(use)), listener_(users_.OnStop(std::move(news))) {}

  StatusOr<Found> Next(v1::AttendModelEvent*) override {
    if (!std::exchange(told_, true)) return Found::kMessage;
    if (users_.stopped()) return Stopping("sender");
    return Found::kNothing;
  }

 private:
  ModelUsers& users_;
  const ModelUsers::Use use_;
  const Listeners::Listener listener_;
  bool told_ = false;
};

class PublishedSource final : public WatchSource<v1::WaitPublishedResponse> {
 public:
  PublishedSource(std::shared_ptr<Model> model, const v1::WaitPublishedRequest& request,
                  std::function<void()> news)
      : model_(std::move(model)),
        version_(request.version()),
        lease_(request.lease()),
        attempt_(request.attempt()),
        listener_(model_->offloads().OnNews(std::move(news))) {
    model_->offloads().CountWaiters(lease_, 1);
  }
  ~PublishedSource() override { model_->offloads().CountWaiters(lease_, -1); }

  StatusOr<Found> Next(v1::WaitPublishedResponse* out) override {
    const auto outcome = model_->offloads().Outcome(version_, lease_, attempt_);
    if (!outcome) return Found::kNothing;
    DW_RETURN_IF_ERROR(outcome->status());
    ToProto(**outcome, out->mutable_info());
    return Found::kMessage;
  }

 private:
  const std::shared_ptr<Model> model_;
  const uint64_t version_, lease_, attempt_;
  const Listeners::Listener listener_;
};

}  // namespace

grpc::Status TrainerServiceImpl::RegisterModel(grpc::ServerContext*,
                                               const v1::RegisterModelRequest* request,
                                               v1::RegisterModelResponse* response) {
  auto meta = deltawire::FromProto(request->tensors_meta());
  if (!meta.ok()) return ToGrpc(meta.status());
  auto model = agent_.Register(
      request->model(), std::move(*meta), deltawire::FromProto(request->owned()),
      deltawire::FromProto(request->side_files()), request->replace(), request->keep_side_files());
  if (!model.ok()) return ToGrpc(model.status());
  response->set_fingerprint((*model)->layout().fingerprint().Hex());
  // Set even before the first version, so that a trainer can name a version to wait for.
  Identity published = PublishedInfo(**model).identity;
  published.lineage = (*model)->halves().lineage();
  deltawire::ToProto(published, response->mutable_published());
  response->set_data_offset((*model)->halves().data_offset());
  response->set_total_bytes((*model)->layout().total_bytes());
  return grpc::Status::OK;
}

grpc::Status TrainerServiceImpl::ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                                            v1::ListModelsResponse* response) {
  for (const auto& model : agent_.models().All()) {
    v1::RegisteredModel* listed = response->add_models();
    listed->set_model(model->name());
    deltawire::ToProto(PublishedInfo(*model).identity, listed->mutable_published());
    listed->set_total_bytes(model->layout().total_bytes());
    listed->set_highest_version(model->halves().highest_version());
  }
  return grpc::Status::OK;
}

grpc::ServerWriteReactor<v1::AttendModelEvent>* TrainerServiceImpl::AttendModel(
    grpc::CallbackServerContext* context, const v1::AttendModelRequest* request) {
  using Reactor = WatchReactor<v1::AttendModelEvent>;
  return Reactor::Begin(
      *context, [&](std::function<void()> news) -> StatusOr<std::unique_ptr<Reactor::Source>> {
        DW_RETURN_IF_ERROR(agent_.models().Find(request->model()).status());
        ModelUsers& users = agent_.users();
        auto use =
            users.Enter(request->model(), request->rank(), request->publisher(), request->client());
        DW_RETURN_IF_ERROR(agent_.models().CheckStays(request->model()));
        return std::make_unique<UseSource>(users, std::move(use), std::move(news));
      });
}

grpc::Status TrainerServiceImpl::BeginOffload(grpc::ServerContext* context,
                                              const v1::BeginOffloadRequest* request,
                                              v1::BeginOffloadResponse* response) {
  auto model = agent_.FindInPlace(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  const std::string fingerprint = (*model)->layout().fingerprint().Hex();
  if (!request->fingerprint().empty() && request->fingerprint() != fingerprint) {
    return ToGrpc(Errorf(StatusCode::kFailedPrecondition,
                         "model \"{}\" has been registered with another layout since; register it "
                         "again before offloading",
                         request->model()));
  }
  auto grant = (*model)->offloads().Begin(
      {request->version(), request->rank(), std::max<uint32_t>(1, request->world()),
       request->attempt(), request->publisher(), request->client(), request->job(),
       request->again()},
      Gone(context));
  if (!grant.ok()) return ToGrpc(grant.status());
  response->set_half_path(grant->half_path.string());
  response->set_data_offset(grant->data_offset);
  response->set_waited_seconds(grant->waited_seconds);
  response->set_lease(grant->lease);
  response->set_attempt(grant->attempt);
  deltawire::ToProto(grant->published, response->mutable_published());
  response->set_takes_payloads(grant->takes_payloads);
  return grpc::Status::OK;
}

grpc::ServerWriteReactor<v1::AttendOffloadEvent>* TrainerServiceImpl::AttendOffload(
    grpc::CallbackServerContext* context, const v1::AttendOffloadRequest* request) {
  using Reactor = WatchReactor<v1::AttendOffloadEvent>;
  return Reactor::Begin(
      *context, [&](std::function<void()> news) -> StatusOr<std::unique_ptr<Reactor::Source>> {
        DW_ASSIGN_OR_RETURN(auto model, agent_.models().Find(request->model()));
        DW_RETURN_IF_ERROR(model->offloads().Attend(request->lease(), request->rank()));
        return std::make_unique<AttendSource>(std::move(model), request->lease(), request->rank(),
                                              std::move(news));
      });
}

grpc::Status TrainerServiceImpl::AbandonOffload(grpc::ServerContext*,
                                                const v1::AbandonOffloadRequest* request,
                                                v1::AbandonOffloadResponse*) {
  auto model = agent_.models().Find(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  return ToGrpc((*model)->offloads().Abandon(request->lease(), request->rank(), request->reason()));
}

grpc::Status TrainerServiceImpl::MarkWritten(grpc::ServerContext*,
                                             const v1::MarkWrittenRequest* request,
                                             v1::MarkWrittenResponse*) {
  auto model = agent_.models().Find(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  WrittenNotice notice{.rank = request->rank(), .sole = request->sole()};
  notice.tensors.assign(request->tensors().begin(), request->tensors().end());
  notice.chunks.assign(request->chunks().begin(), request->chunks().end());
  notice.chunk_bytes.assign(request->chunk_bytes().begin(), request->chunk_bytes().end());
  const int payloads = request->payload_chunks_size();
  if (request->payload_bytes_size() != payloads || request->payload_digests_size() != payloads ||
      request->payload_offsets_size() != payloads || request->payload_lengths_size() != payloads ||
      request->payload_runs_size() != payloads || request->payload_steps_size() != payloads) {
    return ToGrpc(absl::InvalidArgumentError("payloads need one place, size and digest each"));
  }
  for (int i = 0; i < payloads; ++i) {
    notice.payloads.push_back({request->payload_chunks(i), request->payload_offsets(i),
                               request->payload_lengths(i), request->payload_bytes(i),
                               request->payload_digests(i), request->payload_runs(i),
                               request->payload_steps(i)});
  }
  return ToGrpc((*model)->offloads().MarkWritten(request->lease(), notice));
}

grpc::Status TrainerServiceImpl::NotifyBufferReady(grpc::ServerContext*,
                                                   const v1::NotifyBufferReadyRequest* request,
                                                   v1::NotifyBufferReadyResponse* response) {
  auto model = agent_.models().Find(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  ReadyNotice notice;
  notice.version = request->version();
  notice.rank = request->rank();
  notice.world = request->world() == 0 ? 1 : request->world();
  notice.lease = request->lease();
  notice.wrote_all = request->wrote_all();
  notice.written.assign(request->written().begin(), request->written().end());
  notice.unchanged.assign(request->unchanged().begin(), request->unchanged().end());
  notice.diffed_on = request->diffed_on().substr(0, kMaxDiffedOn);
  auto last = (*model)->offloads().MarkReady(notice);
  if (!last.ok()) return ToGrpc(last.status());
  response->set_publishing(*last);
  return grpc::Status::OK;
}

grpc::ServerUnaryReactor* TrainerServiceImpl::WaitPublished(grpc::CallbackServerContext* context,
                                                            const v1::WaitPublishedRequest* request,
                                                            v1::WaitPublishedResponse* response) {
  using Reactor = AnswerReactor<v1::WaitPublishedResponse>;
  return Reactor::Begin(
      *context, response,
      [&](std::function<void()> news) -> StatusOr<std::unique_ptr<Reactor::Source>> {
        DW_ASSIGN_OR_RETURN(auto model, agent_.models().Find(request->model()));
        return std::make_unique<PublishedSource>(std::move(model), *request, std::move(news));
      });
}

}  // namespace deltawire::sender
