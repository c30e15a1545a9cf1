// The cases of the loopback suite. Each measures through a cluster and adds its rows.
// A Rig bundles what they share; all its references outlive the calls. One thread.
// Invariant between cases: the peer's mapping holds what the trainer's weights hold.
#pragma once

#include "bench/harness/bench.h"
#include "bench/loopback/cluster.h"
#include "bench/loopback/tcp_peer.h"

namespace deltawire::bench {

struct Rig {
  Bench& bench;
  const ModelSource& source;
  Weights& weights;
  TcpPeer& peer;
  TcpPeer* const tls_peer;  ///< null: no case with TLS was asked for
  ThreadPool& pool;
  size_t streams = 4;
  uint64_t bytes() const { return source.layout.total_bytes(); }
};

/// What runs with one pair of daemons; at the end the receiver must hold the trainer's bytes.
struct Group {
  struct Member {
    std::vector<std::string> names;  ///< of its cases
    std::function<Status(const Rig& rig, Cluster& cluster)> run;
  };
  ClusterOptions daemons;
  std::vector<Member> members;

  /// Whether any of its cases was asked for.
  bool Asked(const Bench& bench) const;
};
/// All cases but scale/N.
std::vector<Group> ModelCases();
inline constexpr const char* kAdam = "delta_sync/adam";

/// Runs those cases of a group that were asked for. `root` is removed at the end.
Status RunGroup(const Group& group, const Rig& rig, const std::filesystem::path& root);

/// scale/N: registration, publishes, a first commit and a restart of a model of many tiny tensors,
/// with daemons of its own.
Status ScaleCases(Bench& bench);

}  // namespace deltawire::bench
