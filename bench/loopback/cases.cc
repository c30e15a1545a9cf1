#include "bench/loopback/cases.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>

#include "bench/harness/buffers.h"
#include "bench/harness/parallel.h"
#include "bench/loopback/cluster.h"
#include "bench/loopback/tcp_peer.h"

namespace deltawire::bench {
namespace {

/// The shared state of all cases. Between them, the peer's mapping equals the trainer's weights.
struct Rig {
  Bench& bench;
  const ModelSource& source;
  Weights& weights;
  TcpPeer& peer;
  TcpPeer* const tls_peer;  ///< null: no case with TLS was requested
  ThreadPool& pool;
  size_t streams;
  uint64_t bytes() const { return source.layout.total_bytes(); }
};

/// The cases with one pair of daemons. At the end the receiver must hold the trainer's bytes.
struct Group {
  struct Member {
    std::vector<std::string> names;  ///< of its cases
    std::function<Status(const Rig& rig, Cluster& cluster)> run;
  };
  ClusterOptions daemons;
  std::vector<Member> members;

  bool Asked(const Bench& bench) const {
    return std::ranges::any_of(members, [&](const Member& m) { return bench.AnyAsked(m.names); });
  }
};

constexpr const char* kAdam = "delta_sync/adam";

constexpr double kSteadyDensity = 0.01;  // of publishes whose content does not matter
constexpr size_t kPublishesARun = 4;     // while a receiver pulls
constexpr unsigned kWord = 2;            // bytes of a changed value in a pair list
// A GPU's copy engine brings 25 GB/s over PCIe 4 to 50 cores, two of which are here.
constexpr double kTrainerBytesPerS = 1e9;
constexpr double kDaemonMiB = 256;  // limit of memory beyond buffers and the log

double BitsPerChange(const VersionInfo& info) {
  return static_cast<double>(info.delta_bytes + info.full_bytes) * 8 /
         static_cast<double>(std::max<uint64_t>(1, info.changed_elements));
}

// Returns a daemon's files on tmpfs beyond `buffers` (state, side files), in MiB.
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

// Copies the trainer's weights to the peer's mapping, tensor by tensor like a trainer. Returns
// seconds.
double CopyTensors(const Rig& rig) {
  const Layout& layout = rig.source.layout;
  const Bytes from = rig.weights.content();
  const auto start = SteadyClock::now();
  rig.pool.ParallelFor(layout.size(), [&](size_t t) {
    if (layout.bytes(t) == 0) return;
    std::memcpy(&rig.peer.landed()[layout.offset(t)], &from[layout.offset(t)], layout.bytes(t));
  });
  return SecondsSince(start);
}

// Finds the pairs and sends them over one stream; the peer stores them. Returns seconds. Afterwards
// the peer's mapping is the old version again.
StatusOr<double> PairList(const Rig& rig, Reference& pairs) {
  const Bytes content = rig.weights.content();
  Lists there, back;
  DW_RETURN_IF_ERROR(pairs.Encode(content, rig.peer.landed(), kWord, back));
  const auto start = SteadyClock::now();
  DW_RETURN_IF_ERROR(pairs.Encode(rig.peer.landed(), content, kWord, there));
  DW_RETURN_IF_ERROR(rig.peer.SendPairs(there).status());
  const double seconds = SecondsSince(start);
  if (!std::ranges::equal(rig.peer.landed(), content)) {
    return absl::InternalError("the pair list did not make the new version");
  }
  DW_RETURN_IF_ERROR(pairs.Apply(back, kWord, rig.peer.landed()));
  return seconds;
}

std::string WhyNoPairs(uint64_t bytes) {
  if (bytes % kWord != 0) return "the model has an odd number of bytes";
  if (bytes / kWord > std::numeric_limits<uint32_t>::max()) return "more than 2^32 words";
  return "";
}

// Sends a delta through the daemons: publish, the receiver's commit, and a full sync of the same
// version for comparison.
Status SyncBothWays(const Rig& rig, Cluster& cluster, Series& series) {
  DW_ASSIGN_OR_RETURN(const Publication publication, cluster.Publish(rig.weights.content()));
  DW_ASSIGN_OR_RETURN(const v1::CommitInfo commit, cluster.WaitCommitted());
  DW_ASSIGN_OR_RETURN(const v1::PullStats full, cluster.Sync(true));
  const VersionInfo& info = publication.info;
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
  series.Add("ahead", pull.ahead_seconds());
  series.Add("ahead wire", static_cast<double>(pull.ahead_bytes()) / kMiB);
  series.Add("full pull", full.seconds());
  series.Add("full sync", info.publish_seconds + full.seconds());
  series.Add("bits", BitsPerChange(info));
  series.Add("density",
             static_cast<double>(info.changed_elements) / static_cast<double>(info.elements));
  return absl::OkStatus();
}

/// Measures the first full pull of a version, and one more, against bare TCP from memory to memory,
/// or against OpenSSL over bare TCP. The cases are NAME/first and NAME/again.
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
    DW_RETURN_IF_ERROR(cluster.Publish(rig.weights.content()).status());
    DW_RETURN_IF_ERROR(pull(s, "first"));
    const double cpu = peer.CpuSeconds();
    DW_ASSIGN_OR_RETURN(const double bare, peer.SendAll(rig.weights.content()));
    s.Add("bare", bare);
    s.Add("bare cpu", (peer.CpuSeconds() - cpu) / gigabytes);
    return pull(s, "again");
  }));
  const bool tls = &peer != &rig.peer;
  const std::string reference =
      fmt::format("bare {}, {} streams", tls ? "OpenSSL" : "TCP", rig.streams);
  for (const std::string which : {"first", "again"}) {
    rig.bench.Add(name + "/" + which, rig.pool.size(), series,
                  {Throughput(which, rig.bytes()).Against("bare", reference).AtLeast(wanted),
                   Value("cpu", which + " cpu", "s/GB")
                       .Against("bare cpu", reference)
                       .AtLeast(tls ? 0.8 : 0.89)});
  }
  return cluster.Follow(true);
}

/// Measures publishes that change `density` of the elements (0: recorded Adam steps) to a receiver
/// that follows, against a full sync of the same version, memcmp + apply, and a naive pair list.
/// `wanted`, if not 0, is the mark for the ratio to memcmp + apply.
Status DeltaSync(const Rig& rig, Cluster& cluster, const std::string& name, double density,
                 double wanted = 0) {
  const std::string why_no_pairs = WhyNoPairs(rig.bytes());
  Reference pairs(kPairs);
  const kernels::DigestKey key(1);
  DW_ASSIGN_OR_RETURN(const ChunkTable chunks, ChunkTable::Create(rig.source.layout));
  const Bytes content = rig.weights.content();
  const MutableBytes landed = rig.peer.landed();
  DW_ASSIGN_OR_RETURN(const Series series, rig.bench.Measure([&](Series& s) -> Status {
    DW_RETURN_IF_ERROR(s.Time("memcmp", [&] {
      return ForAll(rig.pool, chunks.size(), [&](size_t i) {
        const Chunk& c = chunks[static_cast<uint32_t>(i)];
        return std::memcmp(&content[c.offset], &landed[c.offset], c.bytes) == 0
                   ? absl::OkStatus()
                   : absl::InternalError("the references do not hold the trainer's bytes");
      });
    }));
    if (density > 0) {
      rig.weights.Flip(density);
    } else {
      DW_RETURN_IF_ERROR(rig.weights.AdamStep(rig.pool));
    }
    DW_RETURN_IF_ERROR(SyncBothWays(rig, cluster, s));
    if (why_no_pairs.empty()) {
      DW_ASSIGN_OR_RETURN(const double seconds, PairList(rig, pairs));
      s.Add("pair list, one stream", seconds);
    }
    const auto delta = DiffAll(key, chunks, landed, content, rig.pool);
    DW_RETURN_IF_ERROR(s.Time("apply, in memory", [&] {
      return ApplyAll(key, chunks, delta->chunks(), landed, rig.pool);
    }));
    s.Add("memcmp + apply", s.Of("memcmp").back() + s.Of("apply, in memory").back());
    return absl::OkStatus();
  }));
  const Figure sync = Value("ready_to_committed", "sync");
  std::vector<Figure> figures = {
      Figure(sync).Against("full sync").AtLeast(density == kSteadyDensity ? 5 : 0),
      Figure(sync).Against("memcmp + apply").AtLeast(wanted)};
  if (why_no_pairs.empty()) figures.push_back(Figure(sync).Against("pair list, one stream"));
  figures.insert(
      figures.end(),
      {Value("pull", "pull").Against("full pull"), Value("publish", "publish"),
       Value("transfer", "transfer"), Value("apply", "apply").Against("apply, in memory"),
       Value("wire_bytes", "wire", "MiB"), Value("per_change", "bits", "bits"),
       Value("density", "density", ""), Value("ahead", "ahead"),
       Value("ahead_bytes", "ahead wire", "MiB")});
  rig.bench.Add(name, rig.pool.size(), series, figures);
  if (!why_no_pairs.empty()) rig.bench.NotMeasured(name + " pair list", why_no_pairs);
  return absl::OkStatus();
}

/// Measures from the trainer's first write to the commit, against the same copy and publish with a
/// paused receiver.
Status FirstByte(const Rig& rig, Cluster& cluster, const std::string& name) {
  DW_RETURN_IF_ERROR(cluster.Follow(false));
  Status measured = rig.bench.Run(
      name, rig.pool.size(),
      {Value("first_byte_to_committed", "all")
           .Against("alone", "the same copy and publish, the receiver paused")
           .AtLeast(0.8),
       Value("write", "write"), Value("write_alone", "write alone")},
      [&](Series& s) -> Status {
        rig.weights.Flip(kSteadyDensity);
        DW_ASSIGN_OR_RETURN(const Publication alone, cluster.Publish(rig.weights.content()));
        s.Add("write alone", alone.write_seconds);
        s.Add("alone", alone.write_seconds + alone.info.publish_seconds);
        DW_RETURN_IF_ERROR(cluster.Follow(true));
        DW_RETURN_IF_ERROR(cluster.WaitCommitted().status());
        rig.weights.Flip(kSteadyDensity);
        DW_ASSIGN_OR_RETURN(const Publication with, cluster.Publish(rig.weights.content()));
        DW_ASSIGN_OR_RETURN(const v1::CommitInfo commit, cluster.WaitCommitted());
        s.Add("write", with.write_seconds);
        const int64_t nanos = commit.committed_unix_nanos() - with.info.ready_unix_nanos;
        s.Add("all", with.write_seconds + static_cast<double>(nanos) / 1e9);
        CopyTensors(rig);
        return cluster.Follow(false);
      });
  DW_RETURN_IF_ERROR(measured);
  return cluster.Follow(true);
}

/// Measures the trainer's copy into the half, against memcpy.
Status Offload(const Rig& rig, Cluster& cluster, const std::string& name) {
  DW_RETURN_IF_ERROR(cluster.Follow(false));
  return rig.bench.Run(
      name, rig.pool.size(),
      {Throughput("write", rig.bytes())
           .Against("memcpy", fmt::format("memcpy, {} threads", rig.pool.size()))
           .AtLeast(0.7),
       Value("publish", "publish"), Value("offload_publish", "both")},
      [&](Series& s) -> Status {
        rig.weights.Flip(kSteadyDensity);
        DW_ASSIGN_OR_RETURN(const Publication publication, cluster.Publish(rig.weights.content()));
        s.Add("write", publication.write_seconds);
        s.Add("publish", publication.info.publish_seconds);
        s.Add("both", publication.write_seconds + publication.info.publish_seconds);
        s.Add("memcpy", CopyTensors(rig));
        return absl::OkStatus();
      });
}

/// Measures how long BeginOffload waits while a receiver repeatedly pulls everything.
Status TrainerWait(const Rig& rig, Cluster& cluster) {
  DW_RETURN_IF_ERROR(cluster.Follow(false));
  size_t pulls = 0;
  Status pulled;
  std::jthread puller([&](const std::stop_token& stop) {
    for (; !stop.stop_requested() && pulled.ok(); ++pulls) pulled = cluster.Sync(true).status();
  });
  const auto measured = rig.bench.Measure([&](Series& s) -> Status {
    for (size_t i = 0; i < kPublishesARun; ++i) {
      rig.weights.Flip(kSteadyDensity);
      DW_RETURN_IF_ERROR(cluster.Publish(rig.weights.content()).status());
      // The second publish comes at once, so it needs the half that pulls have just read.
      DW_ASSIGN_OR_RETURN(const Publication publication, cluster.Publish(rig.weights.content()));
      s.Add("begin", publication.begin_seconds);
      s.Add("wait", publication.info.trainer_wait_seconds);
      s.Add("write", publication.write_seconds);
    }
    return absl::OkStatus();
  });
  puller.request_stop();
  puller.join();
  DW_RETURN_IF_ERROR(pulled);
  DW_ASSIGN_OR_RETURN(const Series series, measured);
  CopyTensors(rig);
  const char* const name = "trainer_wait";
  rig.bench.Add(name, rig.pool.size(), series,
                {Value("wait", "wait"), Value("begin_call", "begin"),
                 Throughput("write", rig.bytes(), "offload")});
  rig.bench.AddValue(name, "pulls", static_cast<double>(pulls), "");
  rig.bench.AddValue(name, "pulls_cut", static_cast<double>(cluster.SenderStatus().pulls_cut()),
                     "");
  return cluster.Follow(true);
}

/// Reports the daemons' peak memory so far, without loading them.
Status Memory(const Rig& rig, Cluster& cluster) {
  DW_RETURN_IF_ERROR(cluster.Sync(false).status());
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
  add("sender_files", FilesBeyond(cluster.sender().dir(), 2 * model));
  add("sender_log", mebibytes(status.log_bytes()));
  return absl::OkStatus();
}

Status Adam(const Rig& rig, Cluster& cluster) {
  if (rig.weights.adam_steps_left() >= rig.bench.rounds.total()) {
    return DeltaSync(rig, cluster, kAdam, 0);
  }
  rig.bench.NotMeasured(kAdam, rig.weights.why_no_adam());
  return absl::OkStatus();
}

Group::Member Sync(const std::string& name, double density, double wanted = 0) {
  return {{name},
          [=](const Rig& rig, Cluster& c) { return DeltaSync(rig, c, name, density, wanted); }};
}
Group::Member First(const std::string& name) {
  return {{name}, [=](const Rig& rig, Cluster& c) { return FirstByte(rig, c, name); }};
}
Group::Member Copy(const std::string& name) {
  return {{name}, [=](const Rig& rig, Cluster& c) { return Offload(rig, c, name); }};
}
Group::Member Pull(const std::string& name, bool tls, double wanted) {
  return {{name + "/first", name + "/again"}, [=](const Rig& rig, Cluster& c) {
            return FullPull(rig, c, tls ? *rig.tls_peer : rig.peer, name, wanted);
          }};
}

std::vector<Group> AllGroups() {
  return {
      {{},
       {Pull("full_pull", false, 0.9),
        Sync("delta_sync/1%", 0.01),
        Sync("delta_sync/3%", 0.03),
        {{kAdam}, Adam},
        Copy("offload/eager"),
        {{"trainer_wait"}, TrainerWait},
        {{"memory"}, Memory}}},
      // A receiver with one buffer changes the named file; one with two swaps it for another.
      {{.buffers = 1},
       {Sync("delta_sync/1%/buffers=1", 0.01, 1 / 0.9), First("first_byte/buffers=1")}},
      {{.buffers = 2},
       {Sync("delta_sync/1%/buffers=2", 0.01, 1 / 0.5), First("first_byte/buffers=2")}},
      // The same, but the trainer's bytes come at the pace of a GPU's copy engine and use no core.
      {{.buffers = 1, .trainer_bytes_per_s = kTrainerBytesPerS},
       {Sync("delta_sync/1%/buffers=1/paced", 0.01, 1 / 0.9), First("first_byte/buffers=1/paced")}},
      {{.buffers = 2, .trainer_bytes_per_s = kTrainerBytesPerS},
       {Sync("delta_sync/1%/buffers=2/paced", 0.01, 1 / 0.5), First("first_byte/buffers=2/paced")}},
      // The same, but receivers get no chunks before the publish.
      {{.buffers = 1, .sender = {"--early", "diff"}}, {Sync("delta_sync/1%/buffers=1/late", 0.01)}},
      {{.buffers = 2, .sender = {"--early", "diff"}}, {Sync("delta_sync/1%/buffers=2/late", 0.01)}},
      {{.tls = true}, {Pull("full_pull_tls", true, 0.88)}},
      {{.receiver = false, .sender = {"--early", "off"}}, {Copy("offload/no_eager")}}};
}

/// Runs the requested cases of a group. `root` is removed at the end.
Status RunGroup(const Group& group, const Rig& rig, const std::filesystem::path& root) {
  ClusterOptions daemons = group.daemons;
  daemons.streams = rig.streams;
  Cluster cluster(root, rig.source, daemons, rig.pool);
  DW_RETURN_IF_ERROR(cluster.Begin(rig.weights.content()));
  CopyTensors(rig);
  for (const Group::Member& member : group.members) {
    if (rig.bench.AnyAsked(member.names)) DW_RETURN_IF_ERROR(member.run(rig, cluster));
  }
  if (!daemons.receiver) return absl::OkStatus();
  DW_RETURN_IF_ERROR(cluster.Sync(false).status());
  const std::string wrong = cluster.Compare(rig.weights.content());
  if (wrong.empty()) return absl::OkStatus();
  return Errorf(StatusCode::kDataLoss, "the receiver does not hold the trainer's bytes: {}", wrong);
}

}  // namespace

Status ModelCases(const LoopbackOptions& options, Bench& bench) {
  std::vector<Group> groups = AllGroups();
  std::erase_if(groups, [&](const Group& group) { return !group.Asked(bench); });
  if (groups.empty()) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const ModelSource source,
                      options.model.empty()
                          ? ModelSource::Synthetic(bench.quick ? "tiny" : options.size)
                          : ModelSource::Directory(options.model));
  DW_ASSIGN_OR_RETURN(const auto scratch, ScratchDir::Create());
  const uint64_t bytes = source.layout.total_bytes();
  DW_ASSIGN_OR_RETURN(const auto peer,
                      TcpPeer::Start(scratch->path() / "peer", bytes, options.streams));
  std::unique_ptr<TcpPeer> tls_peer;
  if (std::ranges::any_of(groups, [](const Group& group) { return group.daemons.tls; })) {
    const testing::TestAuthority authority(scratch->path() / "keys");
    DW_ASSIGN_OR_RETURN(tls_peer, TcpPeer::Start(scratch->path() / "tls-peer", bytes,
                                                 options.streams, authority.Node("peer")));
  }
  ThreadPool pool(options.threads);  // no process forks without exec from here on
  fmt::print("          {} ({}), {} streams, {} threads\n\n", source.name, HumanBytes(bytes),
             options.streams, pool.size());
  bench.Common("model", source.name);
  bench.Common("model_bytes", bytes);
  bench.Common("streams", options.streams);
  const size_t adam_steps = bench.Asked(kAdam) ? bench.rounds.total() : 0;
  DW_ASSIGN_OR_RETURN(const auto weights, Weights::Create(source, scratch->path() / "trainer",
                                                          bench.seed, adam_steps, pool));
  const Rig rig{bench, source, *weights, *peer, tls_peer.get(), pool, options.streams};
  for (const Group& group : groups) {
    DW_RETURN_IF_ERROR(RunGroup(group, rig, scratch->path() / "daemons"));
  }
  return absl::OkStatus();
}

}  // namespace deltawire::bench
