#include "sender/service.h"

#include <thread>

#include "common/base/human.h"
#include "proto/convert.h"

namespace deltawire::sender {
namespace {

void ToProto(const VersionInfo& in, v1::VersionInfo* out) {
  deltawire::ToProto(in.id, out->mutable_id());
  out->set_model_bytes(in.model_bytes);
  out->set_delta_bytes(in.delta_bytes);
  out->set_full_bytes(in.full_bytes);
  out->set_elements(in.elements);
  out->set_changed_elements(in.changed_elements);
  out->set_trainer_wait_seconds(in.trainer_wait_seconds);
  out->set_offload_seconds(in.offload_seconds);
  out->set_publish_seconds(in.publish_seconds);
  out->set_ready_unix_nanos(in.ready_unix_nanos);
  out->set_published_unix_nanos(in.published_unix_nanos);
  out->set_rollback(in.rollback);
}

void ToProto(const decltype(ReceiverReport::last_pull)& in, v1::PullStats* out) {
  out->set_chunks_full(in.chunks_full);
  out->set_chunks_delta(in.chunks_delta);
  out->set_chunks_unchanged(in.chunks_unchanged);
  out->set_payload_bytes(in.payload_bytes);
  out->set_seconds(in.seconds);
  out->set_transfer_seconds(in.transfer_seconds);
  out->set_apply_seconds(in.apply_seconds);
  out->set_repaired_chunks(in.repaired_chunks);
  out->set_chunks_tight(in.chunks_tight);
  out->set_chunks_dense(in.chunks_dense);
  out->set_refused_chunks(in.refused_chunks);
  out->set_history_chunks(in.history_chunks);
}

void ToProto(const Model& model, const Published& state,
             google::protobuf::RepeatedPtrField<v1::TensorChange>* out) {
  if (state.tensors == nullptr) return;
  for (size_t t = 0; t < state.tensors->size(); ++t) {
    const TensorChange& change = (*state.tensors)[t];
    if (change.changed_elements == 0 && change.full_bytes == 0) continue;
    const TensorMeta& meta = model.layout().tensor(t);
    v1::TensorChange* to = out->Add();
    to->set_name(meta.name);
    to->set_elements(model.layout().bytes(t) / DTypeBytes(meta.dtype));
    to->set_changed_elements(change.changed_elements);
    to->set_delta_bytes(change.delta_bytes);
    to->set_full_bytes(change.full_bytes);
  }
}

void ToProto(const CodecCounts& in, google::protobuf::RepeatedPtrField<v1::CodecCount>* out) {
  for (size_t i = 0; i < CodecCounts::kForms; ++i) {
    v1::CodecCount* to = out->Add();
    to->set_codec(CodecCounts::kNames[i]);
    to->set_chunks(in.chunks[i]);
    to->set_bytes(in.bytes[i]);
  }
}

ReceiverReport FromProto(const v1::ReceiverReport& in) {
  ReceiverReport out;
  out.committed = deltawire::FromProto(in.committed());
  out.phase = in.phase();
  out.bytes_done = in.bytes_done();
  out.bytes_total = in.bytes_total();
  out.message = in.message();
  out.sync_request = in.sync_request();
  const v1::PullStats& p = in.last_pull();
  out.last_pull = {p.chunks_full(),   p.chunks_delta(),    p.chunks_unchanged(),
                   p.payload_bytes(), p.seconds(),         p.transfer_seconds(),
                   p.apply_seconds(), p.repaired_chunks(), p.chunks_tight(),
                   p.chunks_dense(),  p.refused_chunks(),  p.history_chunks()};
  return out;
}

VersionInfo InfoOf(const std::shared_ptr<const Published>& state) {
  return state == nullptr ? VersionInfo{} : state->info;
}

std::function<bool()> Gone(grpc::ServerContext* context) {
  return [context] { return context->IsCancelled(); };
}

}  // namespace

// Trainer -------------------------------------------------------------------------------------

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
  deltawire::ToProto(InfoOf((*model)->published()).id, response->mutable_published());
  response->set_data_offset((*model)->data_offset());
  response->set_total_bytes((*model)->layout().total_bytes());
  return grpc::Status::OK;
}

grpc::Status TrainerServiceImpl::BeginOffload(grpc::ServerContext*,
                                              const v1::BeginOffloadRequest* request,
                                              v1::BeginOffloadResponse* response) {
  auto model = agent_.Find(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  const std::string fingerprint = (*model)->layout().fingerprint().Hex();
  if (!request->fingerprint().empty() && request->fingerprint() != fingerprint) {
    return ToGrpc(Errorf(StatusCode::kFailedPrecondition,
                         "model \"{}\" has been registered with another layout since; register it "
                         "again before offloading",
                         request->model()));
  }
  auto grant = (*model)->BeginOffload(request->version(), request->rank(), request->world());
  if (!grant.ok()) return ToGrpc(grant.status());
  response->set_half_path(grant->half_path.string());
  response->set_data_offset(grant->data_offset);
  response->set_waited_seconds(grant->waited_seconds);
  response->set_lease(grant->lease);
  return grpc::Status::OK;
}

grpc::Status TrainerServiceImpl::AttendOffload(grpc::ServerContext* context,
                                               const v1::AttendOffloadRequest* request,
                                               grpc::ServerWriter<v1::AttendOffloadEvent>* writer) {
  auto model = agent_.Find(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  const Status here = (*model)->CheckAttendance(request->lease(), request->rank());
  if (!here.ok()) return ToGrpc(here);
  writer->Write(v1::AttendOffloadEvent());  // when it fails, Attend finds the rank gone
  return ToGrpc((*model)->Attend(request->lease(), request->rank(), Gone(context)));
}

grpc::Status TrainerServiceImpl::AbandonOffload(grpc::ServerContext*,
                                                const v1::AbandonOffloadRequest* request,
                                                v1::AbandonOffloadResponse*) {
  auto model = agent_.Find(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  return ToGrpc((*model)->Abandon(request->lease(), request->rank(), request->reason()));
}

grpc::Status TrainerServiceImpl::MarkWritten(grpc::ServerContext*,
                                             const v1::MarkWrittenRequest* request,
                                             v1::MarkWrittenResponse*) {
  auto model = agent_.Find(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  return ToGrpc((*model)->MarkWritten(request->lease(),
                                      {request->tensors().begin(), request->tensors().end()},
                                      request->rank(), request->sole()));
}

grpc::Status TrainerServiceImpl::NotifyBufferReady(grpc::ServerContext*,
                                                   const v1::NotifyBufferReadyRequest* request,
                                                   v1::NotifyBufferReadyResponse* response) {
  auto model = agent_.Find(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  ReadyNotice notice;
  notice.version = request->version();
  notice.rank = request->rank();
  notice.world = request->world() == 0 ? 1 : request->world();
  notice.lease = request->lease();
  notice.wrote_all = request->wrote_all();
  notice.written.assign(request->written().begin(), request->written().end());
  notice.unchanged.assign(request->unchanged().begin(), request->unchanged().end());
  auto last = (*model)->NotifyReady(notice);
  if (!last.ok()) return ToGrpc(last.status());
  response->set_publishing(*last);
  return grpc::Status::OK;
}

grpc::Status TrainerServiceImpl::WaitPublished(grpc::ServerContext* context,
                                               const v1::WaitPublishedRequest* request,
                                               v1::WaitPublishedResponse* response) {
  auto model = agent_.Find(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  auto info = (*model)->WaitPublished(request->version(), request->lease(), Gone(context));
  if (!info.ok()) return ToGrpc(info.status());
  ToProto(*info, response->mutable_info());
  return grpc::Status::OK;
}

// Orchestrator --------------------------------------------------------------------------------

SenderServiceImpl::SenderServiceImpl(Agent& agent, uint16_t bulk_port, size_t pool_threads)
    : agent_(agent),
      bulk_port_(bulk_port),
      pool_threads_(pool_threads),
      started_(std::chrono::steady_clock::now()) {}

grpc::Status SenderServiceImpl::GetStatus(grpc::ServerContext*,
                                          const v1::SenderStatusRequest* request,
                                          v1::SenderStatusResponse* response) {
  std::vector<std::shared_ptr<Model>> models;
  if (request->model().empty()) {
    models = agent_.Models();
  } else {
    auto model = agent_.Find(request->model());
    if (!model.ok()) return ToGrpc(model.status());
    models.push_back(*model);
  }
  const SenderOptions& o = agent_.options();
  response->set_program_version(DELTAWIRE_VERSION);
  response->set_uptime_seconds(SecondsSince(started_));
  response->set_plaintext_exposed(!IsLoopback(o.control) || !IsLoopback(o.bulk));
  response->set_bulk_address(ToString(Endpoint{o.bulk.host, bulk_port_}));
  response->set_kernels(fmt::format("{}, {} threads", kernels::Best().name, pool_threads_));
  for (const auto& model : models) {
    const auto state = model->published();
    const Agent::PullCounts pulls = agent_.Pulls(model->name());
    v1::SenderModelStatus* m = response->add_models();
    m->set_model(model->name());
    m->set_fingerprint(model->layout().fingerprint().Hex());
    m->set_tensors(static_cast<uint32_t>(model->layout().size()));
    m->set_chunks(model->chunks().size());
    m->set_model_bytes(model->layout().total_bytes());
    ToProto(InfoOf(state), m->mutable_newest());
    m->set_offloading_version(model->offloading_version());
    m->set_log_bytes(model->log_bytes());
    m->set_log_limit_bytes(model->log_limit());
    if (state != nullptr && !state->log.empty()) {
      m->set_oldest_base(state->log.front()->from().version);
    }
    m->set_receivers(static_cast<uint32_t>(agent_.Receivers(model->name()).size()));
    m->set_active_pulls(pulls.active);
    m->set_bytes_sent(pulls.bytes_sent);
    m->set_pulls_cut(pulls.cut);
    m->set_directory(model->directory().string());
    ToProto(pulls.sent, m->mutable_sent());
    const ScrubTotals scrub = model->scrub();
    m->set_scrubbed_bytes(scrub.bytes);
    m->set_scrub_mismatches(scrub.mismatches);
    m->set_scrub_repaired(scrub.repaired);
    m->set_damaged_chunks(model->damaged_chunks());
    deltawire::ToProto(model->owned(), m->mutable_owned());
    m->set_owned_chunks(model->owned().size());
    m->set_owned_bytes(model->owned_bytes());
    if (request->changes() && state != nullptr) ToProto(*model, *state, m->mutable_changes());
  }
  return grpc::Status::OK;
}

grpc::Status SenderServiceImpl::ListReceivers(grpc::ServerContext*,
                                              const v1::ListReceiversRequest* request,
                                              v1::ListReceiversResponse* response) {
  for (const ReceiverView& view : agent_.Receivers(request->model())) {
    v1::ReceiverInfo* r = response->add_receivers();
    r->set_receiver_id(view.id);
    r->set_model(view.model);
    r->set_peer(view.peer);
    r->set_attached_seconds(view.attached_seconds);
    deltawire::ToProto(view.report.committed, r->mutable_committed());
    r->set_phase(view.report.phase);
    r->set_message(view.report.message);
    ToProto(view.report.last_pull, r->mutable_last_pull());
  }
  return grpc::Status::OK;
}

grpc::Status SenderServiceImpl::WatchVersions(grpc::ServerContext* context,
                                              const v1::WatchSenderVersionsRequest* request,
                                              grpc::ServerWriter<v1::VersionInfo>* writer) {
  auto model = agent_.Find(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  uint64_t seen = 0;
  while (auto state = agent_.WaitChange(request->model(), seen, Gone(context))) {
    seen = state->serial;
    v1::VersionInfo info;
    ToProto(state->info, &info);
    if (!writer->Write(info)) break;
  }
  return context->IsCancelled()
             ? grpc::Status::CANCELLED
             : grpc::Status(grpc::StatusCode::UNAVAILABLE, "the sender is stopping");
}

grpc::Status SenderServiceImpl::TriggerSync(grpc::ServerContext* context,
                                            const v1::TriggerSyncRequest* request,
                                            grpc::ServerWriter<v1::SyncProgress>* writer) {
  const auto write = [writer](const Agent::Progress& p) {
    v1::SyncProgress out;
    out.set_receiver_id(p.receiver_id);
    out.set_phase(p.phase);
    deltawire::ToProto(p.phase == "committed" ? p.report.committed : p.target,
                       out.mutable_target());
    out.set_bytes_done(p.report.bytes_done);
    out.set_bytes_total(p.report.bytes_total);
    out.set_message(p.report.message);
    if (p.phase == "committed") ToProto(p.report.last_pull, out.mutable_stats());
    return writer->Write(out);
  };
  return ToGrpc(agent_.TriggerSync(request->model(),
                                   {request->receiver_ids().begin(), request->receiver_ids().end()},
                                   request->force_full(), write, Gone(context)));
}

grpc::Status SenderServiceImpl::Rollback(grpc::ServerContext*, const v1::RollbackRequest* request,
                                         v1::RollbackResponse* response) {
  auto model = agent_.Find(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  auto info = (*model)->Rollback(request->version());
  if (!info.ok()) return ToGrpc(info.status());
  ToProto(*info, response->mutable_info());
  return grpc::Status::OK;
}

// Receivers -----------------------------------------------------------------------------------

grpc::Status PullServiceImpl::DescribeModel(grpc::ServerContext*,
                                            const v1::DescribeModelRequest* request,
                                            v1::DescribeModelResponse* response) {
  auto model = agent_.Find(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  deltawire::ToProto((*model)->layout(), response->mutable_tensors_meta());
  const auto side = (*model)->side_files();
  deltawire::ToProto(side->files, response->mutable_side_files());
  response->set_side_files_hash(side->hash);
  response->set_fingerprint((*model)->layout().fingerprint().Hex());
  response->set_digest_seed((*model)->digest_seed());
  ToProto(InfoOf((*model)->published()), response->mutable_newest());
  deltawire::ToProto((*model)->owned(), response->mutable_owned());
  return grpc::Status::OK;
}

grpc::Status PullServiceImpl::GetNewest(grpc::ServerContext*, const v1::GetNewestRequest* request,
                                        v1::GetNewestResponse* response) {
  auto model = agent_.Find(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  deltawire::ToProto(InfoOf((*model)->published()).id, response->mutable_newest());
  return grpc::Status::OK;
}

grpc::Status PullServiceImpl::OpenPull(grpc::ServerContext*, const v1::OpenPullRequest* request,
                                       v1::OpenPullResponse* response) {
  auto ticket = agent_.OpenPull(
      {request->model(),
       request->receiver_id(),
       request->fingerprint(),
       request->streams(),
       {.tight = request->tight_decode_bytes_per_s(), .dense = request->dense_decode_bytes_per_s()},
       request->owned_hash(),
       deltawire::FromProto(request->at())});
  if (!ticket.ok()) return ToGrpc(ticket.status());
  auto model = agent_.Find(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  response->set_ticket(ticket->ticket.data(), ticket->ticket.size());
  response->set_history(ticket->history);
  response->set_bulk_host(agent_.options().advertise_host);
  response->set_bulk_port(bulk_port_);
  deltawire::ToProto(InfoOf((*model)->published()).id, response->mutable_newest());
  response->set_side_files_hash((*model)->side_files()->hash);
  return grpc::Status::OK;
}

grpc::Status PullServiceImpl::Attach(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::SenderEvent, v1::ReceiverReport>* stream) {
  v1::ReceiverReport first;
  if (!stream->Read(&first)) return grpc::Status::CANCELLED;
  auto model = agent_.Find(first.model());
  if (!model.ok()) return ToGrpc(model.status());
  if (first.receiver_id().empty()) {
    return {grpc::StatusCode::INVALID_ARGUMENT,
            "Attach: the first report must name its receiver_id"};
  }
  const uint64_t token = agent_.Attach(first.model(), first.receiver_id(), context->peer());
  agent_.Report(token, FromProto(first));
  std::atomic<bool> read_ended{false};
  std::thread reader([&] {
    v1::ReceiverReport report;
    while (stream->Read(&report)) agent_.Report(token, FromProto(report));
    read_ended = true;
  });
  const auto gone = [&] { return read_ended || context->IsCancelled(); };
  while (auto event = agent_.NextEvent(token, gone)) {
    v1::SenderEvent out;
    ToProto(event->newest, out.mutable_newest());
    out.set_side_files_hash(event->side_files_hash);
    out.set_sync_request(event->sync_request);
    out.set_force_full(event->force_full);
    if (!stream->Write(out)) break;
  }
  agent_.Detach(token);
  context->TryCancel();  // ends the reader's Read
  reader.join();
  return grpc::Status::CANCELLED;
}

}  // namespace deltawire::sender
