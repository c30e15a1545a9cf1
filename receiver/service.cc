#include "receiver/service.h"

#include "common/base/human.h"
#include "common/net/tls.h"
#include "proto/convert.h"
#include "proto/watch_reactor.h"

namespace deltawire::receiver {
namespace {

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
  out->set_unverified(!view.served.empty() && !view.verified);
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

/// The progress of a sync, and at the end the committed version.
class SyncSource final : public WatchSource<v1::SyncUpdate> {
 public:
  SyncSource(std::shared_ptr<const void> held, Replica& replica, std::function<void()> news)
      : held_(std::move(held)),
        replica_(replica),
        listener_(replica.requests().OnAnswers(std::move(news))) {}
  ~SyncSource() override {
    if (request_ != 0) replica_.requests().Forget(request_);
  }
  Status Ask(bool force_full) {
    DW_ASSIGN_OR_RETURN(request_, replica_.AskSync(force_full));
    return absl::OkStatus();
  }

  StatusOr<Found> Next(v1::SyncUpdate* out) override {
    if (over_) return Found::kEnd;
    DW_ASSIGN_OR_RETURN(const auto commit, replica_.requests().SyncAnswer(request_));
    v1::SyncUpdate now;
    if (commit) {
      over_ = true;
      now.set_phase(std::string(ToString(ReceiverPhase::kCommitted)));
      deltawire::ToProto(commit->id, now.mutable_target());
      now.set_bytes_done(commit->stats.payload_bytes);
      now.set_bytes_total(commit->stats.payload_bytes);
      deltawire::ToProto(commit->stats, now.mutable_stats());
    } else {
      const ReplicaStatus s = replica_.status();
      now.set_phase(std::string(ToString(s.phase)));
      deltawire::ToProto(s.newest, now.mutable_target());
      now.set_bytes_done(s.bytes_done);
      now.set_bytes_total(s.bytes_total);
      std::string text = now.SerializeAsString();
      if (std::exchange(told_, text) == text) return Found::kNothing;
    }
    *out = std::move(now);
    return Found::kMessage;
  }

 private:
  const std::shared_ptr<const void> held_;
  Replica& replica_;
  const Listeners::Listener listener_;
  uint64_t request_ = 0;
  bool over_ = false;
  std::string told_;  // the last update
};

/// The result of a check of the buffer and then, if the caller asks for it, of the engines.
class VerifySource final : public WatchSource<v1::VerifyResponse> {
 public:
  /// `engines`: null if the caller does not ask for them.
  VerifySource(std::shared_ptr<const void> held, Replica& replica, bool repair, Engines* engines,
               const std::function<void()>& news)
      : held_(std::move(held)),
        replica_(replica),
        engines_(engines),
        listener_(replica.requests().OnAnswers(news)),
        engines_listener_(engines == nullptr ? nullptr : engines->OnCalled(news)),
        request_(replica.AskCheck(repair)) {}
  ~VerifySource() override { replica_.requests().Forget(request_); }

  StatusOr<Found> Next(v1::VerifyResponse* out) override {
    if (!found_) {
      DW_ASSIGN_OR_RETURN(found_, replica_.requests().CheckAnswer(request_));
      if (!found_) return Found::kNothing;
      if (engines_ != nullptr) check_ = engines_->AskCheck();
    }
    if (engines_ != nullptr) {
      const auto checked = engines_->CheckAnswer(check_);
      if (!checked) return Found::kNothing;
      for (const Engines::Checked& engine : *checked) {
        v1::EngineCheck* check = out->add_engines();
        check->set_name(engine.name);
        check->set_error(engine.error);
        check->set_drifted(engine.drifted);
      }
    }
    deltawire::ToProto(found_->committed, out->mutable_committed());
    out->set_chunks(found_->chunks);
    out->set_bytes(found_->bytes);
    out->set_seconds(found_->seconds);
    out->set_bad_chunks(found_->bad_chunks);
    for (const std::string& name : found_->bad_tensors) out->add_bad_tensors(name);
    out->set_repaired(found_->repaired);
    return Found::kMessage;
  }

 private:
  const std::shared_ptr<const void> held_;
  Replica& replica_;
  Engines* const engines_;
  const Listeners::Listener listener_, engines_listener_;
  const uint64_t request_;
  std::optional<VerifyResult> found_;
  Engines::Asked check_;
};

class PauseSource final : public WatchSource<v1::PauseResponse> {
 public:
  PauseSource(std::shared_ptr<const void> held, Replica& replica, std::function<void()> news)
      : held_(std::move(held)),
        replica_(replica),
        listener_(replica.requests().OnAnswers(std::move(news))) {
    replica_.SetPaused(true);
  }
  StatusOr<Found> Next(v1::PauseResponse*) override {
    return replica_.run().settled() ? Found::kMessage : Found::kNothing;
  }

 private:
  const std::shared_ptr<const void> held_;
  Replica& replica_;
  const Listeners::Listener listener_;
};

}  // namespace

StatusOr<Replica*> ReceiverServiceImpl::Find(const grpc::ServerContextBase& context,
                                             const std::string& model) const {
  DW_RETURN_IF_ERROR(access_->MayTouch(context, model));
  return daemon_.Find(model);
}

template <typename Request>
StatusOr<Replica*> ReceiverServiceImpl::Hold(const grpc::ServerContextBase& context,
                                             const Request& request,
                                             std::shared_ptr<const void>* held) const {
  DW_ASSIGN_OR_RETURN(Replica * replica, Find(context, request.model()));
  DW_ASSIGN_OR_RETURN(*held, access_->Hold(context, LongCall::kWait, request));
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
  const bool exposed = !IsLoopback(o.control) || (o.bulk && !IsLoopback(*o.bulk));
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

grpc::ServerWriteReactor<v1::SyncUpdate>* ReceiverServiceImpl::Sync(
    grpc::CallbackServerContext* context, const v1::SyncRequest* request) {
  using Reactor = WatchReactor<v1::SyncUpdate>;
  return Reactor::Begin(
      *context, [&](std::function<void()> news) -> StatusOr<std::unique_ptr<Reactor::Source>> {
        std::shared_ptr<const void> held;
        DW_ASSIGN_OR_RETURN(Replica * replica, Hold(*context, *request, &held));
        auto source = std::make_unique<SyncSource>(std::move(held), *replica, std::move(news));
        DW_RETURN_IF_ERROR(source->Ask(request->force_full()));
        return source;
      });
}

grpc::ServerUnaryReactor* ReceiverServiceImpl::Verify(grpc::CallbackServerContext* context,
                                                      const v1::VerifyRequest* request,
                                                      v1::VerifyResponse* response) {
  using Reactor = AnswerReactor<v1::VerifyResponse>;
  return Reactor::Begin(
      *context, response,
      [&](const std::function<void()>& news) -> StatusOr<std::unique_ptr<Reactor::Source>> {
        std::shared_ptr<const void> held;
        DW_ASSIGN_OR_RETURN(Replica * replica, Hold(*context, *request, &held));
        Engines* engines = nullptr;
        if (request->engines()) {
          engines = daemon_.EnginesOf(request->model());
          if (engines == nullptr) return NoEngines(request->model());
        }
        return std::make_unique<VerifySource>(std::move(held), *replica, request->repair(), engines,
                                              news);
      });
}

grpc::ServerUnaryReactor* ReceiverServiceImpl::Pause(grpc::CallbackServerContext* context,
                                                     const v1::PauseRequest* request,
                                                     v1::PauseResponse* response) {
  using Reactor = AnswerReactor<v1::PauseResponse>;
  return Reactor::Begin(
      *context, response,
      [&](std::function<void()> news) -> StatusOr<std::unique_ptr<Reactor::Source>> {
        std::shared_ptr<const void> held;
        DW_ASSIGN_OR_RETURN(Replica * replica, Hold(*context, *request, &held));
        return std::make_unique<PauseSource>(std::move(held), *replica, std::move(news));
      });
}

grpc::Status ReceiverServiceImpl::Resume(grpc::ServerContext* context,
                                         const v1::ResumeRequest* request, v1::ResumeResponse*) {
  const auto replica = Find(*context, request->model());
  if (!replica.ok()) return ToGrpc(replica.status());
  (*replica)->SetPaused(false);
  return grpc::Status::OK;
}

grpc::ServerWriteReactor<v1::CommitInfo>* ReceiverServiceImpl::WatchVersions(
    grpc::CallbackServerContext* context, const v1::WatchReceiverVersionsRequest* request) {
  using Reactor = WatchReactor<v1::CommitInfo>;
  return Reactor::Begin(
      *context, [&](std::function<void()> news) -> StatusOr<std::unique_ptr<Reactor::Source>> {
        DW_ASSIGN_OR_RETURN(Replica * replica, Find(*context, request->model()));
        DW_ASSIGN_OR_RETURN(auto held, access_->Hold(*context, LongCall::kWatch, *request));
        return std::make_unique<ChangeSource<v1::CommitInfo, Commit>>(
            std::move(held), replica->commits().OnCommit(std::move(news)),
            [replica](uint64_t seen) { return replica->commits().CommitAfter(seen); },
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
        DW_ASSIGN_OR_RETURN(auto held, access_->Hold(*context, LongCall::kWatch, *request));
        return std::make_unique<ChangeSource<v1::ServedInfo, Engines::Served>>(
            std::move(held), engines->OnServed(std::move(news)),
            [engines](uint64_t seen) { return engines->ServedAfter(seen); },
            [](const Engines::Served& served, v1::ServedInfo* out) { ToProto(served, out); });
      });
}

}  // namespace deltawire::receiver
