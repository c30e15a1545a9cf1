// SenderServiceImpl: the service for orchestrators.

#include <algorithm>

#include "common/base/human.h"
#include "common/net/tls.h"
#include "common/serving/commit_wait.h"
#include "proto/convert.h"
#include "proto/watch_reactor.h"
#include "sender/agent/service.h"
#include "sender/agent/service_convert.h"

namespace deltawire::sender {
namespace {

class CommitWatch final : public WatchSource<v1::WaitCommittedUpdate> {
 public:
  CommitWatch(std::shared_ptr<const void> held, Attachments& attachments, const std::string& model,
              const CommitWait::For& wanted, std::function<void()> news)
      : held_(std::move(held)),
        served_(wanted.until == CommitWait::Until::kServed),
        wait_(attachments, model, wanted),
        listener_(
            attachments.watchers().Add(model, ModelWatchers::Topic::kReceivers, std::move(news))) {}

  StatusOr<Found> Next(v1::WaitCommittedUpdate* out) override {
    if (over_) return Found::kEnd;
    DW_ASSIGN_OR_RETURN(const CommitWait::Step step, wait_.Poll());
    over_ = step.over;
    if (!step.tell) return over_ ? Found::kEnd : Found::kNothing;
    out->Clear();
    deltawire::ToProto(step.tell->newest, out->mutable_newest());
    out->set_version(step.tell->version);
    out->set_attached(static_cast<uint32_t>(step.tell->attached));
    out->set_committed(static_cast<uint32_t>(step.tell->committed));
    for (const std::string& id : step.tell->behind) out->add_behind(id);
    out->set_served(served_);
    return Found::kMessage;
  }

 private:
  const std::shared_ptr<const void> held_;
  const bool served_;
  CommitWait wait_;
  const Listeners::Listener listener_;
  bool over_ = false;
};

/// The progress of the receivers of a sync.
class SyncSource final : public WatchSource<v1::SyncProgress> {
 public:
  SyncSource(std::shared_ptr<const void> held, std::shared_ptr<SyncCall> call)
      : held_(std::move(held)), call_(std::move(call)) {}

  StatusOr<Found> Next(v1::SyncProgress* out) override {
    DW_ASSIGN_OR_RETURN(const SyncCall::Step step, call_->Poll());
    if (!step.tell) return step.over ? Found::kEnd : Found::kNothing;
    const SyncCall::Progress& p = *step.tell;
    out->Clear();
    out->set_receiver_id(p.receiver_id);
    const bool committed = p.phase == ReceiverPhase::kCommitted;
    out->set_phase(std::string(ToString(p.phase)));
    deltawire::ToProto(committed ? p.report.committed : p.target, out->mutable_target());
    out->set_bytes_done(p.report.bytes_done);
    out->set_bytes_total(p.report.bytes_total);
    out->set_message(p.report.message);
    if (committed) deltawire::ToProto(p.report.last_pull, out->mutable_stats());
    return Found::kMessage;
  }

 private:
  const std::shared_ptr<const void> held_;
  const std::shared_ptr<SyncCall> call_;
};

/// The progress of a group's members, and at the end how its round ended.
class GroupSyncSource final : public WatchSource<v1::SyncProgress> {
 public:
  GroupSyncSource(std::shared_ptr<const void> held, std::string group,
                  std::unique_ptr<Groups::Wait> wait)
      : held_(std::move(held)), group_(std::move(group)), wait_(std::move(wait)) {}

  StatusOr<Found> Next(v1::SyncProgress* out) override {
    if (outcome_) return End();
    DW_ASSIGN_OR_RETURN(const Groups::Wait::Step step, wait_->Poll());
    if (!step.tell && !step.outcome) return Found::kNothing;
    out->Clear();
    if (step.tell) {
      Write(*step.tell, out);
      return Found::kMessage;
    }
    outcome_ = step.outcome;
    out->set_phase(std::string(
        ToString(outcome_->committed ? ReceiverPhase::kCommitted : ReceiverPhase::kFailed)));
    deltawire::ToProto(outcome_->target, out->mutable_target());
    ToProto(group_, *outcome_, out->mutable_group());
    return Found::kMessage;
  }

 private:
  static void Write(const Groups::Progress& p, v1::SyncProgress* out) {
    out->set_receiver_id(p.receiver_id);
    out->set_phase(std::string(SyncPhase(p)));
    deltawire::ToProto(p.target, out->mutable_target());
    out->set_bytes_done(p.report.bytes_done);
    out->set_bytes_total(p.report.bytes_total);
    const bool away = p.state == GroupMemberState::kAway && p.message.empty();
    out->set_message(away ? "not attached" : p.message);
    if (p.state == GroupMemberState::kCommitted) {
      deltawire::ToProto(p.report.last_pull, out->mutable_stats());
    }
  }
  StatusOr<Found> End() const {
    if (outcome_->committed) return Found::kEnd;
    return Errorf(StatusCode::kAborted,
                  "group \"{}\": round {} for {} was aborted, and no member has committed: {}",
                  group_, outcome_->round, ToString(outcome_->target), outcome_->message);
  }

  const std::shared_ptr<const void> held_;
  const std::string group_;
  const std::unique_ptr<Groups::Wait> wait_;
  std::optional<GroupOutcome> outcome_;
};

}  // namespace

SenderServiceImpl::SenderServiceImpl(Agent& agent, std::shared_ptr<const Access> access,
                                     uint16_t bulk_port, size_t pool_threads)
    : agent_(agent),
      access_(std::move(access)),
      bulk_port_(bulk_port),
      pool_threads_(pool_threads),
      started_(std::chrono::steady_clock::now()) {}

StatusOr<std::shared_ptr<Model>> SenderServiceImpl::Find(const grpc::ServerContextBase& context,
                                                         const std::string& name) const {
  DW_RETURN_IF_ERROR(access_->MayTouch(context, name));
  return agent_.models().Find(name);
}

grpc::Status SenderServiceImpl::GetStatus(grpc::ServerContext* context,
                                          const v1::SenderStatusRequest* request,
                                          v1::SenderStatusResponse* response) {
  std::vector<std::shared_ptr<Model>> models;
  if (request->model().empty()) {
    models = agent_.models().All();
    std::erase_if(models, [&](const auto& m) { return !access_->MaySee(*context, m->name()); });
  } else {
    auto model = Find(*context, request->model());
    if (!model.ok()) return ToGrpc(model.status());
    models.push_back(*std::move(model));
  }
  const SenderOptions& o = agent_.options();
  response->set_program_version(DELTAWIRE_VERSION);
  response->set_uptime_seconds(SecondsSince(started_));
  response->set_unix_nanos(UnixNanos());
  const bool exposed = !IsLoopback(o.control) || !IsLoopback(o.bulk);
  response->set_plaintext_exposed(exposed && !access_->credentials()->serves_tls());
  if (access_->guards()) {
    const bool tls = access_->credentials()->serves_tls();
    response->set_security(access_->Describe() + (tls ? "; kernel TLS: " + net::KernelTls() : ""));
  }
  response->set_bulk_address(ToString(Endpoint{o.bulk.host, bulk_port_}));
  std::string kernels = fmt::format("{}, {} threads", kernels::Best().name, pool_threads_);
  for (const auto& model : models) {
    const std::string where = model->offloads().diff().diffs_on();
    if (!where.empty()) kernels += fmt::format("; {} is diffed on {}", model->name(), where);
  }
  response->set_kernels(kernels);
  response->mutable_rate_limits()->set_all(o.rate_limits.all);
  response->mutable_rate_limits()->set_per_site(o.rate_limits.per_site);
  response->mutable_rate_limits()->set_per_receiver(o.rate_limits.per_receiver);
  for (const auto& model : models) {
    const auto state = model->published();
    const PullDesk::Counts pulls = agent_.desk().CountsOf(model->name());
    v1::SenderModelStatus* m = response->add_models();
    m->set_model(model->name());
    m->set_fingerprint(model->layout().fingerprint().Hex());
    m->set_tensors(static_cast<uint32_t>(model->layout().size()));
    m->set_chunks(model->chunks().size());
    m->set_model_bytes(model->layout().total_bytes());
    ToProto(state == nullptr ? VersionInfo{} : state->info, m->mutable_newest());
    m->set_offloading_version(model->offloads().version());
    m->set_log_bytes(model->store().log_bytes());
    m->set_log_limit_bytes(model->store().log_limit());
    if (state != nullptr && !state->log.empty()) {
      m->set_oldest_base(state->log.front()->from().version);
    }
    const Attachments::Counts receivers = agent_.attachments().CountsOf(model->name());
    m->set_receivers(static_cast<uint32_t>(receivers.attached));
    m->set_active_pulls(pulls.active);
    m->set_bytes_sent(pulls.bytes_sent);
    m->set_pulls_cut(pulls.cut);
    m->set_pulls_refused(pulls.refused);
    m->set_receivers_silent(receivers.silent);
    m->set_directory(model->home().directory().string());
    ToProto(pulls.sent, m->mutable_sent());
    m->set_newcomer_pulls(static_cast<uint32_t>(pulls.admission.newcomers));
    m->set_held_back_seconds(pulls.admission.held_back_seconds);
    const ScrubTotals scrub = model->scrubber().totals();
    m->set_scrubbed_bytes(scrub.bytes);
    m->set_scrub_mismatches(scrub.mismatches);
    m->set_scrub_repaired(scrub.repaired);
    m->set_damaged_chunks(model->damaged_chunks());
    deltawire::ToProto(model->owned(), m->mutable_owned());
    m->set_owned_chunks(model->owned().size());
    m->set_owned_bytes(model->owned_bytes());
    for (const GroupView& group : agent_.groups().views(model->name())) {
      ToProto(group, m->add_groups());
    }
    if (request->changes() && state != nullptr) ToProto(*model, *state, m->mutable_changes());
  }
  return grpc::Status::OK;
}

grpc::Status SenderServiceImpl::ListReceivers(grpc::ServerContext* context,
                                              const v1::ListReceiversRequest* request,
                                              v1::ListReceiversResponse* response) {
  const std::vector<ReceiverView> views = agent_.attachments().Receivers(request->model());
  const SiteTree tree(views, agent_.assigner());
  for (const ReceiverView& view : views) {
    if (!access_->MaySee(*context, view.model)) continue;
    v1::ReceiverInfo* r = response->add_receivers();
    r->set_receiver_id(view.id);
    r->set_model(view.model);
    r->set_peer(view.peer);
    r->set_attached_seconds(view.attached_seconds);
    deltawire::ToProto(view.report.committed, r->mutable_committed());
    r->set_phase(std::string(ToString(view.report.phase)));
    r->set_message(view.report.message);
    deltawire::ToProto(view.report.last_pull, r->mutable_last_pull());
    deltawire::ToProto(view.report.engines.oldest, r->mutable_served());
    r->set_engines(view.report.engines.engines.value_or(0));
    tree.Write(view, r);
    const LinkView link = agent_.desk().LinkTo(view.id);
    r->mutable_link()->set_bytes_per_s(link.bytes_per_s);
    r->mutable_link()->set_round_trip_seconds(link.round_trip_seconds);
    r->mutable_link()->set_sent_again_ratio(link.sent_again_ratio);
    r->mutable_link()->set_congestion_control(link.congestion_control);
  }
  return grpc::Status::OK;
}

grpc::ServerWriteReactor<v1::VersionInfo>* SenderServiceImpl::WatchVersions(
    grpc::CallbackServerContext* context, const v1::WatchSenderVersionsRequest* request) {
  using Reactor = WatchReactor<v1::VersionInfo>;
  return Reactor::Begin(
      *context, [&](std::function<void()> news) -> StatusOr<std::unique_ptr<Reactor::Source>> {
        DW_RETURN_IF_ERROR(Find(*context, request->model()).status());
        DW_ASSIGN_OR_RETURN(auto held, access_->Hold(*context, LongCall::kWatch, *request));
        Attachments& attachments = agent_.attachments();
        return std::make_unique<ChangeSource<v1::VersionInfo, VersionFeed::Change>>(
            std::move(held),
            attachments.watchers().Add(request->model(), ModelWatchers::Topic::kVersions,
                                       std::move(news)),
            [&feed = attachments.feed(), model = request->model()](uint64_t seen) {
              return feed.ChangeAfter(model, seen);
            },
            [](const VersionFeed::Change& change, v1::VersionInfo* out) {
              ToProto(change.info, out);
            });
      });
}

grpc::ServerWriteReactor<v1::SyncProgress>* SenderServiceImpl::TriggerSync(
    grpc::CallbackServerContext* context, const v1::TriggerSyncRequest* request) {
  return WatchReactor<v1::SyncProgress>::Begin(*context, [&](std::function<void()> news) {
    return AskSync(*context, *request, std::move(news));
  });
}

StatusOr<std::unique_ptr<WatchSource<v1::SyncProgress>>> SenderServiceImpl::AskSync(
    const grpc::ServerContextBase& context, const v1::TriggerSyncRequest& request,
    std::function<void()> news) {
  DW_RETURN_IF_ERROR(access_->MayTouch(context, request.model()));
  DW_ASSIGN_OR_RETURN(auto held, access_->Hold(context, LongCall::kWait, request));
  const std::vector<std::string> ids(request.receiver_ids().begin(), request.receiver_ids().end());
  if (request.group().empty()) {
    DW_ASSIGN_OR_RETURN(
        auto call,
        agent_.attachments().AskSync(request.model(), ids, request.force_full(), std::move(news)));
    return std::make_unique<SyncSource>(std::move(held), std::move(call));
  }
  if (request.force_full()) {
    return Errorf(StatusCode::kInvalidArgument,
                  "group \"{}\": force_full is not for groups; sync receivers by their ids",
                  request.group());
  }
  // A trainer may ask right after its publish, before the groups know of it.
  if (const auto model = agent_.models().Find(request.model()); model.ok()) {
    if (const auto state = (*model)->published(); state != nullptr) {
      agent_.groups().Published(request.model(), state->info.identity);
    }
  }
  DW_ASSIGN_OR_RETURN(auto wait,
                      agent_.groups().Sync(request.model(), request.group(), ids, std::move(news)));
  return std::make_unique<GroupSyncSource>(std::move(held), request.group(), std::move(wait));
}

grpc::ServerWriteReactor<v1::WaitCommittedUpdate>* SenderServiceImpl::WaitCommitted(
    grpc::CallbackServerContext* context, const v1::WaitCommittedRequest* request) {
  using Reactor = WatchReactor<v1::WaitCommittedUpdate>;
  return Reactor::Begin(
      *context, [&](std::function<void()> news) -> StatusOr<std::unique_ptr<Reactor::Source>> {
        DW_ASSIGN_OR_RETURN(const auto model, Find(*context, request->model()));
        DW_ASSIGN_OR_RETURN(auto held, access_->Hold(*context, LongCall::kWatch, *request));
        const CommitWait::For wanted{.version = request->version(),
                                     .at_least = std::max<size_t>(request->at_least(), 1),
                                     .part = model->owned().size() < model->chunks().size(),
                                     .until = request->served() ? CommitWait::Until::kServed
                                                                : CommitWait::Until::kCommitted};
        return std::make_unique<CommitWatch>(std::move(held), agent_.attachments(),
                                             request->model(), wanted, std::move(news));
      });
}

grpc::Status SenderServiceImpl::Rollback(grpc::ServerContext* context,
                                         const v1::RollbackRequest* request,
                                         v1::RollbackResponse* response) {
  auto model = Find(*context, request->model());
  if (!model.ok()) return ToGrpc(model.status());
  const auto held = access_->Hold(*context, LongCall::kWork, *request);
  if (!held.ok()) return ToGrpc(held.status());
  auto info = (*model)->publisher().RollBack(request->version());
  if (!info.ok()) return ToGrpc(info.status());
  ToProto(*info, response->mutable_info());
  return grpc::Status::OK;
}

grpc::Status SenderServiceImpl::UnregisterModel(grpc::ServerContext* context,
                                                const v1::UnregisterModelRequest* request,
                                                v1::UnregisterModelResponse* response) {
  const Status may = access_->MayTouch(*context, request->model());
  if (!may.ok()) return ToGrpc(may);
  const auto held = access_->Hold(*context, LongCall::kWork, *request);
  if (!held.ok()) return ToGrpc(held.status());
  const auto done = agent_.Unregister(request->model());
  if (!done.ok()) return ToGrpc(done.status());
  response->set_directory(done->directory.string());
  response->set_freed_bytes(done->files.freed_bytes);
  for (const std::string& name : done->files.left) response->add_left(name);
  return grpc::Status::OK;
}

}  // namespace deltawire::sender
