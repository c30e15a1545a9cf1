// PullServiceImpl: the service for receivers.
#include <thread>

#include "common/base/log.h"
#include "proto/convert.h"
#include "sender/agent/service.h"
#include "sender/agent/service_convert.h"

namespace deltawire::sender {

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
  deltawire::ToProto(InfoOf((*model)->published()).identity, response->mutable_newest());
  return grpc::Status::OK;
}

grpc::Status PullServiceImpl::GetSideFiles(grpc::ServerContext*,
                                           const v1::GetSideFilesRequest* request,
                                           v1::GetSideFilesResponse* response) {
  auto model = agent_.Find(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  const auto kept = (*model)->side_files(request->hash());
  if (kept == nullptr) {
    return ToGrpc(Errorf(StatusCode::kNotFound,
                         "model \"{}\": side files {:016x} are not kept any more; pull a newer "
                         "version",
                         request->model(), request->hash()));
  }
  deltawire::ToProto(kept->files, response->mutable_side_files());
  return grpc::Status::OK;
}

grpc::Status PullServiceImpl::OpenPull(grpc::ServerContext* context,
                                       const v1::OpenPullRequest* request,
                                       v1::OpenPullResponse* response) {
  auto ticket =
      agent_.OpenPull({.model = request->model(),
                       .receiver_id = request->receiver_id(),
                       .peer = context->peer(),
                       .fingerprint = request->fingerprint(),
                       .streams = request->streams(),
                       .decode = deltawire::DecodeSpeeds(*request),
                       .owned_hash = request->owned_hash(),
                       .at = deltawire::FromProto(request->at()),
                       .suspects = {request->suspects().begin(), request->suspects().end()}});
  if (!ticket.ok()) return ToGrpc(ticket.status());
  response->set_ticket(ticket->ticket.data(), ticket->ticket.size());
  response->set_history(ticket->history);
  response->set_bulk_host(agent_.options().advertise_host);
  response->set_bulk_port(bulk_port_);
  deltawire::ToProto(ticket->newest.identity, response->mutable_newest());
  response->set_side_files_hash(ticket->newest.side_files_hash);
  return grpc::Status::OK;
}

grpc::Status PullServiceImpl::Attach(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::SenderEvent, v1::ReceiverReport>* stream) {
  v1::ReceiverReport first;
  if (!stream->Read(&first)) return grpc::Status::CANCELLED;
  auto model = agent_.Find(first.model());
  if (!model.ok()) return ToGrpc(model.status());
  model->reset();  // an attachment outlasts a model that is replaced
  Attachments& attachments = agent_.attachments();
  const auto token = attachments.Attach(first.model(), first.receiver_id(), context->peer());
  if (!token.ok()) return ToGrpc(token.status());
  attachments.Report(*token, FromProto(first));
  std::thread reader([&] {
    v1::ReceiverReport report;
    while (stream->Read(&report)) attachments.Report(*token, FromProto(report));
    attachments.Detach(*token);  // wakes NextEvent
  });
  StatusOr<SenderEvent> event = attachments.NextEvent(*token);
  for (; event.ok(); event = attachments.NextEvent(*token)) {
    v1::SenderEvent out;
    out.set_number(event->number);
    ToProto(event->newest, out.mutable_newest());
    out.set_side_files_hash(event->newest.side_files_hash);
    out.set_sync_request(event->sync_request);
    out.set_force_full(event->force_full);
    if (!stream->Write(out)) break;
  }
  if (absl::IsDeadlineExceeded(event.status())) LogWarn("{}", MessageOf(event.status()));
  attachments.Detach(*token);
  context->TryCancel();  // ends the reader's Read
  reader.join();
  return grpc::Status::CANCELLED;
}

}  // namespace deltawire::sender
