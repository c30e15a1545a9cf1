// A fleet as `deltawire simulate` reads it: a model and its changes, trainers, sites of receivers,
// the links between them, and the speeds of their machines, in bytes and seconds. Defaults are the
// daemons' own and the results in docs/benchmarks.md. ReadFleet's errors are kInvalidArgument with
// file and line, also for unknown keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/delta/coders.h"
#include "common/layout/dtype.h"
#include "common/plan/payload_size.h"
#include "kernels/format.h"

namespace deltawire::plan {

/// Returns the usual speeds from the table of coders.
inline PerCodec<ThreadSpeeds> UsualSpeeds() {
  PerCodec<ThreadSpeeds> speeds;
  for (const Coder& coder : Coders()) speeds[coder.codec] = coder.usual_speeds;
  return speeds;
}

/// The default speeds of one thread (docs/benchmarks.md: machine A).
struct Speeds {
  double diff_bytes_per_s = 19e9;       ///< of one version: compare, check the base, digest
  double encode_changes_per_s = 650e6;  ///< `fast`, added to the diff
  double apply_bytes_per_s = 87e9;      ///< decode, apply and digest: the cost of touching a chunk
  double apply_changes_per_s = 222e6;   ///< and of each change
  double validate_changes_per_s = 300e6;
  PerCodec<ThreadSpeeds> codecs = UsualSpeeds();
  double send_bytes_per_s = 9e9;
  double receive_bytes_per_s = 3.7e9;  ///< including the checksum or the digest
  double tls_bytes_per_s = 1.9e9;      ///< at each end, with TLS
  double copy_bytes_per_s = 11e9;
  double memory_bytes_per_s_core = 24.5e9;  ///< one core's share of the memory bandwidth
  double frame_seconds = 5e-6;              ///< per frame, at each end
  double publish_chunk_seconds = 1e-6;      ///< per unchanged chunk, at the sender
  double plan_chunk_seconds = 0.2e-6;       ///< per chunk of a pull, one after the other
  double commit_chunk_seconds = 0.3e-6;
  double publish_seconds = 0.5e-3;  ///< per version, however small
  double connect_seconds = 1e-3;    ///< from notice to first frame, without round trips
  double commit_seconds = 1e-3;
};

struct Model {
  std::string name = "policy";
  double bytes = 0;
  uint64_t tensors = 400;
  DType dtype = DType::kBF16;
};

struct Changes {
  double density = 0.01;  ///< share of all elements that change
  double touched = 1;     ///< share of the model's bytes where the changes lie
  ChangeKind kind = ChangeKind::kFp32;
  std::optional<double> difference_bits, tight_ratio, history_ratio;
};

struct Node {
  uint32_t cores = 16;
  uint32_t threads = 0;  ///< the daemon's workers; 0: one per core
  double network = 0;    ///< bytes/s of its network card, each way; 0: 100 Gbit/s, or no limit
  std::string machine;   ///< nodes of one machine share its cores, whose number is `cores`
};

/// A daemon that serves: the sender, or a relay.
struct Serving {
  std::optional<kernels::Codec> codec;  ///< none: auto
  uint32_t history = 4;                 ///< as SenderOptions
  double rate_limit = 0, rate_limit_per_receiver = 0;
  double rate_limit_per_site = 0;  ///< the receivers of a Site report its name
};

struct Trainer : Node, Serving {
  uint32_t nodes = 1;     ///< agents, each with an equal part of the model
  double memory = 0;      ///< bytes/s of a node, for its diff; 0: from the cores
  double early_diff = 0;  ///< share of the model that is diffed while the trainer still writes
  double rate = 0;        ///< of the training site's uplink; 0: no limit of its own
  double price_per_gb = 0;
};

struct Site : Node, Serving {
  std::string name;
  std::string upstream = "trainer";  ///< or an earlier site, whose relays serve it
  uint32_t count = 1;                ///< equal sites, with a link each
  uint32_t receivers = 1;            ///< in one site, relays included
  uint32_t relays = 0;               ///< of the receivers: only these pull from upstream
  /// The sender's --fan-out. If it is not 0, `relays` of the receivers serve, or all if `relays` is
  /// 0.
  uint32_t fan_out = 0;
  double rate = 0;                   ///< of a site's link; 0: as fast as its nodes
  double round_trip = 0.2e-3;        ///< to its upstream
  double local_round_trip = 0.1e-3;  ///< between the site's nodes
  uint32_t streams = 0;     ///< per pull; 0: by the receiver's rule, from what pulls have measured
  double window = 3 << 20;  ///< largest number of in-flight bytes of one stream
  uint32_t buffers = 2;
  double staging = 128 << 20;
  double price_per_gb = 0;
};

struct Machine {
  std::string name;
  uint32_t cores = 2;
  double memory = 0;  ///< bytes/s, for the diff of a trainer on it; 0: from the cores
};

struct Fleet {
  Model model;
  Changes changes;
  Trainer trainer;
  std::vector<Site> sites;
  std::vector<Machine> machines;
  Speeds speeds;
  bool tls = false;
  double link_payload = 0.94;  ///< share of a link's rate that is left for TCP payloads
  double step_seconds = 0;     ///< time between two versions; 0: not given
};

StatusOr<Fleet> ReadFleet(const std::string& file);
/// `name` stands for the file in messages.
StatusOr<Fleet> ParseFleet(std::string_view text, const std::string& name);

}  // namespace deltawire::plan
