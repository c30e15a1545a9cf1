#include "receiver/probe.h"

#include "common/base/versions_behind.h"
#include "receiver/daemon.h"

namespace deltawire::receiver {
namespace {

using metrics::Kind;
using metrics::Sample;

struct Row {
  const char* name;
  const char* help;
  Kind kind;
  double (*value)(const ReplicaStatus& s);
};

constexpr Row kRows[] = {
    {"deltawire_receiver_version", "Committed version; 0 while none is whole", Kind::kGauge,
     [](const ReplicaStatus& s) { return static_cast<double>(s.committed.id.version); }},
    {"deltawire_receiver_newest_version", "Newest version that the sender has named", Kind::kGauge,
     [](const ReplicaStatus& s) { return static_cast<double>(s.newest.id.version); }},
    {"deltawire_receiver_versions_behind", "Versions that it is behind the newest", Kind::kGauge,
     [](const ReplicaStatus& s) {
       return static_cast<double>(VersionsBehind(s.committed, s.newest));
     }},
    {"deltawire_receiver_attached", "1 while connected to the sender", Kind::kGauge,
     [](const ReplicaStatus& s) { return s.attached ? 1.0 : 0.0; }},
    {"deltawire_receiver_following", "1 while it pulls new versions by itself: not paused",
     Kind::kGauge, [](const ReplicaStatus& s) { return s.following ? 1.0 : 0.0; }},
    {"deltawire_receiver_commits_total", "Versions committed by this process", Kind::kCounter,
     [](const ReplicaStatus& s) { return static_cast<double>(s.commits); }},
    {"deltawire_receiver_bytes_received_total", "Payload bytes of committed pulls", Kind::kCounter,
     [](const ReplicaStatus& s) { return static_cast<double>(s.bytes_received); }},
    {"deltawire_receiver_pull_failures_total", "Pulls that failed, after which another one comes",
     Kind::kCounter, [](const ReplicaStatus& s) { return static_cast<double>(s.pull_failures); }},
    {"deltawire_receiver_repaired_chunks_total",
     "Chunks fetched whole since their digest disagreed", Kind::kCounter,
     [](const ReplicaStatus& s) { return static_cast<double>(s.repaired_chunks); }},
    {"deltawire_receiver_refused_chunks_total",
     "Chunks fetched whole since their tight delta did not fit what is here", Kind::kCounter,
     [](const ReplicaStatus& s) { return static_cast<double>(s.refused_chunks); }},
    {"deltawire_receiver_root_mismatches_total",
     "Pulls that were not committed since their chunks do not make up the named state",
     Kind::kCounter, [](const ReplicaStatus& s) { return static_cast<double>(s.root_mismatches); }},
    {"deltawire_receiver_lost_attachments_total",
     "Control connections ended for silence, or for a lost event", Kind::kCounter,
     [](const ReplicaStatus& s) { return static_cast<double>(s.lost_attachments); }},
    {"deltawire_receiver_files_put_back_total",
     "Weights and side files that another process removed or changed", Kind::kCounter,
     [](const ReplicaStatus& s) { return static_cast<double>(s.files_put_back); }},
    {"deltawire_receiver_reader_wait_seconds_total",
     "Time that updates waited for readers of the weights", Kind::kCounter,
     [](const ReplicaStatus& s) { return s.reader_wait_seconds; }},
    {"deltawire_receiver_worst_reader_wait_seconds", "The longest such wait", Kind::kGauge,
     [](const ReplicaStatus& s) { return s.worst_reader_wait_seconds; }},
    {"deltawire_receiver_scrubbed_bytes_total", "Memory compared with its digests", Kind::kCounter,
     [](const ReplicaStatus& s) { return static_cast<double>(s.scrubbed_bytes); }},
    {"deltawire_receiver_scrub_mismatches_total", "Chunks that had lost their digest",
     Kind::kCounter,
     [](const ReplicaStatus& s) { return static_cast<double>(s.scrub_mismatches); }},
    {"deltawire_receiver_buffer_bytes", "Shared memory of its weight files", Kind::kGauge,
     [](const ReplicaStatus& s) {
       return static_cast<double>(s.buffers) * static_cast<double>(s.model_bytes);
     }},
    {"deltawire_receiver_history_bytes", "Past deltas kept for the codec tight", Kind::kGauge,
     [](const ReplicaStatus& s) { return static_cast<double>(s.history_bytes); }},
    {"deltawire_receiver_last_pull_seconds", "Pull opened to committed, last pull", Kind::kGauge,
     [](const ReplicaStatus& s) { return s.last_pull.seconds; }},
    {"deltawire_receiver_last_apply_seconds", "Last frame in to committed, last pull", Kind::kGauge,
     [](const ReplicaStatus& s) { return s.last_pull.apply_seconds; }},
};

struct FormRow {
  const char* name;
  const char* help;
  std::array<uint64_t, kernels::kForms> FormCounts::*counts;
};
constexpr FormRow kFormRows[] = {
    {"deltawire_receiver_codec_chunks_total", "Chunks of committed pulls, by the form they came in",
     &FormCounts::chunks},
    {"deltawire_receiver_codec_bytes_total", "Payload bytes of committed pulls, by form",
     &FormCounts::bytes},
};

using Statuses = std::vector<std::pair<std::string, ReplicaStatus>>;

void AddForms(const Statuses& all, const CoderRates& rates, std::vector<Sample>& samples) {
  for (const FormRow& row : kFormRows) {
    for (const auto& [model, status] : all) {
      for (size_t i = 0; i < kernels::kForms; ++i) {
        samples.push_back({row.name,
                           row.help,
                           Kind::kCounter,
                           {{"model", model}, {"codec", kernels::kFormNames[i]}},
                           static_cast<double>((status.forms.*row.counts)[i])});
      }
    }
  }
  for (const Coder& coder : Coders()) {
    samples.push_back({"deltawire_receiver_decode_seconds_total",
                       "CPU time that decoding payloads of codecs but fast took, all models",
                       Kind::kCounter,
                       {{"codec", kernels::NameOf(coder.codec)}},
                       rates.decode[coder.codec].total_seconds()});
  }
}

void AddAgents(const Statuses& all, std::vector<Sample>& samples) {
  for (const auto& [model, status] : all) {
    for (const AgentView& agent : status.agents) {
      samples.push_back({"deltawire_receiver_sender_version",
                         "Newest version of each sender, as it last said",
                         Kind::kGauge,
                         {{"model", model}, {"sender", agent.address}},
                         static_cast<double>(agent.newest.id.version)});
      samples.push_back({"deltawire_receiver_sender_in_use",
                         "1: the address that each sender is used at now, of those in the options",
                         Kind::kGauge,
                         {{"model", model}, {"sender", agent.in_use}},
                         1});
    }
  }
}

/// An engine beside the version that it should serve.
struct EngineSeen : EngineDriver::View {
  Identity committed;
};

struct EngineRow {
  const char* name;
  const char* help;
  Kind kind;
  double (*value)(const EngineSeen& e);
};

constexpr EngineRow kEngineRows[] = {
    {"deltawire_receiver_engine_served_version",
     "Version that the engine answers from; 0 while that is not known", Kind::kGauge,
     [](const EngineSeen& e) { return static_cast<double>(e.served.id.version); }},
    {"deltawire_receiver_engine_serving", "1 while the engine serves what is committed",
     Kind::kGauge,
     [](const EngineSeen& e) { return e.state == EngineState::kServing ? 1.0 : 0.0; }},
    {"deltawire_receiver_engine_asleep", "1 while the engine sleeps, and updates wait",
     Kind::kGauge, [](const EngineSeen& e) { return e.state == EngineState::kAsleep ? 1.0 : 0.0; }},
    {"deltawire_receiver_engine_versions_behind", "Versions that it is behind what is committed",
     Kind::kGauge,
     [](const EngineSeen& e) {
       return static_cast<double>(VersionsBehind(e.served, e.committed));
     }},
    {"deltawire_receiver_engine_paused", "1 while the receiver has the engine paused", Kind::kGauge,
     [](const EngineSeen& e) { return e.paused ? 1.0 : 0.0; }},
    {"deltawire_receiver_engine_updates_total", "Versions that the engine came to serve",
     Kind::kCounter, [](const EngineSeen& e) { return static_cast<double>(e.updates); }},
    {"deltawire_receiver_engine_failures_total", "Requests to the engine that failed",
     Kind::kCounter, [](const EngineSeen& e) { return static_cast<double>(e.failures); }},
    {"deltawire_receiver_engine_retries_total",
     "Requests and whole updates that were repeated after a failure", Kind::kCounter,
     [](const EngineSeen& e) { return static_cast<double>(e.retries); }},
    {"deltawire_receiver_engine_drifts_total",
     "Times that the engine's memory was found to be other than what was written to it",
     Kind::kCounter, [](const EngineSeen& e) { return static_cast<double>(e.drifts); }},
    {"deltawire_receiver_engine_pause_seconds_total", "Time for which updates paused the engine",
     Kind::kCounter, [](const EngineSeen& e) { return e.pause_seconds; }},
    {"deltawire_receiver_engine_last_pause_seconds", "The same, of the last update", Kind::kGauge,
     [](const EngineSeen& e) { return e.last_pause_seconds; }},
};

void AddEngines(const Daemon& daemon, const Statuses& replicas, std::vector<Sample>& samples) {
  std::vector<std::pair<std::string, EngineSeen>> all;
  for (const auto& [model, status] : replicas) {
    const Engines* const engines = daemon.EnginesOf(model);
    if (engines == nullptr) continue;
    for (EngineDriver::View& view : engines->views()) {
      all.emplace_back(model, EngineSeen{std::move(view), status.committed});
    }
  }
  for (const EngineRow& row : kEngineRows) {
    for (const auto& [model, view] : all) {
      samples.push_back(
          {row.name,
           row.help,
           row.kind,
           {{"model", model}, {"engine", view.name}, {"kind", std::string(ToString(view.kind))}},
           row.value(view)});
    }
  }
}

struct RelayRow {
  const char* name;
  const char* help;
  Kind kind;
  double (*value)(const Relay::Served& s);
};

constexpr RelayRow kRelayRows[] = {
    {"deltawire_receiver_relay_receivers", "Receivers attached that are served here", Kind::kGauge,
     [](const Relay::Served& s) { return static_cast<double>(s.receivers); }},
    {"deltawire_receiver_relay_active_pulls", "Pulls that are served now", Kind::kGauge,
     [](const Relay::Served& s) { return static_cast<double>(s.pulls.active); }},
    {"deltawire_receiver_relay_bytes_sent_total", "Payload bytes of all pulls that were served",
     Kind::kCounter,
     [](const Relay::Served& s) { return static_cast<double>(s.pulls.bytes_sent); }},
    {"deltawire_receiver_relay_bytes_ahead_total",
     "Those of them that went on as they came, not waiting for the commit here", Kind::kCounter,
     [](const Relay::Served& s) { return static_cast<double>(s.pulls.bytes_ahead); }},
    {"deltawire_receiver_relay_pulls_cut_total",
     "Served pulls cut so that the next version need not wait", Kind::kCounter,
     [](const Relay::Served& s) { return static_cast<double>(s.pulls.cut); }},
    {"deltawire_receiver_relay_pulls_refused_total",
     "Pulls that were asked for here and not granted", Kind::kCounter,
     [](const Relay::Served& s) { return static_cast<double>(s.pulls.refused); }},
    {"deltawire_receiver_relay_log_bytes", "Delta log in use", Kind::kGauge,
     [](const Relay::Served& s) { return static_cast<double>(s.log_bytes); }},
    {"deltawire_receiver_relay_encoded_cache_bytes",
     "Encoded payloads that are kept for other pulls", Kind::kGauge,
     [](const Relay::Served& s) { return static_cast<double>(s.encoded.bytes); }},
    {"deltawire_receiver_relay_encoded_cache_evictions_total",
     "Payloads that gave way to newer ones, and are made anew for the next pull that wants them",
     Kind::kCounter, [](const Relay::Served& s) { return static_cast<double>(s.encoded.evicted); }},
    {"deltawire_receiver_relay_early_encoded_bytes",
     "Encoded payloads of versions that go on while they come", Kind::kGauge,
     [](const Relay::Served& s) { return static_cast<double>(s.early_encoded.bytes); }},
};

void AddRelay(const Daemon& daemon, std::vector<Sample>& samples) {
  if (daemon.relay() == nullptr) return;
  std::vector<std::pair<std::string, Relay::Served>> all;
  for (const Replica* r : daemon.Replicas()) {
    all.emplace_back(r->options().model, daemon.relay()->ServedOf(r->options().model));
  }
  for (const RelayRow& row : kRelayRows) {
    for (const auto& [model, served] : all) {
      samples.push_back({row.name, row.help, row.kind, {{"model", model}}, row.value(served)});
    }
  }
}

}  // namespace

metrics::Collect Probe(const Daemon& daemon, PortCounts ports) {
  return [&daemon, ports = std::move(ports)] {
    Statuses all;
    for (const Replica* r : daemon.Replicas()) all.emplace_back(r->options().model, r->status());
    std::vector<Sample> samples;
    for (const Row& row : kRows) {
      for (const auto& [model, status] : all) {
        samples.push_back({row.name, row.help, row.kind, {{"model", model}}, row.value(status)});
      }
    }
    AddAgents(all, samples);
    AddEngines(daemon, all, samples);
    AddRelay(daemon, samples);
    AddForms(all, daemon.coder_rates(), samples);
    const auto refused = [&samples](const char* reason, uint64_t count) {
      samples.push_back({"deltawire_receiver_peers_refused_total",
                         "Peers turned away: beyond the ports' limits, or without a role at the "
                         "control port",
                         Kind::kCounter,
                         {{"reason", reason}},
                         static_cast<double>(count)});
    };
    refused("limit", ports.beyond_limits());
    refused("role", ports.calls_refused());
    return samples;
  };
}

}  // namespace deltawire::receiver
