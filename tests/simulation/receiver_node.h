// A receiver's machine: a directory and the process that keeps it in step, with the real Replica.
// Owner: the world. Threads: one. Check() holds the directory against the ledger, at any step.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "receiver/replica.h"
#include "tests/simulation/control.h"
#include "tests/simulation/ledger.h"

namespace deltawire::simulation {

struct ReceiverSettings {
  uint32_t buffers = 1;
  bool copies_for_readers = false;  ///< a reader in the way is waited for at most the grace
  uint32_t streams = 2;
  uint64_t staging_bytes = 1 << 20;
  uint64_t history_bytes = 0;
  uint64_t scrub_bytes_per_s = 0;
  bool leases = true;  ///< the kernel tells who has a file open
  UpstreamOptions upstream;
};

class ReceiverNode : public Node {
 public:
  ReceiverNode(Network& network, const Ledger& ledger, std::vector<SenderNode*> senders,
               std::string node_name, std::filesystem::path directory,
               const ReceiverSettings& settings, Random random);

  void Start();
  /// In its own fiber, as by SIGTERM.
  void Stop();
  /// From now on, also for those that come after it.
  void DenyLeases() {
    settings_.leases = false;
    process->DenyLeases();
  }
  void SetPaused(bool paused);
  /// An operator's `sync` (full or not) and `verify`, in fibers of the process.
  void Sync(bool full);
  void Verify(bool repair);
  const std::filesystem::path& directory() const { return directory_; }
  const ReceiverSettings& settings() const { return settings_; }
  receiver::Replica* replica() const { return replica_; }

  /// Empty, or what is wrong: a named file must be one offered version, at any time.
  std::string Check();
  /// The bytes under the name; nothing when there is no name.
  std::optional<Content> Named() const;
  /// What lies beside it, "" when there is nothing.
  std::string SideFile() const;
  /// From now on; the longest time without a commit since then.
  void TimeCommits() { last_commit_ = Scheduler::current()->now(), longest_gap_ = Time(0); }
  Time longest_gap() const {
    return std::max(longest_gap_, Scheduler::current()->now() - last_commit_);
  }
  uint64_t changes() const { return changes_; }  ///< of the named bytes

 private:
  void Main();
  /// What an orchestrator sees: each commit is an offered state, and versions rise, but for an
  /// operator's full sync.
  void WatchCommits(receiver::Replica& replica);
  /// Whether the file under the name is what the replica says it holds, or soon says another.
  bool ShowsWhatItSays(receiver::Replica& replica, const Identity& id) const;
  void Operate(std::function<void(receiver::Replica&)> call);
  Bytes Data(Bytes file) const;
  /// Calls `see` with the bytes under the name, if there are any.
  void SeeNamed(const std::function<void(Bytes)>& see) const;

  Network& network_;
  const Ledger& ledger_;
  const std::vector<SenderNode*> senders_;
  const std::filesystem::path directory_;
  const std::string weights_;  // their path
  ReceiverSettings settings_;
  Random random_;
  uint64_t starts_ = 0;
  receiver::Replica* replica_ = nullptr;
  bool stopping_ = false;
  uint32_t calls_ = 0;  // of operators, that hold the replica
  uint32_t full_syncs_ = 0;
  bool may_go_back_ = false;  // a full sync goes on, or no commit was seen since
  Identity committed_;        // as the orchestrator saw it last, over restarts
  Time last_commit_{0}, longest_gap_{0};
  uint64_t last_hash_ = 0;
  uint64_t changes_ = 0;
};

}  // namespace deltawire::simulation
