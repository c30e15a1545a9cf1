#include "bench/loopback/cases.h"

#include <atomic>

#include "bench/loopback/references.h"

namespace deltawire::bench {
namespace {

constexpr double kGb = 1e9;
constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kSteadyDensity = 0.01;  // of publishes whose content is beside the point
constexpr size_t kPublishesUnderLoad = 20;

Row MakeRow(std::string name, std::string metric, Sample value, std::string unit, size_t threads) {
  Row row;
  row.name = std::move(name);
  row.metric = std::move(metric);
  row.value = std::move(value);
  row.unit = std::move(unit);
  row.threads = threads;
  return row;
}

Row Against(Row row, std::string reference, Sample reference_value, double ratio_at_least = 0) {
  row.reference = std::move(reference);
  row.reference_value = std::move(reference_value);
  row.wanted.ratio_at_least = ratio_at_least;
  return row;
}

double ReadyToCommitted(const Publication& publication, const v1::CommitInfo& commit) {
  return static_cast<double>(commit.committed_unix_nanos() - publication.info.ready_unix_nanos) /
         1e9;
}

double BitsPerChange(const PublishedVersion& info) {
  return static_cast<double>(info.delta_bytes + info.full_bytes) * 8 /
         static_cast<double>(std::max<uint64_t>(1, info.changed_elements));
}

// What one delta round needs beside the Bench.
struct DeltaRound {
  const Bench& bench;
  Cluster& cluster;
  ApplyReference& reference;
  double density;
  bool pairs;
};

// The daemons' side: publish, follow, and the same version again in full.
Status SyncBothWays(const DeltaRound& r, Series& series) {
  DW_ASSIGN_OR_RETURN(const Publication publication, r.cluster.Publish(*r.bench.workload));
  DW_ASSIGN_OR_RETURN(const v1::CommitInfo commit,
                      r.cluster.WaitCommitted(publication.info.identity.id.version));
  DW_ASSIGN_OR_RETURN(const v1::PullStats full, r.cluster.Sync(true));
  if (full.chunks_delta() != 0 || commit.stats().chunks_full() == full.chunks_full()) {
    return absl::InternalError("a full sync moved deltas, or a delta sync moved everything");
  }
  series.Add("sync", ReadyToCommitted(publication, commit));
  series.Add("publish", publication.info.publish_seconds);
  series.Add("pull", commit.stats().seconds());
  series.Add("transfer", commit.stats().transfer_seconds());
  series.Add("apply", commit.stats().apply_seconds());
  series.Add("wire", static_cast<double>(commit.stats().payload_bytes()) / kMiB);
  series.Add("full_pull", full.seconds());
  series.Add("full_sync", publication.info.publish_seconds + full.seconds());
  series.Add("bits", BitsPerChange(publication.info));
  series.Add("density", static_cast<double>(publication.info.changed_elements) /
                            static_cast<double>(publication.info.elements));
  return absl::OkStatus();
}

Status OneDelta(const DeltaRound& r, Series& series) {
  const Bench& b = r.bench;
  const double compare = r.reference.Compare(b.workload->content(), b.peer->landed(), *b.pool);
  if (r.density > 0) {
    b.workload->Flip(r.density);
  } else {
    b.workload->AdamStep();
  }
  DW_RETURN_IF_ERROR(SyncBothWays(r, series));
  if (r.pairs) {
    DW_ASSIGN_OR_RETURN(const NaiveTimes naive, NaivePairs(b.workload->content(), *b.peer));
    series.Add("pairs", naive.diff + naive.send_and_apply);
  }
  r.reference.Encode(b.peer->landed(), b.workload->content(), *b.pool);
  DW_ASSIGN_OR_RETURN(const double apply, r.reference.Apply(b.peer->landed(), *b.pool));
  series.Add("memcmp", compare);
  series.Add("apply_only", apply);
  series.Add("bound", compare + apply);
  return absl::OkStatus();
}

void ReportDelta(const Bench& b, const std::string& name, const Series& s, double wanted) {
  const size_t threads = b.pool->size();
  const auto row = [&](const char* metric, const char* column, const char* unit) {
    return MakeRow(name, metric, s.Of(column), unit, threads);
  };
  Report& report = *b.report;
  report.Add(
      Against(row("ready_to_committed", "sync", "s"), "full sync", s.Of("full_sync"), wanted));
  report.Add(Against(row("ready_to_committed", "sync", "s"), "memcmp + apply", s.Of("bound")));
  if (s.Has("pairs")) {
    report.Add(
        Against(row("ready_to_committed", "sync", "s"), "pair list, one stream", s.Of("pairs")));
  }
  report.Add(Against(row("pull", "pull", "s"), "full pull", s.Of("full_pull")));
  report.Add(row("publish", "publish", "s"));
  report.Add(row("transfer", "transfer", "s"));
  report.Add(Against(row("apply", "apply", "s"), "apply, in memory", s.Of("apply_only")));
  report.Add(row("wire_bytes", "wire", "MiB"));
  report.Add(row("per_change", "bits", "bits"));
  report.Add(row("density", "density", ""));
}

// A new version in full, the bare reference, and the same version in full again.
Status OneFullPull(const Bench& b, Cluster& cluster, double gigabytes, Series& series) {
  b.workload->Flip(kSteadyDensity);
  DW_RETURN_IF_ERROR(cluster.Publish(*b.workload).status());
  const auto pull = [&](const std::string& column) -> Status {
    const double cpu = cluster.CpuSeconds();
    DW_ASSIGN_OR_RETURN(const v1::PullStats stats, cluster.Sync(true));
    series.Add(column, stats.seconds());
    series.Add(column + "_cpu", (cluster.CpuSeconds() - cpu) / gigabytes);
    return absl::OkStatus();
  };
  DW_RETURN_IF_ERROR(pull("first"));
  const double cpu = b.peer->CpuSeconds();
  DW_ASSIGN_OR_RETURN(const double bare, b.peer->SendAll(b.workload->content()));
  series.Add("bare", bare);
  series.Add("bare_cpu", (b.peer->CpuSeconds() - cpu) / gigabytes);
  return pull("again");
}

}  // namespace

Status FullPull(const Bench& bench, Cluster& cluster) {
  DW_RETURN_IF_ERROR(cluster.Follow(false));
  const double gigabytes = static_cast<double>(bench.bytes()) / kGb;
  DW_ASSIGN_OR_RETURN(const Series series, Measure(bench.rounds, [&](Series& s) {
                        return OneFullPull(bench, cluster, gigabytes, s);
                      }));
  const std::string reference = fmt::format("bare TCP, {} streams", bench.streams);
  const size_t threads = bench.pool->size();
  for (const std::string which : {"first", "again"}) {
    const std::string name = "full_pull/" + which;
    bench.report->Add(
        Against(MakeRow(name, "throughput", Rate(series.Of(which), gigabytes), "GB/s", threads),
                reference, Rate(series.Of("bare"), gigabytes), 0.8));
    bench.report->Add(Against(MakeRow(name, "cpu", series.Of(which + "_cpu"), "s/GB", threads),
                              reference, series.Of("bare_cpu"), 0.8));
  }
  return cluster.Follow(true);
}

Status DeltaSync(const Bench& bench, Cluster& cluster, const std::string& name, double density) {
  const std::string why_no_pairs = WhyNoPairs(bench.workload->content());
  ApplyReference reference(bench.source->layout);
  const DeltaRound round{bench, cluster, reference, density, why_no_pairs.empty()};
  DW_ASSIGN_OR_RETURN(const Series series,
                      Measure(bench.rounds, [&](Series& s) { return OneDelta(round, s); }));
  ReportDelta(bench, name, series, density == kSteadyDensity ? 5 : 0);
  if (!why_no_pairs.empty()) bench.report->NotMeasured(name + " pair list", why_no_pairs);
  return absl::OkStatus();
}

Status Offload(const Bench& bench, Cluster& cluster, const std::string& name) {
  DW_ASSIGN_OR_RETURN(
      const Series series, Measure(bench.rounds, [&](Series& s) -> Status {
        bench.workload->Flip(kSteadyDensity);
        DW_ASSIGN_OR_RETURN(const Publication publication, cluster.Publish(*bench.workload));
        s.Add("write", publication.write_seconds);
        s.Add("publish", publication.info.publish_seconds);
        s.Add("total", publication.write_seconds + publication.info.publish_seconds);
        s.Add("memcpy", CopyTensors(bench.source->layout, bench.workload->content(),
                                    bench.peer->landed(), *bench.pool));
        return absl::OkStatus();
      }));
  const double gigabytes = static_cast<double>(bench.bytes()) / kGb;
  const size_t threads = bench.pool->size();
  bench.report->Add(Against(
      MakeRow(name, "throughput", Rate(series.Of("write"), gigabytes), "GB/s", threads),
      fmt::format("memcpy, {} threads", threads), Rate(series.Of("memcpy"), gigabytes), 0.7));
  bench.report->Add(MakeRow(name, "publish", series.Of("publish"), "s", threads));
  bench.report->Add(MakeRow(name, "offload_publish", series.Of("total"), "s", threads));
  return absl::OkStatus();
}

Status TrainerWait(const Bench& bench, Cluster& cluster) {
  DW_RETURN_IF_ERROR(cluster.Follow(false));
  std::atomic<bool> stop{false};
  size_t pulls = 0;
  Status pull_failure;
  std::thread puller([&] {
    while (!stop) {
      const auto stats = cluster.Sync(true);
      if (!stats.ok()) {
        pull_failure = stats.status();
        return;
      }
      ++pulls;
    }
  });
  const Rounds rounds{bench.rounds.warmups, std::max(bench.rounds.runs, kPublishesUnderLoad)};
  const auto measured = Measure(rounds, [&](Series& s) -> Status {
    bench.workload->Flip(kSteadyDensity);
    DW_RETURN_IF_ERROR(cluster.Publish(*bench.workload).status());
    // At once again: the half that pulls read until a moment ago is wanted back.
    DW_ASSIGN_OR_RETURN(const Publication publication, cluster.Publish(*bench.workload));
    s.Add("call", publication.begin_seconds);
    s.Add("wait", publication.info.trainer_wait_seconds);
    s.Add("write", publication.write_seconds);
    return absl::OkStatus();
  });
  stop = true;
  puller.join();
  DW_RETURN_IF_ERROR(measured.status());
  DW_RETURN_IF_ERROR(pull_failure);
  CopyTensors(bench.source->layout, bench.workload->content(), bench.peer->landed(), *bench.pool);
  const size_t threads = bench.pool->size();
  const double gigabytes = static_cast<double>(bench.bytes()) / kGb;
  bench.report->Add(MakeRow("trainer_wait", "wait", measured->Of("wait"), "s", threads));
  bench.report->Add(MakeRow("trainer_wait", "begin_call", measured->Of("call"), "s", threads));
  bench.report->Add(
      MakeRow("trainer_wait", "offload", Rate(measured->Of("write"), gigabytes), "GB/s", threads));
  bench.report->Add(
      MakeRow("trainer_wait", "pulls", Summarize({static_cast<double>(pulls)}), "", threads));
  bench.report->Add(MakeRow("trainer_wait", "pulls_cut",
                            Summarize({static_cast<double>(cluster.SenderStatus().pulls_cut())}),
                            "", threads));
  return cluster.Follow(true);
}

void Memory(const Bench& bench, Cluster& cluster) {
  constexpr double kLimitMiB = 256;
  const v1::SenderModelStatus status = cluster.SenderStatus();
  const auto add = [&](const char* metric, uint64_t bytes, double limit) {
    Row row = MakeRow("memory", metric, Summarize({static_cast<double>(bytes) / kMiB}), "MiB",
                      bench.pool->size());
    row.wanted.value_at_most = limit;
    bench.report->Add(std::move(row));
  };
  const double log_limit = static_cast<double>(status.log_limit_bytes()) / kMiB;
  add("receiver_peak", cluster.receiver_peak(), kLimitMiB);
  add("receiver_files", cluster.ReceiverFilesBeyond(bench.bytes()), 0);
  add("sender_peak", cluster.sender_peak(), kLimitMiB + log_limit);
  add("sender_files", cluster.SenderFilesBeyond(2 * bench.bytes()), 0);
  add("sender_log", status.log_bytes(), 0);
}

}  // namespace deltawire::bench
