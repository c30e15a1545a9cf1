// The sender, as a replica sees it. An interface so that the replica's logic knows no gRPC type;
// receiver/grpc_upstream.cc implements it over PullService.
// Owner: a replica, one per sender. Threads: calls from one at a time, but Attach, Send, Detach and
// Cancel from any; events come from the implementation's own thread. No call but Detach, and the
// unary ones, waits for anything. Errors: gRPC's, with the sender's address and the call's name.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/identity.h"
#include "common/base/receiver_phase.h"
#include "common/base/status.h"
#include "common/delta/codec_choice.h"
#include "common/delta/pull_stats.h"
#include "common/layout/coverage.h"
#include "common/layout/layout.h"
#include "common/layout/model_dir.h"
#include "common/wire/messages.h"

namespace deltawire::receiver {

/// Checked by whoever makes it: the layout is that of its fingerprint, the digest seed the
/// fingerprint's low half, the side files have their hash.
struct ModelDescription {
  Layout layout;
  uint64_t digest_seed = 0;
  std::vector<SideFile> side_files;
  uint64_t side_files_hash = 0;
  Coverage owned;   ///< the chunks that this sender has
  Hash128 lineage;  ///< of what is published; zero: nothing
};

struct PullWish {
  Hash128 fingerprint;  ///< of the layout here
  uint32_t streams = 1;
  CoderSpeeds decode;       ///< of all streams together; 0: not known
  uint64_t owned_hash = 0;  ///< of the chunks that the sender is taken to have
  Identity at;              ///< where the pull shall end; epoch 0: at the newest
  /// Chunks that came with other bytes than their digest says; at most wire::kMaxSuspects.
  std::vector<uint32_t> suspects;
};

struct PullGrant {
  wire::Ticket ticket{};
  std::string host;
  uint16_t port = 0;
  uint32_t history = 0;  ///< deltas that the sender would have kept
};

/// What the sender says when something has happened, and every second in any case.
struct UpstreamEvent {
  uint64_t number = 0;  ///< 1, 2, 3, ... within an attachment
  Identity newest;
  uint64_t delta_bytes = 0;   ///< of the newest, from the one before
  uint64_t sync_request = 0;  ///< not 0: sync now and report with this number
  bool force_full = false;
};

/// What the replica says of itself.
struct Report {
  Identity committed;
  ReceiverPhase phase = ReceiverPhase::kNone;
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
  std::string message;
  PullStats last_pull;
  uint64_t event = 0;  ///< number of the last event that came
  uint64_t sync_request = 0;
};

class Upstream {
 public:
  virtual ~Upstream() = default;
  /// What messages and status call it.
  virtual const std::string& address() const = 0;
  virtual StatusOr<ModelDescription> Describe(const std::string& model) = 0;
  /// Epoch 0: nothing is published.
  virtual StatusOr<Identity> Newest(const std::string& model) = 0;
  /// Those that belong to a version: `hash` as the End frame names it. Checked against it.
  virtual StatusOr<std::vector<SideFile>> SideFiles(const std::string& model, uint64_t hash) = 0;
  virtual StatusOr<PullGrant> OpenPull(const std::string& model, const PullWish& wish) = 0;
  /// Attaches, in the background; `event` is called until the stream ends, then `ended` once.
  virtual Status Attach(const std::string& model, const Report& first,
                        std::function<void(const UpstreamEvent&)> event,
                        std::function<void(const Status&)> ended) = 0;
  virtual void Send(const Report& report) = 0;
  /// Ends the attachment, if there is one; returns when `ended` has been called. Not from `event`
  /// or `ended`.
  virtual void Detach() = 0;
  /// Ends a call that is under way, from another thread. Final.
  virtual void Cancel() = 0;
};

}  // namespace deltawire::receiver
