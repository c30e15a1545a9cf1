#include "receiver/service.h"

#include "common/base/human.h"
#include "common/net/tls.h"
#include "proto/convert.h"
#include "proto/watch_reactor.h"

namespace deltawire::receiver {
namespace {

std::function<bool()> Gone(grpc::ServerContext* context) {
  return [context] { return context->IsCancelled(); };
}

Status NoEngines(const std::string& model) {
  return Errorf(StatusCode::kFailedPrecondition,
                "model \"{}\" has no engines here; add them with --engine and restart", model);
}

void ToProto(const Commit& commit, v1::CommitInfo* out) {
  deltawire::ToProto(commit.id, out->mutable_id());
  deltawire::ToProto(commit.stats, out->mutable_stats());
  out->set_committed_unix_nanos(commit.unix_nanos);
}

void ToProto(const Engines::Served& served, v1::ServedInfo* out) {
  out->set_engine(served.engine.name);
  out->set_kind(std::string(ToString(served.engine.kind)));
  deltawire::ToProto(served.engine.served, out->mutable_id());
  out->set_served_unix_nanos(served.engine.served_unix_nanos);
  out->set_pause_seconds(served.engine.last_pause_seconds);
  deltawire::ToProto(served.all, out->mutable_all());
  deltawire::ToProto(served.oldest, out->mutable_oldest());
}

void ToProto(const EngineDriver::View& view, v1::EngineStatus* out) {
  out->set_name(view.name);
  out->set_kind(std::string(ToString(view.kind)));
  out->set_state(std::string(ToString(view.state)));
  deltawire::ToProto(view.served, out->mutable_served());
  out->set_error(view.error);
  out->set_paused(view.paused);
  out->set_attempts(view.attempts);
  out->set_last_pause_seconds(view.last_pause_seconds);
  out->set_pause_seconds(view.pause_seconds);
  out->set_updates(view.updates);
  out->set_failures(view.failures);
  out->set_served_unix_nanos(view.served_unix_nanos);
  out->set_drifts(view.drifts);
}

void ToProto(const ReplicaStatus& s, v1::ReceiverModelStatus* out) {
  out->set_attached(s.attached);
  out->set_following(s.following);
  deltawire::ToProto(s.committed, out->mutable_committed());
  deltawire::ToProto(s.newest, out->mutable_newest());
  out->set_phase(std::string(ToString(s.phase)));
  out->set_message(s.message);
  out->set_model_bytes(s.model_bytes);
  out->set_bytes_done(s.bytes_done);
  out->set_bytes_total(s.bytes_total);
  out->set_commits(s.commits);
  out->set_bytes_received(s.bytes_received);
  out->set_repaired_chunks(s.repaired_chunks);
  deltawire::ToProto(s.last_pull, out->mutable_last_pull());
  out->set_fingerprint(s.fingerprint);
  out->set_scrubbed_bytes(s.scrubbed_bytes);
  out->set_scrub_mismatches(s.scrub_mismatches);
  out->set_buffers(s.buffers);
  out->set_buffers_why(s.buffers_why);
  out->set_readers(s.readers);
  out->set_reader_wait_seconds(s.reader_wait_seconds);
  out->set_worst_reader_wait_seconds(s.worst_reader_wait_seconds);
  out->set_root_mismatches(s.root_mismatches);
  out->set_lost_attachments(s.lost_attachments);
  out->set_files_put_back(s.files_put_back);
  out->set_history_deltas(static_cast<uint32_t>(s.history_deltas));
  out->set_history_bytes(s.history_bytes);
  out->set_group(s.group);
  deltawire::ToProto(s.prepared, out->mutable_prepared());
  for (const AgentView& agent : s.agents) {
    v1::AgentStatus* a = out->add_agents();
    a->set_sender(agent.address);
    deltawire::ToProto(agent.newest, a->mutable_newest());
    a->set_owned_chunks(agent.owned.size());
    a->set_owned_bytes(agent.owned_bytes);
    deltawire::ToProto(agent.owned, a->mutable_owned());
    a->set_attached(agent.attached);
    a->set_in_use(agent.in_use);
  }
}

}  // namespace

StatusOr<Replica*> ReceiverServiceImpl::Find(const grpc::ServerContextBase& context,
                                             const std::string& model) const {
  DW_RETURN_IF_ERROR(access_->MayTouch(context, model));
  return daemon_.Find(model);
}

StatusOr<Replica*> ReceiverServiceImpl::Find(const grpc::ServerContextBase& context,
                                             const std::string& model,
                                             std::shared_ptr<const void>* held) const {
  DW_ASSIGN_OR_RETURN(Replica * replica, Find(context, model));
  DW_ASSIGN_OR_RETURN(*held, access_->Hold(context, LongCall::kWork));
  return replica;
}

grpc::Status ReceiverServiceImpl::GetStatus(grpc::ServerContext* context,
                                            const v1::ReceiverStatusRequest* request,
                                            v1::ReceiverStatusResponse* response) {
  std::vector<Replica*> replicas;
  if (request->model().empty()) {
    replicas = daemon_.Replicas();
    std::erase_if(replicas, [&](const Replica* replica) {
      return !access_->MaySee(*context, replica->options().model);
    });
  } else {
    auto replica = Find(*context, request->model());
    if (!replica.ok()) return ToGrpc(replica.status());
    replicas.push_back(*replica);
  }
  const ReceiverOptions& o = daemon_.options();
  response->set_program_version(DELTAWIRE_VERSION);
  response->set_uptime_seconds(SecondsSince(started_));
  response->set_unix_nanos(UnixNanos());
  const bool exposed = !IsLoopback(o.control) || (o.serve && !IsLoopback(o.bulk));
  response->set_plaintext_exposed(exposed && !access_->credentials()->serves_tls());
  if (access_->guards()) {
    const bool tls = access_->credentials()->serves_tls();
    response->set_security(access_->Describe() + (tls ? "; kernel TLS: " + net::KernelTls() : ""));
  }
  response->set_receiver_id(daemon_.receiver_id());
  response->set_kernels(
      fmt::format("{}, {} threads", kernels::Best().name, daemon_.pool_threads()));
  for (const Replica* replica : replicas) {
    const ReplicaStatus s = replica->status();
    v1::ReceiverModelStatus* m = response->add_models();
    m->set_model(replica->options().model);
    m->set_directory(replica->options().directory.string());
    m->set_sender(fmt::format("{}", fmt::join(o.senders, ", ")));
    ToProto(s, m);
    m->set_staging_limit_bytes(replica->options().staging_bytes);
    if (const Engines* engines = daemon_.EnginesOf(m->model())) {
      const auto views = engines->views();
      for (const EngineDriver::View& view : views) ToProto(view, m->add_engines());
      deltawire::ToProto(ServedByAll(views), m->mutable_served());
    }
  }
  return grpc::Status::OK;
}

grpc::Status ReceiverServiceImpl::Sync(grpc::ServerContext* context, const v1::SyncRequest* request,
                                       grpc::ServerWriter<v1::SyncUpdate>* writer) {
  std::shared_ptr<const void> held;
  const auto replica = Find(*context, request->model(), &held);
  if (!replica.ok()) return ToGrpc(replica.status());
  const auto progress = [writer](const ReplicaStatus& s) {
    v1::SyncUpdate update;
    update.set_phase(std::string(ToString(s.phase)));
    deltawire::ToProto(s.newest, update.mutable_target());
    update.set_bytes_done(s.bytes_done);
    update.set_bytes_total(s.bytes_total);
    writer->Write(update);
  };
  auto commit = (*replica)->Sync(request->force_full(), progress, Gone(context));
  if (!commit.ok()) return ToGrpc(commit.status());
  v1::SyncUpdate update;
  update.set_phase(std::string(ToString(ReceiverPhase::kCommitted)));
  deltawire::ToProto(commit->id, update.mutable_target());
  update.set_bytes_done(commit->stats.payload_bytes);
  update.set_bytes_total(commit->stats.payload_bytes);
  deltawire::ToProto(commit->stats, update.mutable_stats());
  writer->Write(update);
  return grpc::Status::OK;
}

grpc::Status ReceiverServiceImpl::Verify(grpc::ServerContext* context,
                                         const v1::VerifyRequest* request,
                                         v1::VerifyResponse* response) {
  std::shared_ptr<const void> held;
  const auto replica = Find(*context, request->model(), &held);
  if (!replica.ok()) return ToGrpc(replica.status());
  Engines* const engines = daemon_.EnginesOf(request->model());
  if (request->engines() && engines == nullptr) return ToGrpc(NoEngines(request->model()));
  auto result = (*replica)->Verify(request->repair(), Gone(context));
  if (!result.ok()) return ToGrpc(result.status());
  deltawire::ToProto(result->committed, response->mutable_committed());
  response->set_chunks(result->chunks);
  response->set_bytes(result->bytes);
  response->set_seconds(result->seconds);
  response->set_bad_chunks(result->bad_chunks);
  for (const std::string& name : result->bad_tensors) response->add_bad_tensors(name);
  response->set_repaired(result->repaired);
  if (!request->engines()) return grpc::Status::OK;
  for (const Engines::Checked& checked : engines->Check(Gone(context))) {
    v1::EngineCheck* out = response->add_engines();
    out->set_name(checked.name);
    out->set_error(checked.error);
    out->set_drifted(checked.drifted);
  }
  return grpc::Status::OK;
}

grpc::Status ReceiverServiceImpl::Pause(grpc::ServerContext* context,
                                        const v1::PauseRequest* request, v1::PauseResponse*) {
  std::shared_ptr<const void> held;
  const auto replica = Find(*context, request->model(), &held);
  if (!replica.ok()) return ToGrpc(replica.status());
  return ToGrpc((*replica)->SetPaused(true, Gone(context)));
}

grpc::Status ReceiverServiceImpl::Resume(grpc::ServerContext* context,
                                         const v1::ResumeRequest* request, v1::ResumeResponse*) {
  std::shared_ptr<const void> held;
  const auto replica = Find(*context, request->model(), &held);
  if (!replica.ok()) return ToGrpc(replica.status());
  return ToGrpc((*replica)->SetPaused(false, Gone(context)));
}

grpc::ServerWriteReactor<v1::CommitInfo>* ReceiverServiceImpl::WatchVersions(
    grpc::CallbackServerContext* context, const v1::WatchReceiverVersionsRequest* request) {
  using Reactor = WatchReactor<v1::CommitInfo>;
  return Reactor::Begin(
      *context, [&](std::function<void()> news) -> StatusOr<std::unique_ptr<Reactor::Source>> {
        DW_ASSIGN_OR_RETURN(Replica * replica, Find(*context, request->model()));
        DW_ASSIGN_OR_RETURN(auto held, access_->Hold(*context, LongCall::kWatch));
        return std::make_unique<ChangeSource<v1::CommitInfo, Commit>>(
            std::move(held), replica->OnCommit(std::move(news)),
            [replica](uint64_t seen) { return replica->CommitAfter(seen); },
            [replica](const Commit& commit, v1::CommitInfo* out) {
              ToProto(commit, out);
              out->set_directory(replica->options().directory.string());
            });
      });
}

grpc::ServerWriteReactor<v1::ServedInfo>* ReceiverServiceImpl::WatchServed(
    grpc::CallbackServerContext* context, const v1::WatchServedRequest* request) {
  using Reactor = WatchReactor<v1::ServedInfo>;
  return Reactor::Begin(
      *context, [&](std::function<void()> news) -> StatusOr<std::unique_ptr<Reactor::Source>> {
        DW_RETURN_IF_ERROR(Find(*context, request->model()).status());
        Engines* const engines = daemon_.EnginesOf(request->model());
        if (engines == nullptr) return NoEngines(request->model());
        DW_ASSIGN_OR_RETURN(auto held, access_->Hold(*context, LongCall::kWatch));
        return std::make_unique<ChangeSource<v1::ServedInfo, Engines::Served>>(
            std::move(held), engines->OnServed(std::move(news)),
            [engines](uint64_t seen) { return engines->ServedAfter(seen); },
            [](const Engines::Served& served, v1::ServedInfo* out) { ToProto(served, out); });
      });
}

}  // namespace deltawire::receiver
