#include "bench/loopback/cases.h"

#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "bench/loopback/references.h"

namespace deltawire::bench {
namespace {

constexpr double kSteadyDensity = 0.01;  // of publishes whose content does not matter
constexpr size_t kPublishesUnderLoad = 20;
constexpr double kDaemonMiB = 256;  // of memory beyond buffers and the log, at most

double BitsPerChange(const PublishedVersion& info) {
  return static_cast<double>(info.delta_bytes + info.full_bytes) * 8 /
         static_cast<double>(std::max<uint64_t>(1, info.changed_elements));
}

// A daemon's files on tmpfs beyond `buffers` (state, side files), in MiB.
double FilesBeyond(const std::filesystem::path& dir, uint64_t buffers) {
  uint64_t bytes = 0;
  std::error_code ec;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir, ec)) {
    struct stat info {};
    if (lstat(entry.path().c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
      bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
  }
  return static_cast<double>(bytes - std::min(bytes, buffers)) / kMiB;
}

// Takes a delta through the daemons: publish, the receiver's commit, and a full sync of the same
// version for comparison.
Status SyncBothWays(const Rig& rig, Cluster& cluster, Series& series) {
  DW_ASSIGN_OR_RETURN(const Publication publication, cluster.Publish(rig.weights));
  DW_ASSIGN_OR_RETURN(const v1::CommitInfo commit, cluster.WaitCommitted());
  DW_ASSIGN_OR_RETURN(const v1::PullStats full, cluster.Sync(true));
  const PublishedVersion& info = publication.info;
  const v1::PullStats& pull = commit.stats();
  if (full.chunks_delta() != 0 || pull.chunks_full() == full.chunks_full()) {
    return absl::InternalError("a full sync moved deltas, or a delta sync moved everything");
  }
  series.Add("sync",
             static_cast<double>(commit.committed_unix_nanos() - info.ready_unix_nanos) / 1e9);
  series.Add("publish", info.publish_seconds);
  series.Add("pull", pull.seconds());
  series.Add("transfer", pull.transfer_seconds());
  series.Add("apply", pull.apply_seconds());
  series.Add("wire", static_cast<double>(pull.payload_bytes()) / kMiB);
  series.Add("full pull", full.seconds());
  series.Add("full sync", info.publish_seconds + full.seconds());
  series.Add("bits", BitsPerChange(info));
  series.Add("density",
             static_cast<double>(info.changed_elements) / static_cast<double>(info.elements));
  return absl::OkStatus();
}

}  // namespace

Status FullPull(const Rig& rig, Cluster& cluster, TcpPeer& peer, const std::string& name,
                double wanted) {
  DW_RETURN_IF_ERROR(cluster.Follow(false));
  const double gigabytes = static_cast<double>(rig.bytes()) / kGb;
  const auto pull = [&](Series& series, const std::string& column) -> Status {
    const double cpu = cluster.CpuSeconds();
    DW_ASSIGN_OR_RETURN(const v1::PullStats stats, cluster.Sync(true));
    series.Add(column, stats.seconds());
    series.Add(column + " cpu", (cluster.CpuSeconds() - cpu) / gigabytes);
    return absl::OkStatus();
  };
  DW_ASSIGN_OR_RETURN(const Series series, rig.bench.Measure([&](Series& s) -> Status {
    rig.weights.Flip(kSteadyDensity);
    DW_RETURN_IF_ERROR(cluster.Publish(rig.weights).status());
    DW_RETURN_IF_ERROR(pull(s, "first"));
    const double cpu = peer.CpuSeconds();
    DW_ASSIGN_OR_RETURN(const double bare, peer.SendAll(rig.weights.content()));
    s.Add("bare", bare);
    s.Add("bare cpu", (peer.CpuSeconds() - cpu) / gigabytes);
    return pull(s, "again");
  }));
  const std::string reference =
      fmt::format("bare {}, {} streams", &peer == &rig.peer ? "TCP" : "OpenSSL", rig.streams);
  for (const std::string which : {"first", "again"}) {
    rig.bench.Add(
        name + "/" + which, rig.pool.size(), series,
        {Throughput(which, rig.bytes()).Against("bare", reference).AtLeast(wanted),
         Value("cpu", which + " cpu", "s/GB").Against("bare cpu", reference).AtLeast(0.8)});
  }
  return cluster.Follow(true);
}

Status DeltaSync(const Rig& rig, Cluster& cluster, const std::string& name, double density) {
  const std::string why_no_pairs = WhyNoPairs(rig.weights.content());
  DW_ASSIGN_OR_RETURN(ChunkTable chunks, ChunkTable::Create(rig.source.layout));
  ApplyReference reference(std::move(chunks), rig.pool);
  DW_ASSIGN_OR_RETURN(const Series series, rig.bench.Measure([&](Series& s) -> Status {
    const MutableBytes landed = rig.peer.landed();
    const double compare = reference.Compare(rig.weights.content(), landed);
    if (density > 0) {
      rig.weights.Flip(density);
    } else {
      rig.weights.AdamStep();
    }
    DW_RETURN_IF_ERROR(SyncBothWays(rig, cluster, s));
    if (why_no_pairs.empty()) {
      DW_ASSIGN_OR_RETURN(const double pairs, NaivePairs(rig.weights.content(), rig.peer));
      s.Add("pair list, one stream", pairs);
    }
    reference.Encode(landed, rig.weights.content());
    DW_ASSIGN_OR_RETURN(const double apply, reference.Apply(landed));
    s.Add("apply, in memory", apply);
    s.Add("memcmp + apply", compare + apply);
    return absl::OkStatus();
  }));
  const Figure sync = Value("ready_to_committed", "sync");
  std::vector<Figure> figures = {
      Figure(sync).Against("full sync").AtLeast(density == kSteadyDensity ? 5 : 0),
      Figure(sync).Against("memcmp + apply")};
  if (why_no_pairs.empty()) figures.push_back(Figure(sync).Against("pair list, one stream"));
  figures.insert(
      figures.end(),
      {Value("pull", "pull").Against("full pull"), Value("publish", "publish"),
       Value("transfer", "transfer"), Value("apply", "apply").Against("apply, in memory"),
       Value("wire_bytes", "wire", "MiB"), Value("per_change", "bits", "bits"),
       Value("density", "density", "")});
  rig.bench.Add(name, rig.pool.size(), series, figures);
  if (!why_no_pairs.empty()) rig.bench.report().NotMeasured(name + " pair list", why_no_pairs);
  return absl::OkStatus();
}

Status Offload(const Rig& rig, Cluster& cluster, const std::string& name) {
  DW_ASSIGN_OR_RETURN(const Series series, rig.bench.Measure([&](Series& s) -> Status {
    rig.weights.Flip(kSteadyDensity);
    DW_ASSIGN_OR_RETURN(const Publication publication, cluster.Publish(rig.weights));
    s.Add("write", publication.write_seconds);
    s.Add("publish", publication.info.publish_seconds);
    s.Add("both", publication.write_seconds + publication.info.publish_seconds);
    s.Add("memcpy",
          CopyTensors(rig.source.layout, rig.weights.content(), rig.peer.landed(), rig.pool));
    return absl::OkStatus();
  }));
  rig.bench.Add(name, rig.pool.size(), series,
                {Throughput("write", rig.bytes())
                     .Against("memcpy", fmt::format("memcpy, {} threads", rig.pool.size()))
                     .AtLeast(0.7),
                 Value("publish", "publish"), Value("offload_publish", "both")});
  return absl::OkStatus();
}

Status TrainerWait(const Rig& rig, Cluster& cluster) {
  DW_RETURN_IF_ERROR(cluster.Follow(false));
  std::atomic<bool> stop{false};
  size_t pulls = 0;
  Status pull_failure;
  std::thread puller([&] {
    for (; !stop && pull_failure.ok(); ++pulls) pull_failure = cluster.Sync(true).status();
  });
  Series series;
  Status failure;
  const size_t runs = std::max(rig.bench.rounds.runs, kPublishesUnderLoad);
  for (size_t i = 0; i < rig.bench.rounds.warmups + runs && failure.ok(); ++i) {
    rig.weights.Flip(kSteadyDensity);
    failure = cluster.Publish(rig.weights).status();
    if (!failure.ok()) break;
    // The second publish comes at once, so it wants the half that pulls read until a moment ago.
    const auto publication = cluster.Publish(rig.weights);
    failure = publication.status();
    if (!failure.ok() || i < rig.bench.rounds.warmups) continue;
    series.Add("begin", publication->begin_seconds);
    series.Add("wait", publication->info.trainer_wait_seconds);
    series.Add("write", publication->write_seconds);
  }
  stop = true;
  puller.join();
  failure.Update(pull_failure);
  DW_RETURN_IF_ERROR(failure);
  CopyTensors(rig.source.layout, rig.weights.content(), rig.peer.landed(), rig.pool);
  const char* const name = "trainer_wait";
  rig.bench.Add(name, rig.pool.size(), series,
                {Value("wait", "wait"), Value("begin_call", "begin"),
                 Throughput("write", rig.bytes(), "offload")});
  rig.bench.AddValue(name, "pulls", static_cast<double>(pulls), "");
  rig.bench.AddValue(name, "pulls_cut", static_cast<double>(cluster.SenderStatus().pulls_cut()),
                     "");
  return cluster.Follow(true);
}

void Memory(const Rig& rig, Cluster& cluster) {
  const v1::SenderModelStatus status = cluster.SenderStatus();
  const uint64_t model = rig.bytes();
  const auto add = [&](const char* metric, double mebibytes, double limit = 0) {
    rig.bench.AddValue("memory", metric, mebibytes, "MiB", limit, "", rig.pool.size());
  };
  const auto mebibytes = [](uint64_t bytes) { return static_cast<double>(bytes) / kMiB; };
  add("receiver_peak", mebibytes(cluster.receiver_peak()), kDaemonMiB);
  add("receiver_files", FilesBeyond(cluster.receiver_dir(), model));
  add("sender_peak", mebibytes(cluster.sender_peak()),
      kDaemonMiB + mebibytes(status.log_limit_bytes()));
  add("sender_files", FilesBeyond(cluster.sender_dir(), 2 * model));
  add("sender_log", mebibytes(status.log_bytes()));
}

}  // namespace deltawire::bench
