// A receiver's machine: a directory and the process that keeps it up to date, with the real
// Replica. Check() compares the directory with the ledger, at any step. Owner: the world. Threads:
// one. Cost: a model's files. Errors: Scheduler::Fail, Check's text.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "receiver/relay/relay.h"
#include "receiver/replica/replica.h"
#include "tests/simulation/control.h"
#include "tests/simulation/host_node.h"
#include "tests/simulation/ledger.h"

namespace deltawire::simulation {

struct ReceiverSettings {
  uint32_t buffers = 1;
  /// On-busy-reader = copy: a reader delays an update by the grace at most.
  bool copies_for_readers = false;
  uint32_t streams = 2;
  uint64_t staging_bytes = 1 << 20;
  uint64_t history_bytes = 0;
  uint64_t scrub_bytes_per_s = 0;
  std::chrono::milliseconds stream_timeout{3000}, reader_grace{500};
  bool leases = true;    ///< the kernel grants leases
  bool exchange = true;  ///< the file system knows RENAME_EXCHANGE
  uint32_t engines = 0;  ///< that load each version from the directory
  bool member = false;   ///< of a group: it may commit what the group has decided on, and no more
  bool serves = false;   ///< it is a relay
  size_t agents = 1;     ///< how many agents' parts make up a version
  /// Of several hosts each is one of a sender's addresses, in order of preference; else each is an
  /// agent.
  bool alternatives = false;
  UpstreamOptions upstream;
};

class ReceiverNode : public HostNode {
 public:
  ReceiverNode(Network& network, const Ledger& ledger, std::vector<HostNode*> senders,
               std::string node_name, std::filesystem::path directory,
               const ReceiverSettings& settings, Random random);

  void Start();
  /// Stops the process in a fiber of its own, like SIGTERM.
  void Stop();
  /// Denies leases from now on, also to later processes of this node.
  void DenyLeases() {
    settings_.leases = false;
    process->DenyLeases();
  }
  /// Empties the directory, like a machine that is set up anew. REQUIRES: no process is alive.
  void Wipe();
  uint64_t wipes() const { return wipes_; }
  uint64_t boots() const { return boots_; }
  /// Starts the machine anew, which voids its state file. REQUIRES: no process is alive.
  void Reboot();
  /// Flips a bit of a weight file of the live process, once until a Wipe. Its element may be wrong
  /// from then on, wherever it is found.
  void Rot();
  bool rotten() const { return rot_.has_value(); }
  uint64_t rots() const { return rots_; }  ///< how often a bit was flipped
  /// The bytes of a named file may be of no version: since a Reboot, and until 1 s after the
  /// process has looked at what it found.
  bool doubted() const { return doubted_; }
  /// Gives the weights a second name elsewhere, as `cp -l` does.
  void Keep();
  /// An error's text, or "". Checks that the second name still shows what it was given to.
  std::string CheckKept() const;
  void SetPaused(bool paused);
  /// Run an operator's `sync` (full or not) and `verify` in fibers of the process.
  void Sync(bool full);
  void Verify(bool repair);
  const std::filesystem::path& directory() const { return directory_; }
  const ReceiverSettings& settings() const { return settings_; }
  receiver::Replica* replica() const { return replica_; }
  /// Payload bytes that this process, a relay, has passed on as they came.
  uint64_t ahead() const;

  /// An error's text, or "". Checks that a named file is exactly one offered version, at any time.
  std::string Check();
  /// The bytes of the named file; nullopt when no file has the name.
  std::optional<Content> Named() const;
  /// The content of the side file; "" when there is none.
  std::string SideFile() const;
  /// Starts measuring the longest time without a commit.
  void TimeCommits() { last_commit_ = Scheduler::current()->now(), longest_gap_ = Time(0); }
  Time longest_gap() const {
    return std::max(longest_gap_, Scheduler::current()->now() - last_commit_);
  }
  uint64_t changes() const { return changes_; }  ///< how often the named bytes changed

 private:
  void Main();
  /// Checks what an orchestrator sees: each commit is an offered state, and versions rise, except
  /// after an operator's full sync.
  void WatchCommits(receiver::Replica& replica);
  /// Whether the named file has the committed state, or the replica soon reports another one.
  bool ShowsWhatItSays(receiver::Replica& replica, const Identity& id) const;
  void Operate(std::function<void(receiver::Replica&)> call);
  /// Calls `see` with the bytes under the name, if there are any. Returns the file's inode if the
  /// running process has it mapped, else 0.
  ino_t SeeNamed(const std::function<void(Bytes)>& see) const;
  /// An error's text, or "": whether these bytes are an offered version.
  std::string CheckNamed(Bytes named);
  bool IsVersion(Bytes named) const;
  /// Holds the directory for each version, as an engine that loads it does; checks that no commit
  /// waits for more than the holds that it met.
  void RunEngine(receiver::Replica& replica, uint64_t number);
  void WatchWaits(receiver::Replica& replica);

  std::vector<std::unique_ptr<receiver::Upstream>> Upstreams(uint64_t seed, uint64_t relay_number);

  const Ledger& ledger_;
  const std::vector<HostNode*> senders_;
  const std::filesystem::path directory_;
  const std::string weights_;  // path of the weights
  const std::string kept_;     // path of their second name
  ReceiverSettings settings_;
  Random random_;
  uint64_t starts_ = 0, wipes_ = 0;
  receiver::Replica* replica_ = nullptr;
  receiver::Relay* relay_ = nullptr;
  bool stopping_ = false;
  uint32_t calls_ = 0;  // running operators' calls, which hold the replica
  uint32_t full_syncs_ = 0;
  bool may_go_back_ = false;  // a full sync runs, or no commit was seen since
  Identity committed_;        // as the orchestrator last saw it, across restarts
  Time last_commit_{0}, longest_gap_{0};
  std::optional<uint64_t> rot_;  // where in the data a bit was flipped
  uint64_t rots_ = 0;
  bool doubted_ = false;
  Content kept_bytes_;  // empty: no second name was given
  uint64_t last_hash_ = 0;
  uint64_t changes_ = 0;
  ino_t seen_inode_ = 0;       // of the file that had the name when Check last looked; 0: none
  uint64_t seen_changes_ = 0;  // FileChanges() then
};

}  // namespace deltawire::simulation
