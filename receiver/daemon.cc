#include "receiver/daemon.h"

#include <filesystem>
#include <random>
#include <set>

#include "common/base/attempt.h"
#include "common/base/log.h"
#include "common/net/pull_client.h"
#include "common/net/tls.h"
#include "common/shm/mapped_file.h"
#include "receiver/attach/assigned_upstream.h"
#include "receiver/attach/failover_upstream.h"
#include "receiver/grpc_upstream.h"

namespace deltawire::receiver {

class Daemon::Source : public EngineSource {
 public:
  explicit Source(Replica& replica) : replica_(replica) {}
  Identity Ready() override { return replica_.gate().version().Ready(); }
  bool Hold(const Identity& id, const std::string& reader, SteadyClock::time_point until) override {
    return replica_.gate().Hold(id, reader, until);
  }
  void Release(const std::string& reader) override { replica_.gate().Release(reader); }

 private:
  Replica& replica_;
};

Daemon::Daemon(const ReceiverOptions& options, std::string receiver_id,
               std::shared_ptr<security::Credentials> credentials, StageObserver stages)
    : options_(options),
      receiver_id_(std::move(receiver_id)),
      relay_number_(options.bulk ? DrawAttempt() : 0),
      pool_(options.threads),
      credentials_(std::move(credentials)),
      stages_(std::move(stages)) {
  rates_.Calibrate(kernels::Best());
  if (!options.bulk) return;
  relay_ = std::make_unique<Relay>(
      Relay::Options{.advertise_host = options.advertise_host,
                     .delta_log_bytes = options.delta_log_bytes,
                     .rate_limit_per_receiver = options.rate_limits.per_receiver,
                     .rate_limit_per_site = options.rate_limits.per_site,
                     .stages = stages_,
                     .number = relay_number_},
      pool_, rates_);
}

Daemon::~Daemon() { Stop(); }

Status Daemon::Start() {
  if (credentials_->dials_tls()) {
    DW_ASSIGN_OR_RETURN(tls_, net::Tls::Create(credentials_, net::Tls::Side::kClient));
  }
  for (const EngineOptions& engine : options_.engines) {
    DW_ASSIGN_OR_RETURN(engine_access_.emplace_back(), EngineAccess::Load(engine));
  }
  const TransportFactory transport = [this](net::PullTarget target) {
    target.tls = tls_;
    target.token = credentials_->Now()->token;
    return std::make_unique<net::PullClient>(io_, std::move(target));
  };
  std::set<std::filesystem::path> parents;
  for (const ReceiverModelOptions& m : options_.models) {
    ReplicaOptions o;
    o.seed = std::random_device()();
    o.model = m.name;
    o.directory = m.directory.empty() ? std::filesystem::path(options_.data_dir) / m.name
                                      : std::filesystem::path(m.directory);
    o.start_from = m.start_from;
    o.streams = options_.streams;
    o.connect_ahead = true;
    o.sockets = {options_.congestion_control};
    o.follow = options_.follow;
    o.staging_bytes = options_.staging_bytes;
    o.delta_file_bytes = options_.delta_file_bytes;
    o.scrub_bytes_per_s = options_.scrub_bytes_per_s;
    o.stream_timeout = options_.stream_timeout;
    o.buffers = options_.buffers;
    o.unsafe_in_place = options_.on_busy_reader == OnBusyReader::kOverwrite;
    o.copy_for_reader = options_.on_busy_reader == OnBusyReader::kCopy;
    o.file_group = options_.file_group;
    o.allow_code_files = options_.allow_code_files;
    o.stages = stages_;
    if (relay_ != nullptr) {
      o.downstream =
          relay_->Of(m.name, [this, name = m.name](const std::string& layout, uint32_t c) {
            Doubted(name, layout, c);
          });
      o.served_delta_bytes = options_.delta_log_bytes / 2;
      o.relay_number = relay_number_;
    }
    auto replica = Replica::Start(o, UpstreamsOf(o), transport, pool_, rates_);
    if (!replica.ok()) {
      return Annotate(replica.status(), fmt::format("model \"{}\"", m.name));
    }
    // Models of one data directory are on one filesystem, so this is said once of all of them.
    if (parents.insert(o.directory.parent_path()).second) WarnIfOnDisk(o.directory);
    replicas_[m.name] = std::move(*replica);
    StartEngines(m.name);
  }
  return absl::OkStatus();
}

std::vector<std::unique_ptr<Upstream>> Daemon::UpstreamsOf(const ReplicaOptions& o) const {
  const auto dial = [id = receiver_id_, credentials = credentials_,
                     site = options_.site](const std::string& address) {
    return MakeGrpcUpstream(address, id, credentials, {.site = site, .address = {}});
  };
  std::vector<std::unique_ptr<Upstream>> upstreams;
  if (!options_.site.empty()) {
    SiteOffer offer{.site = options_.site, .address = {}};
    // A receiver that pulls only on request would keep its followers waiting.
    if (options_.bulk && options_.follow) {
      const bool named = !options_.advertise_host.empty();
      offer.address = ToString(
          Endpoint{named ? options_.advertise_host : options_.control.host, options_.control.port});
    }
    upstreams.push_back(MakeAssignedUpstream(
        MakeGrpcUpstream(options_.senders.front(), receiver_id_, credentials_, std::move(offer)),
        dial, {.model = o.model, .seed = o.seed, .relay = o.relay_number, .times = {}}));
    return upstreams;
  }
  for (const std::string& sender : options_.senders) {
    std::vector<std::unique_ptr<Upstream>> alternatives;
    for (const std::string& address : Alternatives(sender)) alternatives.push_back(dial(address));
    if (alternatives.size() == 1) {
      upstreams.push_back(std::move(alternatives.front()));
    } else {
      upstreams.push_back(MakeFailoverUpstream(std::move(alternatives), o.seed, o.relay_number));
    }
  }
  return upstreams;
}

void Daemon::StartEngines(const std::string& model) {
  Replica& replica = *replicas_[model];
  std::vector<EngineDriver::Settings> settings;
  for (size_t i = 0; i < options_.engines.size(); ++i) {
    const EngineOptions& engine = options_.engines[i];
    if (!engine.model.empty() && engine.model != model) continue;
    settings.push_back(
        {.options = engine,
         .model = {model, std::filesystem::absolute(replica.options().directory)},
         .policy = {.failure = options_.engine_failure, .seed = std::random_device()()},
         .call_limit = options_.engine_timeout,
         .stages = stages_,
         .access = engine_access_[i]});
  }
  if (settings.empty()) return;
  auto& source = sources_[model] = std::make_unique<Source>(replica);
  auto& engines = engines_[model] = std::make_unique<Engines>(
      std::move(settings), *source,
      [](const EngineDriver::Settings& s) { return MakeHook(s.options, s.model, s.access); });
  const auto tell = [&replica, raw = engines.get(), mu = std::make_shared<Mutex>()] {
    // Without the lock an older state could be reported last, and would stand.
    const std::lock_guard one_at_a_time(*mu);
    const std::vector<EngineDriver::View> all = raw->views();
    replica.agents().SetEngines(
        {.engines = static_cast<uint32_t>(all.size()), .oldest = OldestServed(all)});
  };
  // An engine may also be lost, which a call to it finds out.
  engine_listeners_.push_back(engines->OnServed(tell));
  engine_listeners_.push_back(engines->OnCalled(tell));
  tell();
  replica.gate().version().OnReady([raw = engines.get()] { raw->NoteReady(); });
}

void Daemon::Doubted(const std::string& model, const std::string& layout, uint32_t chunk) {
  // Nobody is served before Start has returned.
  if (const auto replica = replicas_.find(model); replica != replicas_.end()) {
    replica->second->ReportCorrupt(layout, chunk);
  }
}

void Daemon::ReloadEngineAccess() {
  for (size_t i = 0; i < engine_access_.size(); ++i) {
    const Status read = engine_access_[i]->Reload();
    if (read.ok()) continue;
    LogWarn("engine {}: {}; what was read before stays in use", NameOf(options_.engines[i]),
            MessageOf(read));
  }
}

void Daemon::BeginStop() {
  if (relay_ != nullptr) relay_->Stop();
  for (auto& [name, engines] : engines_) engines->Stop();
  for (auto& [name, replica] : replicas_) replica->Stop();
}

void Daemon::Stop() {
  // All begin to stop before any is destroyed, so that they stop in parallel.
  BeginStop();
  // A replica's thread notifies its engines of versions, and they release their holds on it.
  for (auto& [name, replica] : replicas_) replica->Join();
  engines_.clear();
  replicas_.clear();
  io_.Stop();
}

StatusOr<Replica*> Daemon::Find(const std::string& model) const {
  const auto it = replicas_.find(model);
  if (it != replicas_.end()) return it->second.get();
  std::string known;
  for (const auto& [name, replica] : replicas_) known += (known.empty() ? "" : ", ") + name;
  return Errorf(StatusCode::kNotFound,
                "no model \"{}\" here (configured: {}); add it with --model and restart", model,
                known);
}

Engines* Daemon::EnginesOf(const std::string& model) const {
  const auto it = engines_.find(model);
  return it == engines_.end() ? nullptr : it->second.get();
}

std::vector<Replica*> Daemon::Replicas() const {
  std::vector<Replica*> all;
  for (const auto& [name, replica] : replicas_) all.push_back(replica.get());
  return all;
}

}  // namespace deltawire::receiver
