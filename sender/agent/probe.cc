#include "sender/agent/probe.h"

#include <algorithm>

#include "common/base/versions_behind.h"

namespace deltawire::sender {
namespace {

using metrics::Kind;
using metrics::Sample;

struct Seen {
  PullDesk::Counts pulls;
  size_t receivers = 0;
  size_t behind = 0;  // receivers
  size_t not_serving = 0;
  size_t relayed = 0;  // receivers whose upstream is another receiver
  size_t astray = 0;   // receivers that do not follow their assigned upstream
  uint64_t most_behind = 0;
  uint64_t silent = 0;
  // Of all groups.
  uint64_t group_commits = 0, group_aborts = 0;
  size_t group_late = 0;      // members
  double spread_seconds = 0;  // the longest of the last rounds
};

/// A sample's value, from a number of any type.
struct Number {
  template <typename T>
  Number(T from) : value(static_cast<double>(from)) {}  // NOLINT(google-explicit-constructor)
  double value;
};

struct Row {
  const char* name;
  const char* help;
  Kind kind;
  Number (*value)(const Model& model, const Seen& seen);
};

// Returns the number of versions that `held` is behind, at least one for another lineage. A
// receiver of several agents names the whole by another lineage.
uint64_t Behind(const Identity& held, const Identity& newest, const Model& model) {
  const uint64_t behind = VersionsBehind(held, newest);
  const bool whole = model.owned().size() == model.chunks().size();
  return whole && !(held.lineage == newest.lineage) ? std::max<uint64_t>(behind, 1) : behind;
}

Seen Observe(const Agent& agent, const Model& model) {
  const std::string& name = model.name();
  Seen seen{.pulls = agent.desk().CountsOf(name)};
  const auto published = model.published();
  const auto places = agent.assigner().places(name);
  for (const ReceiverView& r : agent.desk().attachments().Receivers(name)) {
    ++seen.receivers;
    seen.relayed += !r.report.follows.empty();
    if (const auto place = places.find(r.id); place != places.end()) {
      const Assignment& told = place->second.told;
      const std::string first = told.upstreams.empty() ? "" : told.upstreams.front();
      seen.astray += !told.undecided && r.report.follows != first;
    }
    if (published == nullptr) continue;
    const uint64_t behind = Behind(r.report.committed, published->info.identity, model);
    seen.behind += behind > 0;
    const EnginesServe& engines = r.report.engines;
    seen.not_serving += engines.engines.value_or(0) > 0 &&
                        Behind(engines.oldest, published->info.identity, model) > 0;
    seen.most_behind = std::max(seen.most_behind, behind);
  }
  seen.silent = agent.desk().attachments().CountsOf(name).silent;
  for (const GroupView& group : agent.groups().views(name)) {
    seen.group_commits += group.status.commits;
    seen.group_aborts += group.status.aborts;
    seen.spread_seconds = std::max(seen.spread_seconds, group.status.last.spread_seconds);
    for (const GroupView::Member& member : group.members) {
      seen.group_late += member.state == GroupMemberState::kLate;
    }
  }
  return seen;
}

VersionInfo Newest(const Model& m) {
  const auto state = m.published();
  return state == nullptr ? VersionInfo{} : state->info;
}

Number Part(Number of, Number all) { return all.value > 0 ? of.value / all.value : 0; }

constexpr Row kRows[] = {
    {"deltawire_sender_version", "Newest published version", Kind::kGauge,
     [](const Model& m, const Seen&) -> Number { return Newest(m).id().version; }},
    {"deltawire_sender_published_total", "Versions published by this process", Kind::kCounter,
     [](const Model& m, const Seen&) -> Number { return m.publisher().totals().published; }},
    {"deltawire_sender_offloads_abandoned_total", "Offloads that were begun and not published",
     Kind::kCounter,
     [](const Model& m, const Seen&) -> Number { return m.publisher().totals().abandoned; }},
    {"deltawire_sender_delta_bytes_total", "Encoded bytes of all deltas", Kind::kCounter,
     [](const Model& m, const Seen&) -> Number { return m.publisher().totals().delta_bytes; }},
    {"deltawire_sender_trainer_wait_seconds_total", "Time that BeginOffload waited for its half",
     Kind::kCounter,
     [](const Model& m, const Seen&) -> Number {
       return m.publisher().totals().trainer_wait_seconds;
     }},
    {"deltawire_sender_publish_seconds_total", "Time from ready to published", Kind::kCounter,
     [](const Model& m, const Seen&) -> Number { return m.publisher().totals().publish_seconds; }},
    {"deltawire_sender_changed_elements", "Elements changed by the newest version", Kind::kGauge,
     [](const Model& m, const Seen&) -> Number { return Newest(m).changed_elements; }},
    {"deltawire_sender_density_ratio", "Changed elements of the newest version, of all",
     Kind::kGauge,
     [](const Model& m, const Seen&) -> Number {
       const VersionInfo info = Newest(m);
       return Part(info.changed_elements, info.elements);
     }},
    {"deltawire_sender_bytes_per_change",
     "Bytes that the newest version takes for each changed element, with its whole chunks",
     Kind::kGauge,
     [](const Model& m, const Seen&) -> Number {
       const VersionInfo info = Newest(m);
       return Part(info.delta_bytes + info.full_bytes, info.changed_elements);
     }},
    {"deltawire_sender_buffer_bytes", "Shared memory of both halves", Kind::kGauge,
     [](const Model& m, const Seen&) -> Number { return 2 * m.owned_bytes(); }},
    {"deltawire_sender_gpu_publishes_total", "Versions diffed on the GPU", Kind::kCounter,
     [](const Model& m, const Seen&) -> Number {
       return m.offloads().diff().gpu().counts().publishes;
     }},
    {"deltawire_sender_gpu_failures_total", "Versions that the CPU diffed after a CUDA error",
     Kind::kCounter,
     [](const Model& m, const Seen&) -> Number {
       return m.offloads().diff().gpu().counts().failures;
     }},
    {"deltawire_sender_gpu_mismatches_total",
     "Results of a GPU that differed from the CPU's; after one the CPU diffs", Kind::kCounter,
     [](const Model& m, const Seen&) -> Number {
       return m.offloads().diff().gpu().counts().mismatches;
     }},
    {"deltawire_sender_log_bytes", "Delta log in use", Kind::kGauge,
     [](const Model& m, const Seen&) -> Number { return m.store().log_bytes(); }},
    {"deltawire_sender_held_bytes",
     "Deltas that left the log, and old bytes of chunks, that pulls of earlier versions need",
     Kind::kGauge, [](const Model& m, const Seen&) -> Number { return m.store().held_bytes(); }},
    {"deltawire_sender_encoded_cache_bytes", "Encoded payloads that are kept for other pulls",
     Kind::kGauge, [](const Model& m, const Seen&) -> Number { return m.store().encoded().bytes; }},
    {"deltawire_sender_encoded_cache_evictions_total",
     "Payloads that newer ones replaced in the cache", Kind::kCounter,
     [](const Model& m, const Seen&) -> Number { return m.store().encoded().evicted; }},
    {"deltawire_sender_early_encoded_bytes", "Encoded payloads of incoming versions", Kind::kGauge,
     [](const Model& m, const Seen&) -> Number {
       return m.offloads().diff().incoming().encoded().bytes;
     }},
    {"deltawire_sender_bytes_sent_total", "Payload bytes of all pulls", Kind::kCounter,
     [](const Model&, const Seen& seen) -> Number { return seen.pulls.bytes_sent; }},
    {"deltawire_sender_active_pulls", "Running pulls", Kind::kGauge,
     [](const Model&, const Seen& seen) -> Number { return seen.pulls.active; }},
    {"deltawire_sender_newcomer_pulls", "Running pulls that bring most of the model whole",
     Kind::kGauge,
     [](const Model&, const Seen& seen) -> Number { return seen.pulls.admission.newcomers; }},
    {"deltawire_sender_held_back_seconds_total",
     "Time that streams of such pulls waited for receivers that only need deltas", Kind::kCounter,
     [](const Model&, const Seen& seen) -> Number {
       return seen.pulls.admission.held_back_seconds;
     }},
    {"deltawire_sender_pulls_cut_total", "Pulls cut so that the trainer need not wait",
     Kind::kCounter, [](const Model&, const Seen& seen) -> Number { return seen.pulls.cut; }},
    {"deltawire_sender_scrubbed_bytes_total", "Memory compared with its digests", Kind::kCounter,
     [](const Model& m, const Seen&) -> Number { return m.scrubber().totals().bytes; }},
    {"deltawire_sender_scrub_mismatches_total", "Corrupt chunks that were found in memory",
     Kind::kCounter,
     [](const Model& m, const Seen&) -> Number { return m.scrubber().totals().mismatches; }},
    {"deltawire_sender_scrub_repaired_total", "Corrupt chunks that were rebuilt", Kind::kCounter,
     [](const Model& m, const Seen&) -> Number { return m.scrubber().totals().repaired; }},
    {"deltawire_sender_corrupt_chunks", "Corrupt chunks of the newest version", Kind::kGauge,
     [](const Model& m, const Seen&) -> Number { return m.damaged_chunks(); }},
    {"deltawire_sender_receivers", "Receivers attached", Kind::kGauge,
     [](const Model&, const Seen& seen) -> Number { return seen.receivers; }},
    {"deltawire_sender_receivers_behind", "Attached receivers without the newest version",
     Kind::kGauge, [](const Model&, const Seen& seen) -> Number { return seen.behind; }},
    {"deltawire_sender_receivers_not_serving",
     "Attached receivers with an engine that does not serve the newest version", Kind::kGauge,
     [](const Model&, const Seen& seen) -> Number { return seen.not_serving; }},
    {"deltawire_sender_versions_behind", "Versions that the last receiver is behind", Kind::kGauge,
     [](const Model&, const Seen& seen) -> Number { return seen.most_behind; }},
    {"deltawire_sender_receivers_relayed", "Attached receivers whose upstream is another receiver",
     Kind::kGauge, [](const Model&, const Seen& seen) -> Number { return seen.relayed; }},
    {"deltawire_sender_receivers_astray",
     "Attached receivers that do not follow their assigned upstream", Kind::kGauge,
     [](const Model&, const Seen& seen) -> Number { return seen.astray; }},
    {"deltawire_sender_receivers_silent_total",
     "Attachments that ended because the receiver was silent", Kind::kCounter,
     [](const Model&, const Seen& seen) -> Number { return seen.silent; }},
    {"deltawire_sender_group_commits_total", "Rounds of groups that committed", Kind::kCounter,
     [](const Model&, const Seen& seen) -> Number { return seen.group_commits; }},
    {"deltawire_sender_group_aborts_total", "Aborted rounds of groups", Kind::kCounter,
     [](const Model&, const Seen& seen) -> Number { return seen.group_aborts; }},
    {"deltawire_sender_group_members_late",
     "Members of groups that have yet to commit their group's version", Kind::kGauge,
     [](const Model&, const Seen& seen) -> Number { return seen.group_late; }},
    {"deltawire_sender_group_spread_seconds",
     "Time from the first commit to the last in a group's last round, the longest of all groups",
     Kind::kGauge, [](const Model&, const Seen& seen) -> Number { return seen.spread_seconds; }},
    {"deltawire_sender_pulls_refused_total", "Pulls that were refused", Kind::kCounter,
     [](const Model&, const Seen& seen) -> Number { return seen.pulls.refused; }},
};

struct FormRow {
  const char* name;
  const char* help;
  std::array<uint64_t, kernels::kForms> FormCounts::*counts;
};
constexpr FormRow kFormRows[] = {
    {"deltawire_sender_codec_chunks_total", "Chunks of all pulls, by codec", &FormCounts::chunks},
    {"deltawire_sender_codec_bytes_total", "Payload bytes of all pulls, by codec",
     &FormCounts::bytes},
};

void AddForms(const std::vector<std::shared_ptr<Model>>& models, const Agent& agent,
              std::vector<Sample>& samples) {
  for (const FormRow& row : kFormRows) {
    for (const auto& model : models) {
      const FormCounts sent = agent.desk().CountsOf(model->name()).sent;
      for (size_t i = 0; i < kernels::kForms; ++i) {
        samples.push_back({row.name,
                           row.help,
                           Kind::kCounter,
                           {{"model", model->name()}, {"codec", kernels::kFormNames[i]}},
                           static_cast<double>((sent.*row.counts)[i])});
      }
    }
  }
  const CoderRates& rates = agent.coder_rates();
  for (const Coder& coder : Coders()) {
    samples.push_back({"deltawire_sender_encode_seconds_total",
                       "CPU time of encoding in other codecs than fast, all models",
                       Kind::kCounter,
                       {{"codec", kernels::NameOf(coder.codec)}},
                       rates.encode[coder.codec].total_seconds()});
  }
}

void AddPorts(const Agent& agent, const PortCounts& ports, std::vector<Sample>& samples) {
  samples.push_back({"deltawire_sender_bulk_connections",
                     "Open connections to the bulk port",
                     Kind::kGauge,
                     {},
                     static_cast<double>(ports.bulk_connections())});
  const auto refused = [&samples](const char* at, uint64_t count) {
    samples.push_back(
        {"deltawire_sender_peers_refused_total",
         "Refused peers: beyond the ports' limits, without a ticket at the bulk port, or "
         "without a role at the control port",
         Kind::kCounter,
         {{"reason", at}},
         static_cast<double>(count)});
  };
  refused("limit", ports.beyond_limits());
  refused("ticket", agent.desk().streams_refused());
  refused("role", ports.calls_refused());
}

}  // namespace

metrics::Collect Probe(const Agent& agent, PortCounts ports) {
  return [&agent, ports = std::move(ports)] {
    const auto models = agent.models().All();
    std::vector<Seen> seen;
    for (const auto& model : models) seen.push_back(Observe(agent, *model));
    std::vector<Sample> samples;
    for (const Row& row : kRows) {
      for (size_t i = 0; i < models.size(); ++i) {
        samples.push_back({row.name,
                           row.help,
                           row.kind,
                           {{"model", models[i]->name()}},
                           row.value(*models[i], seen[i]).value});
      }
    }
    AddForms(models, agent, samples);
    AddPorts(agent, ports, samples);
    return samples;
  };
}

}  // namespace deltawire::sender
