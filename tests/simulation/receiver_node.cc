#include "tests/simulation/receiver_node.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checksum.h"
#include "common/base/sync.h"
#include "common/base/thread_pool.h"
#include "receiver/attach/failover_upstream.h"
#include "tests/simulation/bulk.h"
#include "tests/simulation/decided.h"
#include "tests/simulation/kernel_calls.h"
#include "tests/simulation/planted.h"
#include "tests/simulation/published.h"
#include "tests/simulation/trainer.h"
#include "tests/support/next_commit.h"
#include "tests/support/replica_calls.h"

namespace deltawire::simulation {
namespace {

/// The longest time for which an engine holds the directory.
constexpr std::chrono::milliseconds kEngineHold{400};

/// Empty when the file cannot be read whole, for instance while a lease on it is held.
Content BytesOf(const std::string& path) {
  const int fd = __real_open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat file;
  if (fd < 0) return {};
  Content bytes(::fstat(fd, &file) == 0 ? static_cast<size_t>(file.st_size) : 0);
  const ssize_t n = ::pread(fd, bytes.data(), bytes.size(), 0);
  __real_close(fd);
  return n == static_cast<ssize_t>(bytes.size()) ? bytes : Content{};
}

/// These plants change what senders say, which may not be what gives them away.
bool ChangesIdentities(Plant plant) {
  return plant == Plant::kNumbersOnly || plant == Plant::kDropAttempt;
}

}  // namespace

ReceiverNode::ReceiverNode(Network& network, const Ledger& ledger, std::vector<HostNode*> senders,
                           std::string node_name, std::filesystem::path directory,
                           const ReceiverSettings& settings, Random random)
    : HostNode(network, std::move(node_name), settings.stream_timeout),
      ledger_(ledger),
      senders_(std::move(senders)),
      directory_(std::move(directory)),
      weights_(directory_ / "model.safetensors"),
      kept_(directory_.native() + ".kept"),
      settings_(settings),
      random_(random) {}

void ReceiverNode::Start() {
  process = std::make_shared<Process>(name);
  network_.NodeStarted(name);
  if (!settings_.leases) process->DenyLeases();
  if (!settings_.exchange) process->DenyExchange();
  process->SetBoot(boots_);
  replica_ = nullptr;
  relay_ = nullptr;
  Serve(nullptr, nullptr);
  stopping_ = false;
  serving_ = 0;
  calls_ = full_syncs_ = 0;
  ++starts_;
  process->OnDeath([this] {
    replica_ = nullptr;
    relay_ = nullptr;
    Serve(nullptr, nullptr);
    network_.NodeDied(name);
  });
  Scheduler::current()->Spawn("main", process, [this] { Main(); });
}

void ReceiverNode::Main() {
  Scheduler& scheduler = *Scheduler::current();
  receiver::ReplicaOptions options;
  options.model = kModel;
  options.directory = directory_;
  options.streams = settings_.streams;
  options.staging_bytes = settings_.staging_bytes;
  options.history_bytes = settings_.history_bytes;
  options.scrub_bytes_per_s = settings_.scrub_bytes_per_s;
  options.stream_timeout = settings_.stream_timeout;
  options.huge_pages = false;
  options.seed = random_.Next();
  options.buffers = settings_.buffers;
  options.copy_for_reader = settings_.copies_for_readers;
  options.reader_grace = settings_.reader_grace;
  options.unsafe_in_place = planted() == Plant::kInPlace;
  ThreadPool pool(2, {{0, 1}});
  CoderRates rates;
  std::unique_ptr<receiver::Relay> relay;
  if (settings_.serves) {
    options.relay_number = random_.Next();
    options.served_delta_bytes = 1 << 20;
    relay = std::make_unique<receiver::Relay>(
        receiver::Relay::Options{.delta_log_bytes = 1 << 20, .number = options.relay_number}, pool,
        rates);
    options.downstream = relay->Of(kModel, [this](const std::string& layout, uint32_t chunk) {
      if (replica_ != nullptr) replica_->ReportCorrupt(layout, chunk);
    });
  }
  auto replica = receiver::Replica::Start(
      options, Upstreams(options.seed, options.relay_number),
      [this](net::PullTarget target) { return NewTransport(network_, name, std::move(target)); },
      pool, rates);
  if (!replica.ok()) {
    // Its supervisor starts it again.
    if (process->file_faults() > 0) return process->Kill();
    return scheduler.Fail(name + " does not start: " + std::string(replica.status().message()));
  }
  replica_ = replica->get();
  relay_ = relay.get();
  if (relay != nullptr) Serve(relay.get(), relay.get());
  if (doubted_) {
    scheduler.Spawn("corrupt", process, [this] {
      Scheduler::current()->Sleep(std::chrono::seconds(1));
      doubted_ = false;
    });
  }
  std::vector<Thread> engines;
  for (uint32_t i = 0; i < settings_.engines; ++i) {
    engines.emplace_back([this, &replica, i] { RunEngine(**replica, i); });
  }
  if (settings_.engines > 0) {
    engines.emplace_back([this, &replica] { WatchWaits(**replica); });
  }
  Thread orchestrator([this, &replica] { WatchCommits(**replica); });
  while (!stopping_) scheduler.Block(this, "a signal");
  replica_ = nullptr;
  const Time limit = scheduler.now() + std::chrono::seconds(20);
  if (relay != nullptr) relay->Stop();
  (*replica)->Stop();
  if (relay != nullptr) AwaitServed(limit);
  relay_ = nullptr;
  Serve(nullptr, nullptr);
  orchestrator.join();
  for (Thread& engine : engines) engine.join();
  while (calls_ > 0 && scheduler.now() <= limit) scheduler.Sleep(std::chrono::milliseconds(1));
  replica->reset();
  if (scheduler.now() > limit) scheduler.Fail(name + " took longer than 20 s to stop");
  process->Kill();
}

std::vector<std::unique_ptr<receiver::Upstream>> ReceiverNode::Upstreams(uint64_t seed,
                                                                         uint64_t relay_number) {
  std::vector<std::unique_ptr<receiver::Upstream>> upstreams;
  for (HostNode* sender : senders_) {
    UpstreamOptions upstream = settings_.upstream;
    upstream.node = name;
    upstream.receiver_id = name;
    upstream.peer = fmt::format("{}:{}", name, starts_);
    upstreams.push_back(NewUpstream(network_, *sender, upstream, random_.Fork()));
  }
  if (!settings_.alternatives || upstreams.size() == 1) return upstreams;
  std::vector<std::unique_ptr<receiver::Upstream>> one;
  one.push_back(receiver::MakeFailoverUpstream(std::move(upstreams), seed, relay_number));
  return one;
}

uint64_t ReceiverNode::ahead() const {
  return relay_ == nullptr ? 0 : relay_->ServedOf(kModel).pulls.bytes_ahead;
}

void ReceiverNode::Stop() {
  stopping_ = true;
  Scheduler::current()->Wake(this);
}

void ReceiverNode::Wipe() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
  std::filesystem::create_directories(directory_, ignored);
  ++wipes_;
  doubted_ = false;
  rot_.reset();
  committed_ = {};
  seen_inode_ = 0;
}

void ReceiverNode::Reboot() {
  HostNode::Reboot(directory_, random_);
  doubted_ = true;
  committed_ = {};
  kept_bytes_.clear();
}

void ReceiverNode::Rot() {
  struct stat state;
  const bool known = ::stat((directory_ / ".deltawire.state").c_str(), &state) == 0;
  std::vector<const Process::Mapping*> files;
  for (const Process::Mapping& m : process->mappings()) {
    if (known && m.writable && m.inode != state.st_ino) files.push_back(&m);
  }
  if (files.empty() || rot_) return;
  const Process::Mapping& file = *files[random_.Below(files.size())];
  const Bytes data = DataOf({file.base, file.bytes});
  if (data.empty()) return;
  rot_ = random_.Below(data.size());
  ++rots_;
  const_cast<std::byte&>(data[*rot_]) ^= std::byte{1} << random_.Below(8);
  kept_bytes_.clear();  // it may be the same file
  Scheduler::current()->Note(name + ": a bit rots");
}

void ReceiverNode::RunEngine(receiver::Replica& replica, uint64_t number) {
  Random random(number + starts_);
  const std::string engine = fmt::format("engine {}", number);
  Identity loaded;
  while (!stopping_) {
    Scheduler::current()->Sleep(std::chrono::milliseconds(random.Between(1, 60)));
    const Identity ready = replica.gate().version().Ready();
    // One in three loads again what it has, as an engine that retries.
    if (stopping_ || ready.empty() || (ready == loaded && !random.Chance(0.3))) continue;
    if (!replica.gate().Hold(ready, engine, SteadyClock::now() + kEngineHold)) continue;
    Scheduler::current()->Sleep(Time(random.Below(Time(kEngineHold).count())));
    replica.gate().Release(engine);
    loaded = ready;
  }
}

void ReceiverNode::WatchWaits(receiver::Replica& replica) {
  Time since = kForever, looked{0};
  double waited = 0;  // in all, as of the last look
  while (!stopping_) {
    const receiver::ReplicaStatus status = replica.status();
    const bool waits =
        status.phase == ReceiverPhase::kWaitingForReader && status.readers.starts_with("engine ");
    const Time now = Scheduler::current()->now();
    // One commit may have ended and another one have met holds since the last look.
    const double grown = status.reader_wait_seconds - waited;
    if (grown < std::chrono::duration<double>(now - looked).count() - 1e-6) since = kForever;
    looked = now;
    waited = status.reader_wait_seconds;
    since = waits ? std::min(since, now) : kForever;
    if (waits && now - since > kEngineHold + std::chrono::seconds(1)) {
      Scheduler::current()->Fail(fmt::format("{}: a commit has waited {:.3f} s for {}", name,
                                             std::chrono::duration<double>(now - since).count(),
                                             status.readers));
    }
    Scheduler::current()->Sleep(std::chrono::milliseconds(100));
  }
}

void ReceiverNode::Keep() {
  std::error_code failed;
  std::filesystem::remove(kept_, failed);
  kept_bytes_.clear();
  std::filesystem::create_hard_link(weights_, kept_, failed);
  if (!failed) kept_bytes_ = BytesOf(kept_);
}

std::string ReceiverNode::CheckKept() const {
  if (kept_bytes_.empty() || BytesOf(kept_) == kept_bytes_) return "";
  return name + ": a file that was kept under a second name has been changed";
}

void ReceiverNode::WatchCommits(receiver::Replica& replica) {
  uint64_t seen = 0;
  while (const auto commit = testing::NextCommit(replica, seen, [this] { return stopping_; })) {
    seen = commit->serial;
    const Identity& id = commit->id;
    if (!ledger_.IsOffered(id.id.version, id.root)) {
      Scheduler::current()->Fail(
          fmt::format("{} committed {}, which nobody offered", name, DescribeFully(id)));
    }
    if (!ChangesIdentities(planted()) && !WasPublished(id, settings_.agents)) {
      Scheduler::current()->Fail(
          fmt::format("{} committed {}, which no sender published", name, DescribeFully(id)));
    }
    // Each chunk has its digest, so only a chunk that was left out leads to another root, or one
    // that was found rotten meanwhile.
    if (planted() == Plant::kNone && rots_ == 0 && replica.status().root_mismatches > 0) {
      Scheduler::current()->Fail(fmt::format("{}: what came did not make up a version, before {}",
                                             name, DescribeFully(id)));
    }
    if (settings_.member && !WasDecided(id)) {
      Scheduler::current()->Fail(fmt::format("{} committed {}, which its group has not decided on",
                                             name, DescribeFully(id)));
    }
    // A full sync takes the version that the agents have in common, even an older one.
    // A rotten version is not held any more, either.
    if (IsLater(committed_, id) && !may_go_back_ && !rot_) {
      Scheduler::current()->Fail(
          fmt::format("{} committed {} after {}", name, ToString(id), ToString(committed_)));
    }
    committed_ = id;
    if (full_syncs_ == 0) may_go_back_ = false;
    longest_gap_ = longest_gap();
    last_commit_ = Scheduler::current()->now();
    if (!ShowsWhatItSays(replica, id)) {
      Scheduler::current()->Fail(fmt::format(
          "{} says that it holds {}, and its file has other bytes", name, DescribeFully(id)));
    }
  }
}

bool ReceiverNode::ShowsWhatItSays(receiver::Replica& replica, const Identity& id) const {
  // The file of a newer version has the name a moment before the replica reports the commit.
  for (int looks = 0; looks < 20; ++looks) {
    if (!(replica.status().committed == id)) return true;
    bool other = false;
    SeeNamed([&](Bytes named) { other = !rot_ && !ledger_.HasRoot(named, id.root); });
    if (!other) return true;
    Scheduler::current()->Sleep(std::chrono::milliseconds(50));
  }
  return false;
}

void ReceiverNode::Operate(std::function<void(receiver::Replica&)> call) {
  if (replica_ == nullptr) return;
  Scheduler::current()->Spawn("operator", process, [this, call = std::move(call)] {
    if (replica_ == nullptr) return;
    ++calls_;
    call(*replica_);
    --calls_;
  });
}

void ReceiverNode::SetPaused(bool paused) {
  Operate([this, paused](receiver::Replica& replica) {
    if (!paused) return replica.SetPaused(false);
    (void)testing::PauseOf(replica, [this] { return stopping_; });
  });
}

void ReceiverNode::Sync(bool full) {
  Operate([this, full](receiver::Replica& replica) {
    if (full) ++full_syncs_, may_go_back_ = true;
    (void)testing::SyncOf(replica, full, [this] { return stopping_; });
    if (full) --full_syncs_;
  });
}

void ReceiverNode::Verify(bool repair) {
  Operate([this, repair](receiver::Replica& replica) {
    const auto verified = testing::VerifyOf(replica, repair, [this] { return stopping_; });
    if (verified.ok() && verified->bad_chunks > 0 && !rot_) {
      Scheduler::current()->Fail(
          fmt::format("{}: verify found {} bad chunks", name, verified->bad_chunks));
    }
  });
}

ino_t ReceiverNode::SeeNamed(const std::function<void(Bytes)>& see) const {
  struct stat file;
  if (::stat(weights_.c_str(), &file) != 0) return 0;
  // Opening the file would break a lease, so this looks at the process's own mapping of the same
  // bytes.
  if (alive()) {
    if (const Process::Mapping* m = process->Find(file.st_ino)) {
      see(DataOf({m->base, m->bytes}));
      return file.st_ino;
    }
  }
  if (const Content bytes = BytesOf(weights_); !bytes.empty()) see(DataOf(bytes));
  return 0;
}

std::optional<Content> ReceiverNode::Named() const {
  std::optional<Content> named;
  SeeNamed([&](Bytes bytes) { named.emplace(bytes.begin(), bytes.end()); });
  return named;
}

std::string ReceiverNode::SideFile() const {
  const int fd = __real_open((directory_ / kSideFile).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  char text[64];
  const ssize_t n = ::pread(fd, text, sizeof text, 0);
  __real_close(fd);
  return std::string(text, static_cast<size_t>(std::max<ssize_t>(n, 0)));
}

std::string ReceiverNode::Check() {
  // To ask which file has the name takes longer than to look at its bytes, so the answer is
  // believed until a file changes. What is then found wrong is looked at again.
  const uint64_t changes = FileChanges();
  if (seen_changes_ == changes) {
    if (seen_inode_ == 0) return "";  // no file had the name, or nobody ran who might change it
    const Process::Mapping* m = alive() ? process->Find(seen_inode_) : nullptr;
    if (m != nullptr && CheckNamed(DataOf({m->base, m->bytes})).empty()) return "";
  }
  std::string wrong;
  seen_inode_ = SeeNamed([&](Bytes named) { wrong = CheckNamed(named); });
  seen_changes_ = changes;
  return wrong;
}

bool ReceiverNode::IsVersion(Bytes named) const {
  return ledger_.Find(named) != nullptr || (rot_ && ledger_.FindBut(named, *rot_));
}

std::string ReceiverNode::CheckNamed(Bytes named) {
  if (doubted_) return "";
  const uint64_t hash = Xxh3(named);
  if (hash == last_hash_) return "";
  if (!IsVersion(named)) {
    return fmt::format("{}: model.safetensors is no version that was ever offered:\n{}", name,
                       ledger_.Explain(named));
  }
  last_hash_ = hash;
  ++changes_;
  return "";
}

}  // namespace deltawire::simulation
