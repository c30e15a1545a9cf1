// One pull: asks every agent for its part, lets the parts land, applies them, asks again for chunks
// that came out wrong, checks each part's root and the whole's, and commits. A machine of steps:
//   kOpen -> kTransfer -> kApply -> kCommit -> kDone;  kApply -> kOpen while chunks are bad
// Owner: a Replica, whose thread drives it; Cancel from any. An error (it names the agent) ends it,
// and what landed stays in sink and buffer for the next. Nothing is committed but by kCommit.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/sync.h"
#include "common/base/thread_pool.h"
#include "common/delta/coder_rates.h"
#include "common/delta/pull_stats.h"
#include "common/net/pull_transport.h"
#include "receiver/buffer.h"
#include "receiver/delta_files.h"
#include "receiver/follower.h"
#include "receiver/history.h"
#include "receiver/pull_sink.h"
#include "receiver/upstream.h"

namespace deltawire::receiver {

using TransportFactory = std::function<std::unique_ptr<net::PullTransport>(net::PullTarget)>;

/// An agent as a pull needs it.
struct RoundAgent {
  Upstream* upstream = nullptr;
  Coverage owned;
  uint64_t owned_hash = 0;
  /// What the buffer last was wholly, as this agent named it: its lineage, the root of its part.
  Identity held;
};

/// Side files of the agents, kept over pulls so that they travel only when they change.
class SideFileCache {
 public:
  explicit SideFileCache(size_t agents) : parts_(agents) {}
  void Put(size_t agent, uint64_t hash, std::vector<SideFile> files);
  bool Has(size_t agent, uint64_t hash) const {
    return parts_[agent].known && parts_[agent].hash == hash;
  }
  /// A file that several agents have is the first one's.
  std::vector<SideFile> Merged() const;

 private:
  struct Part {
    bool known = false;
    uint64_t hash = 0;
    std::vector<SideFile> files;
  };
  std::vector<Part> parts_;
};

class PullRound {
 public:
  enum class Step : uint8_t { kOpen, kTransfer, kApply, kCommit, kDone };
  static constexpr int kMaxRepairs = 3;

  /// What it works with; all of it outlives the round.
  struct Env {
    const std::string& model;
    Buffer& buffer;
    PullSink& sink;
    History& history;
    SideFileCache& side_files;
    DeltaFiles& delta_files;
    ThreadPool& pool;
    CoderRates& rates;
    const TransportFactory& transport;
    uint32_t streams = 4;
    std::chrono::milliseconds stream_timeout{30000};
    /// Returns when the buffer's bytes may be changed, however long a reader holds them. Called
    /// between steps, on the thread that drives the round.
    std::function<Status()> writable;
    std::function<void(size_t agent, uint64_t bytes)> progress;
  };
  struct Wish {
    Follower::Target target;
    /// Hold nothing against the agents: every chunk comes whole.
    bool force_full = false;
  };

  /// `agents`: in the target's order. One of several is asked for the target, a single one for the
  /// newest that it has by then.
  PullRound(Env env, std::vector<RoundAgent> agents, Wish wish);

  Step step() const { return step_; }
  Status Advance();
  /// Ends a transfer that runs, and fails every later one.
  void Cancel();

  // After kTransfer: what the buffer is becoming, and by agent.
  Identity whole() const { return Combine(ends_); }
  const std::vector<Identity>& ends() const { return ends_; }
  const PullStats& stats() const { return stats_; }
  /// The error was that the chunks which came do not make up the state that an agent named.
  bool root_mismatch() const { return root_mismatch_; }
  /// Chunks of the transfer that are known to be fetched whole, for progress; 0: not known.
  uint64_t bytes_expected() const { return bytes_expected_; }

 private:
  struct Part {
    size_t agent = 0;
    PullGrant grant;
    std::unique_ptr<PartSink> sink;
    std::shared_ptr<net::PullTransport> transport;
    StatusOr<net::PullEnd> end = absl::UnknownError("not run");
  };

  Status Open();
  Status Transfer();
  Status Apply();
  Status Finish();
  bool Asked(size_t agent) const;
  wire::Have MakeHave() const;
  Status RunParts();
  Status CheckEnd(const Part& part);
  Status CheckRoots();
  Status FetchSideFiles();
  std::string Name(size_t agent) const { return agents_[agent].upstream->address(); }

  const Env env_;
  const std::vector<RoundAgent> agents_;
  const Wish wish_;
  Step step_ = Step::kOpen;
  const SteadyClock::time_point start_ = SteadyClock::now();
  SteadyClock::time_point last_frame_ = start_;
  int repairs_ = 0;
  std::vector<uint32_t> bad_, suspects_;
  std::vector<Part> parts_;  // of the transfer that comes or runs
  std::vector<Identity> ends_;
  std::vector<uint64_t> side_files_;  // hashes that the ends named
  PullStats stats_;
  bool root_mismatch_ = false;
  uint64_t bytes_expected_ = 0;

  Mutex mu_;
  bool cancelled_ = false;
  std::vector<std::shared_ptr<net::PullTransport>> running_;
};

}  // namespace deltawire::receiver
