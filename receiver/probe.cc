#include "receiver/probe.h"

#include "receiver/replica.h"

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
     [](const ReplicaStatus& s) { return static_cast<double>(s.committed.version); }},
    {"deltawire_receiver_newest_version", "Newest version that the sender has told of",
     Kind::kGauge, [](const ReplicaStatus& s) { return static_cast<double>(s.newest.version); }},
    {"deltawire_receiver_attached", "1 while connected to the sender", Kind::kGauge,
     [](const ReplicaStatus& s) { return s.attached ? 1.0 : 0.0; }},
    {"deltawire_receiver_commits_total", "Versions committed by this process", Kind::kCounter,
     [](const ReplicaStatus& s) { return static_cast<double>(s.commits); }},
    {"deltawire_receiver_bytes_received_total", "Payload bytes of committed pulls", Kind::kCounter,
     [](const ReplicaStatus& s) { return static_cast<double>(s.bytes_received); }},
    {"deltawire_receiver_repaired_chunks_total",
     "Chunks fetched whole since their digest disagreed", Kind::kCounter,
     [](const ReplicaStatus& s) { return static_cast<double>(s.repaired_chunks); }},
    {"deltawire_receiver_last_pull_seconds", "Pull opened to committed, last pull", Kind::kGauge,
     [](const ReplicaStatus& s) { return s.last_pull.seconds; }},
    {"deltawire_receiver_last_apply_seconds", "Last frame in to committed, last pull", Kind::kGauge,
     [](const ReplicaStatus& s) { return s.last_pull.apply_seconds; }},
};

}  // namespace

metrics::Collect Probe(std::function<std::vector<Replica*>()> replicas) {
  return [replicas = std::move(replicas)] {
    std::vector<std::pair<std::string, ReplicaStatus>> all;
    for (const Replica* r : replicas()) all.emplace_back(r->options().model, r->status());
    std::vector<Sample> samples;
    for (const Row& row : kRows) {
      for (const auto& [model, status] : all) {
        samples.push_back({row.name, row.help, row.kind, {{"model", model}}, row.value(status)});
      }
    }
    return samples;
  };
}

}  // namespace deltawire::receiver
