#include "proto/serving/pull_service.h"

#include <algorithm>

#include "common/base/log.h"
#include "common/security/token_proof.h"
#include "common/wire/wire_versions.h"
#include "proto/convert.h"
#include "proto/serving/attach_reactor.h"

namespace deltawire {
namespace {

using security::Principal;

// A ticket may be stolen from a receiver's memory or log. So a stream also needs the certificate or
// the token with which the principal got the ticket.
Status Admits(const Principal& who, const wire::Hello& hello, const net::StreamPeer& peer) {
  const auto shown = [&](const std::string& name) {
    return std::count(peer.certificate_names.begin(), peer.certificate_names.end(), name) != 0;
  };
  if (std::any_of(who.certificates.begin(), who.certificates.end(), shown)) return {};
  if (!who.token.empty() && hello.proof.has_value()) {
    const auto expected = security::ProveToken(who.token, hello.ticket, hello.stream, peer.binding);
    if (security::SameProof(expected, *hello.proof)) return {};
  }
  return Errorf(StatusCode::kPermissionDenied,
                "the ticket was granted to {}, and this stream shows neither its certificate nor "
                "its token",
                who.name);
}

}  // namespace

StatusOr<std::shared_ptr<StateSource>> PullServiceImpl::Find(const grpc::ServerContextBase& context,
                                                             const std::string& name) const {
  DW_RETURN_IF_ERROR(access_->MayTouch(context, name));
  return host_.Source(name);
}

StatusOr<PullCaller> PullServiceImpl::Identify(const grpc::ServerContextBase& context,
                                               const std::string& model,
                                               const std::string& receiver_id) {
  DW_RETURN_IF_ERROR(access_->MayTouch(context, model));
  DW_ASSIGN_OR_RETURN(const auto who, access_->CallerOf(context));
  PullCaller caller{.peer = context.peer()};
  if (who == nullptr) return caller;
  // Check the id first, because it is stored.
  DW_RETURN_IF_ERROR(CheckReceiverId(receiver_id));
  DW_RETURN_IF_ERROR(host_.Source(model).status());
  DW_RETURN_IF_ERROR(names_.Claim(receiver_id, who->name));
  caller.principal = who->name;
  caller.admits = [name = who->name, access = access_, model](
                      const wire::Hello& hello, const net::StreamPeer& peer) -> Status {
    // The ticket's key may have been stolen, and the principal removed or given another one since.
    DW_ASSIGN_OR_RETURN(const auto now, access->MayStillFetch(name, model));
    return now == nullptr ? absl::OkStatus() : Admits(*now, hello, peer);
  };
  return caller;
}

grpc::Status PullServiceImpl::DescribeModel(grpc::ServerContext* context,
                                            const v1::DescribeModelRequest* request,
                                            v1::DescribeModelResponse* response) {
  auto model = Find(*context, request->model());
  if (!model.ok()) return ToGrpc(model.status());
  ToProto((*model)->layout(), response->mutable_tensors_meta());
  const auto side = (*model)->side_files();
  ToProto(side->files, response->mutable_side_files());
  response->set_side_files_hash(side->hash);
  response->set_fingerprint((*model)->layout().fingerprint().Hex());
  response->set_digest_seed((*model)->key().seed());
  ToProto(PublishedInfo(**model), response->mutable_newest());
  ToProto((*model)->owned(), response->mutable_owned());
  return grpc::Status::OK;
}

grpc::Status PullServiceImpl::GetNewest(grpc::ServerContext* context,
                                        const v1::GetNewestRequest* request,
                                        v1::GetNewestResponse* response) {
  auto model = Find(*context, request->model());
  if (!model.ok()) return ToGrpc(model.status());
  ToProto(PublishedInfo(**model).identity, response->mutable_newest());
  return grpc::Status::OK;
}

grpc::Status PullServiceImpl::GetSideFiles(grpc::ServerContext* context,
                                           const v1::GetSideFilesRequest* request,
                                           v1::GetSideFilesResponse* response) {
  auto model = Find(*context, request->model());
  if (!model.ok()) return ToGrpc(model.status());
  const auto kept = (*model)->side_files(request->hash());
  if (kept == nullptr) {
    return ToGrpc(Errorf(StatusCode::kNotFound,
                         "model \"{}\": side files {:016x} are not kept any more; pull a newer "
                         "version",
                         request->model(), request->hash()));
  }
  ToProto(kept->files, response->mutable_side_files());
  return grpc::Status::OK;
}

grpc::Status PullServiceImpl::OpenPull(grpc::ServerContext* context,
                                       const v1::OpenPullRequest* request,
                                       v1::OpenPullResponse* response) {
  const auto caller = Identify(*context, request->model(), request->receiver_id());
  if (!caller.ok()) return ToGrpc(caller.status());
  const auto wire_version = wire::AgreedVersion(
      wire::kOwnVersions, {request->oldest_wire_version(), request->newest_wire_version()},
      fmt::format("receiver {}", request->receiver_id()));
  if (!wire_version.ok()) return ToGrpc(wire_version.status());
  auto ticket = host_.OpenPull(FromProto(*request), *caller);
  if (!ticket.ok()) return ToGrpc(ticket.status());
  response->set_ticket(ticket->ticket.data(), ticket->ticket.size());
  response->set_history(ticket->history);
  response->set_bulk_host(host_.advertise_host());
  response->set_bulk_port(bulk_port_);
  response->set_wire_version(*wire_version);
  ToProto(ticket->newest.identity, response->mutable_newest());
  response->set_side_files_hash(ticket->newest.side_files_hash);
  return grpc::Status::OK;
}

StatusOr<std::shared_ptr<const void>> PullServiceImpl::AwaitReport(
    const grpc::ServerContextBase& context) {
  DW_ASSIGN_OR_RETURN(const auto caller, access_->CallerOf(context));
  const std::string who = caller == nullptr ? "" : caller->name;
  const AttachmentLimits& limits = host_.attachments().limits();
  std::lock_guard lock(mu_);
  const auto of = awaited_of_.find(who);
  const size_t same = of == awaited_of_.end() ? 0 : of->second;
  if (awaited_ >= limits.most || (!who.empty() && same >= limits.most_per_principal)) {
    return Errorf(StatusCode::kResourceExhausted,
                  "{} receivers{} that have not reported yet attach already",
                  awaited_ >= limits.most ? awaited_ : same, who.empty() ? "" : " of " + who);
  }
  ++awaited_;
  ++awaited_of_[who];
  return std::shared_ptr<const void>(this, [this, who](const void*) {
    std::lock_guard guard(mu_);
    --awaited_;
    if (--awaited_of_[who] == 0) awaited_of_.erase(who);
  });
}

grpc::ServerBidiReactor<v1::ReceiverReport, v1::SenderEvent>* PullServiceImpl::Attach(
    grpc::CallbackServerContext* context) {
  return AttachReactor::Begin(*this, *context);
}

}  // namespace deltawire
