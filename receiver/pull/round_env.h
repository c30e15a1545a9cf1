// The objects, agents and wish of a pull round.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/thread_pool.h"
#include "common/delta/coder_rates.h"
#include "common/net/pull_transport.h"
#include "receiver/attach/follower.h"
#include "receiver/attach/upstream.h"
#include "receiver/buffer/buffer.h"
#include "receiver/buffer/buffer_gate.h"
#include "receiver/pull/forwarding.h"
#include "receiver/pull/pull_sink.h"
#include "receiver/pull/replica_history.h"
#include "receiver/pull/side_file_cache.h"

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
  net::LinkFigures link;  ///< an estimate of the link to it
  /// Where its last grant's streams went; empty: not known.
  std::string bulk_host;
  uint16_t bulk_port = 0;
};

/// The objects that a round works with; they outlive it.
struct RoundEnv {
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
  /// Connect to the last pull's address while the next pull is still requested.
  bool connect_ahead = false;
  /// Take side files that an engine may execute.
  bool allow_code_files = false;
  std::function<void(size_t agent, uint64_t bytes)> progress;
  /// Forwards what comes to other receivers. Null: none are served, or not before the commit.
  Forwarding* forward = nullptr;
};

struct RoundWish {
  /// Exact: the agents are asked for this state. Else a single agent may send a newer one.
  Follower::Target target;
  /// Tell the agents that nothing is held, so that every chunk comes whole.
  bool force_full = false;
  /// Make all ready before anything changes that a reader sees; see PullRound::prepared.
  bool hold = false;
  /// A single agent that grants, or ends at, an older state of this one's lineage is behind;
  /// empty: it may.
  Identity floor;
};

}  // namespace deltawire::receiver
