// A fleet as `deltawire simulate` reads it: a model, how it changes, trainers, sites of receivers
// and the links between, and the speeds of their machines. Plain values, in bytes and seconds.
// Defaults are the daemons' own and what docs/benchmarks.md measured. Errors of ReadFleet:
// kInvalidArgument with file and line; unknown keys are refused by name.
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

/// What the table of coders says of each codec.
inline PerCodec<ThreadSpeeds> UsualSpeeds() {
  PerCodec<ThreadSpeeds> speeds;
  for (const Coder& coder : Coders()) speeds[coder.codec] = coder.usual_speeds;
  return speeds;
}

/// Of one thread where nothing else is said (docs/benchmarks.md: machine A).
struct Speeds {
  double diff_bytes_per_s = 19e9;       ///< of one version's bytes: compare, check the base, digest
  double encode_changes_per_s = 650e6;  ///< `fast`, beside the diff
  double apply_bytes_per_s = 87e9;      ///< decode, apply and digest: what touching a chunk costs
  double apply_changes_per_s = 222e6;   ///< and each change
  double validate_changes_per_s = 300e6;
  PerCodec<ThreadSpeeds> codecs = UsualSpeeds();
  double send_bytes_per_s = 9e9;
  double receive_bytes_per_s = 3.7e9;  ///< with the checksum or the digest of what comes
  double tls_bytes_per_s = 1.9e9;      ///< at each end, where TLS is on
  double copy_bytes_per_s = 11e9;
  double memory_bytes_per_s_core = 24.5e9;  ///< what a core's share of the memory's bandwidth is
  double frame_seconds = 5e-6;              ///< of a frame, at each end
  double publish_chunk_seconds = 1e-6;      ///< of a chunk that did not change, at the sender
  double plan_chunk_seconds = 0.2e-6;       ///< of each chunk of a pull, one after the other
  double commit_chunk_seconds = 0.3e-6;
  double publish_seconds = 0.5e-3;  ///< of a version however small
  double connect_seconds = 1e-3;    ///< from the word of a version to the first frame, less trips
  double commit_seconds = 1e-3;
};

struct Model {
  std::string name = "policy";
  double bytes = 0;
  uint64_t tensors = 400;
  DType dtype = DType::kBF16;
};

struct Changes {
  double density = 0.01;  ///< share of all elements
  double touched = 1;     ///< share of the model's bytes in which they lie
  ChangeKind kind = ChangeKind::kFp32;
  std::optional<double> difference_bits, tight_ratio, history_ratio;
};

/// What every node has.
struct Node {
  uint32_t cores = 16;
  uint32_t threads = 0;  ///< workers of the daemon; 0: one for each core
  double network = 0;    ///< bytes/s of its network card, each way; 0: 100 Gbit/s, or no limit
  std::string machine;   ///< nodes of one machine share its cores, and `cores` says how many
};

/// A daemon that serves: the sender, or a relay.
struct Serving {
  std::optional<kernels::Codec> codec;  ///< none: auto
  uint32_t history = 4;
  double rate_limit = 0, rate_limit_per_receiver = 0;
  double rate_limit_per_site = 0;  ///< the receivers of a Site say its name
};

struct Trainer : Node, Serving {
  uint32_t nodes = 1;     ///< agents, each of an equal part of the model
  double memory = 0;      ///< bytes/s of a node, for its diff; 0: by the cores
  double early_diff = 0;  ///< share of the model that is diffed while the trainer still writes
  double rate = 0;        ///< of the link by which the training site is left; 0: none of its own
  double price_per_gb = 0;
};

struct Site : Node, Serving {
  std::string name;
  std::string upstream = "trainer";  ///< or an earlier site, whose relays serve it
  uint32_t count = 1;                ///< sites alike, with a link each
  uint32_t receivers = 1;            ///< of one site, relays included
  uint32_t relays = 0;               ///< of the receivers: only these pull from upstream
  /// The sender says whom each of the site follows (--assign-upstreams), and this is its --fan-out;
  /// `relays` of the receivers serve then, or all if it is 0. 0: it does not.
  uint32_t fan_out = 0;
  double rate = 0;                   ///< of a site's link; 0: as fast as its nodes
  double round_trip = 0.2e-3;        ///< to its upstream
  double local_round_trip = 0.1e-3;  ///< between the site's nodes
  uint32_t streams = 0;     ///< of a pull; 0: by the receiver's rule, from what pulls have measured
  double window = 3 << 20;  ///< bytes that one stream can have on the way
  uint32_t buffers = 2;
  double staging = 128 << 20;
  double price_per_gb = 0;
};

struct Machine {
  std::string name;
  uint32_t cores = 2;
  double memory = 0;  ///< bytes/s, for the diff of a trainer on it; 0: by the cores
};

struct Fleet {
  Model model;
  Changes changes;
  Trainer trainer;
  std::vector<Site> sites;
  std::vector<Machine> machines;
  Speeds speeds;
  bool tls = false;
  double link_payload = 0.94;  ///< share of a link's rate that is left for payloads of TCP
  double step_seconds = 0;     ///< the time between two versions; 0: not said
};

StatusOr<Fleet> ReadFleet(const std::string& file);
/// `name` stands for the file in messages.
StatusOr<Fleet> ParseFleet(std::string_view text, const std::string& name);

}  // namespace deltawire::plan
