// TrainerServiceImpl: the service for trainers.
#include "sender/agent/service.h"

#include "proto/convert.h"
#include "sender/agent/service_convert.h"

namespace deltawire::sender {

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
  deltawire::ToProto(InfoOf((*model)->published()).identity, response->mutable_published());
  response->set_data_offset((*model)->data_offset());
  response->set_total_bytes((*model)->layout().total_bytes());
  return grpc::Status::OK;
}

grpc::Status TrainerServiceImpl::BeginOffload(grpc::ServerContext* context,
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
  auto grant = (*model)->BeginOffload(
      {request->version(), request->rank(), std::max<uint32_t>(1, request->world()),
       request->attempt(), request->publisher(), request->client()},
      Gone(context));
  if (!grant.ok()) return ToGrpc(grant.status());
  response->set_half_path(grant->half_path.string());
  response->set_data_offset(grant->data_offset);
  response->set_waited_seconds(grant->waited_seconds);
  response->set_lease(grant->lease);
  response->set_attempt(grant->attempt);
  return grpc::Status::OK;
}

grpc::Status TrainerServiceImpl::AttendOffload(grpc::ServerContext* context,
                                               const v1::AttendOffloadRequest* request,
                                               grpc::ServerWriter<v1::AttendOffloadEvent>* writer) {
  auto model = agent_.Find(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  const Status here = (*model)->Attend(request->lease(), request->rank());
  if (!here.ok()) return ToGrpc(here);
  writer->Write(v1::AttendOffloadEvent());  // if it fails, AwaitReady finds the rank gone
  return ToGrpc((*model)->AwaitReady(request->lease(), request->rank(), Gone(context)));
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
  WrittenNotice notice{.rank = request->rank(), .sole = request->sole()};
  notice.tensors.assign(request->tensors().begin(), request->tensors().end());
  notice.chunks.assign(request->chunks().begin(), request->chunks().end());
  notice.chunk_bytes.assign(request->chunk_bytes().begin(), request->chunk_bytes().end());
  return ToGrpc((*model)->MarkWritten(request->lease(), notice));
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
  auto info = (*model)->WaitPublished(request->version(), request->lease(), Gone(context),
                                      request->attempt());
  if (!info.ok()) return ToGrpc(info.status());
  ToProto(*info, response->mutable_info());
  return grpc::Status::OK;
}

}  // namespace deltawire::sender
