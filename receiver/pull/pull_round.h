// One pull: receives every agent's part, applies the parts, asks again for chunks that came out
// wrong, checks each part's root and the whole's, and commits: a state machine (PullRound::Step).
// Owner: a Replica, whose thread drives it; Cancel from any thread. Errors name the agent and end
// the pull; chunks received so far stay in sink and buffer for the next. Only kCommit commits.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/sync.h"
#include "common/base/thread_pool.h"
#include "common/delta/coder_rates.h"
#include "common/delta/pull_stats.h"
#include "common/net/pull_transport.h"
#include "receiver/attach/follower.h"
#include "receiver/attach/upstream.h"
#include "receiver/buffer/buffer.h"
#include "receiver/buffer/buffer_gate.h"
#include "receiver/pull/forwarding.h"
#include "receiver/pull/part_sink.h"
#include "receiver/pull/pull_sink.h"
#include "receiver/pull/replica_history.h"
#include "receiver/pull/round_transfers.h"

namespace deltawire::receiver {

using TransportFactory = std::function<std::unique_ptr<net::PullTransport>(net::PullTarget)>;

/// One agent, as a pull needs it.
struct RoundAgent {
  Upstream* upstream = nullptr;
  Coverage owned;
  uint64_t owned_hash = 0;
  /// The state that the buffer last was wholly, as this agent named it: with the agent's lineage
  /// and the root of its part. Empty: no such state is known.
  Identity held;
  uint32_t streams = 4;   ///< of a pull from it
  net::LinkFigures link;  ///< what the way to it is taken for
  /// Where its last grant's streams went; empty: not known.
  std::string bulk_host;
  uint16_t bulk_port = 0;
};

/// The agents' side files, kept across pulls so that they travel only when they change.
class SideFileCache {
 public:
  explicit SideFileCache(size_t agents) : parts_(agents) {}
  void Put(size_t agent, uint64_t hash, std::vector<SideFile> files);
  bool Has(size_t agent, uint64_t hash) const {
    return parts_[agent].known && parts_[agent].hash == hash;
  }
  /// The side files of all agents. Where several have a file of one name, the first agent's counts.
  std::vector<SideFile> Merged() const;

 private:
  struct AgentFiles {
    bool known = false;
    uint64_t hash = 0;
    std::vector<SideFile> files;
  };
  std::vector<AgentFiles> parts_;
};

/// Where a pull's time went, in seconds, without what it waited for readers.
struct RoundTimes {
  double ahead = 0;     ///< of an unwritten version: before it was published; transfer is after it
  double transfer = 0;  ///< from the call that opens it until the last frame is in
  double stage = 0;     ///< of all streams, within transfer: checking and decoding what came
  double apply = 0;
  double commit = 0;
};

class PullRound {
 public:
  /// kOpen -> kTransfer -> kApply -> kCommit -> kDone; kApply -> kOpen while chunks are bad. With
  /// Wish::hold also kPrepare, once: between kTransfer and kApply where only staged deltas are to
  /// be applied, else between kApply and kCommit.
  enum class Step : uint8_t { kOpen, kTransfer, kPrepare, kApply, kCommit, kDone };
  static constexpr int kMaxRepairs = 3;

  /// The objects that the round works with; they outlive it.
  struct Env {
    const std::string& model;
    Buffer& buffer;
    BufferGate& gate;
    PullSink& sink;
    ReplicaHistory& history;
    SideFileCache& side_files;
    ThreadPool& pool;
    CoderRates& rates;
    const TransportFactory& transport;
    std::chrono::milliseconds stream_timeout{30000};
    net::SocketChoice sockets;
    /// Connect while the pull is asked for, to where the last one's streams went.
    bool connect_ahead = false;
    /// Take side files that an engine may execute.
    bool allow_code_files = false;
    std::function<void(size_t agent, uint64_t bytes)> progress;
    /// Is told of what comes, to serve it on. Null: nobody is served, or not before the commit.
    Forwarding* forward = nullptr;
    /// When the upstream said that the unwritten target is published, and what had come by then.
    struct Published {
      SteadyClock::time_point at;
      uint64_t bytes = 0;
    };
    std::function<std::optional<Published>()> published = nullptr;
  };
  struct Wish {
    Follower::Target target;
    /// Tell the agents that nothing is held, so that every chunk comes whole.
    bool force_full = false;
    /// Make all ready before anything changes that a reader sees; see prepared().
    bool hold = false;
    /// A single agent that grants, or ends at, an older state of this one's lineage is behind;
    /// empty: it may.
    Identity floor;
  };

  /// The outcome of one agent's part.
  struct Result {
    Identity end;             ///< the state that its transfer ended at
    uint64_t side_files = 0;  ///< the hash that its End frame named
    net::LinkSample link;     ///< what the last transfer's connections showed of the way to it
    PullGrant grant;          ///< its last one; without a host if it granted nothing
  };

  /// `agents` are in the target's order. Several agents are asked for exactly the target, a single
  /// agent for its newest state, unless the target is exact.
  PullRound(Env env, std::vector<RoundAgent> agents, Wish wish);

  Step step() const { return step_; }
  /// With Wish::hold: all bytes are here and checked, also as a whole. The further steps need no
  /// agent, unless chunks come out wrong.
  bool prepared() const { return prepared_at_.has_value(); }
  /// Takes the next step. kCommit waits until no engine holds the directory.
  Status Advance();
  /// Ends a running transfer, and makes every later one fail.
  void Cancel() { transfers_.Cancel(); }
  /// An agent that was awaited says that it has its part, or that it is on its way.
  void Told(size_t agent) { transfers_.Tell(agent); }

  // After kTransfer: the state that the buffer will have, as a whole.
  Identity whole() const;
  const PullStats& stats() const { return stats_; }
  /// After kCommit: the delta from the state committed before, if it was recorded; else null.
  const std::shared_ptr<const Delta>& delta() const { return delta_; }
  const Identity& delta_from() const { return delta_from_; }
  const RoundTimes& times() const { return times_; }
  /// By agent.
  const std::vector<Result>& results() const { return results_; }
  /// An agent's fault, after an error of Advance: its stream broke, or it sent something
  /// else than it named. kCancelled: nothing that is known; a call that an agent refused is not
  /// here.
  const Status& fault() const { return fault_; }
  /// True when the error was that the received chunks are not the state that an agent named.
  bool root_mismatch() const { return root_mismatch_; }
  /// Bytes of the chunks that are sure to come whole, to show progress; 0: not known.
  uint64_t bytes_expected() const { return bytes_expected_; }

 private:
  struct Part {
    size_t agent = 0;
    PullGrant grant;
    std::unique_ptr<PartSink> sink;
    std::shared_ptr<net::PullTransport> transport;  ///< null: its agent is awaited
    StatusOr<net::PullEnd> end = absl::UnknownError("not run");
  };

  Status Take(Step step);
  PullWish WishFor(size_t agent) const;
  /// Asks the agent for its part, and connects meanwhile if it is known where to.
  Status OpenPart(Part& part, const PullWish& wish);
  /// BufferGate::WaitWritable, whose time is no step's.
  Status Writable();
  Status Open();
  Status Transfer();
  Status Prepare();
  Status Apply();
  Status Finish();
  /// Whether the agents are asked for exactly the target.
  bool Exact() const { return agents_.size() > 1 || wish_.target.exact; }
  bool Asked(size_t agent) const;
  wire::Have MakeHave() const;
  Status RunParts();
  void RunPart(Part& part, const wire::Have& have);
  /// Opens the part when its agent has told of it. kAborted: the other agents have sent all without
  /// that, so what is left can be pulled when it is published.
  Status AwaitPart(Part& part);
  /// Refuses a single agent's state that is older than the wish's floor.
  Status CheckFloor(size_t agent, const Identity& state) const;
  Status CheckEnd(const Part& part);
  /// Sets what went before the target was published apart from the transfer.
  void NoteAhead();
  /// Notes what the parts' connections showed.
  void NoteLinks();
  /// `staged`: of the chunks as they will be when what is staged is applied.
  Status CheckRoots(bool staged);
  /// Notes `error` as an agent's fault, and returns it.
  Status Blame(Status error);
  Status FetchSideFiles();
  /// All has come: those who are served may end their pulls.
  void ForwardEnd();
  std::string Name(size_t agent) const { return agents_[agent].upstream->address(); }

  const Env env_;
  const std::vector<RoundAgent> agents_;
  const Wish wish_;
  Step step_ = Step::kOpen;
  SteadyClock::time_point start_ = SteadyClock::now();
  SteadyClock::time_point last_frame_ = start_;
  int repairs_ = 0;
  std::vector<uint32_t> bad_, suspects_;
  std::vector<Part> parts_;      // of the next or running transfer
  std::vector<Result> results_;  // by agent
  PullStats stats_;
  std::shared_ptr<const Delta> delta_;
  Identity delta_from_;
  RoundTimes times_;
  double waited_ = 0;  // for readers, in this step
  std::optional<SteadyClock::time_point> prepared_at_;
  double held_ = 0;  // seconds from there until the word
  bool root_mismatch_ = false;
  Status fault_ = absl::CancelledError("no agent is at fault");
  uint64_t bytes_expected_ = 0;
  uint64_t ahead_bytes_ = 0;  // see PullWish; for each agent
  RoundTransfers transfers_;
};

}  // namespace deltawire::receiver
