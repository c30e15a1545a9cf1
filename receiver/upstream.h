// The sender, as a replica sees it. An interface so that the replica's logic knows no gRPC type;
// receiver/grpc_upstream.cc implements it over PullService.
// Owner: a replica, one per sender. Threads: one caller, but Report and Cancel from any; events
// come from the implementation's own thread. Errors: gRPC's, with the sender's address and the
// call's name.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/state_id.h"
#include "common/base/status.h"
#include "common/delta/codec_choice.h"
#include "common/layout/coverage.h"
#include "common/layout/layout.h"
#include "common/layout/model_dir.h"
#include "common/wire/messages.h"
#include "receiver/pull_stats.h"

namespace deltawire::receiver {

struct ModelDescription {
  Layout layout;
  uint64_t digest_seed = 0;
  std::vector<SideFile> side_files;
  uint64_t side_files_hash = 0;
  Coverage owned;  ///< the chunks that this sender has
};

struct PullWish {
  Hash128 fingerprint;  ///< of the layout here
  uint32_t streams = 1;
  CoderSpeeds decode;       ///< of all streams together; 0: not known
  uint64_t owned_hash = 0;  ///< of the chunks that the sender is taken to have
  StateId at;               ///< where the pull shall end; epoch 0: at the newest
};

struct PullGrant {
  wire::Ticket ticket{};
  std::string host;
  uint16_t port = 0;
  StateId newest;
  uint64_t side_files_hash = 0;
  uint32_t history = 0;  ///< deltas that the sender would have kept
};

/// What the sender says when something has happened.
struct UpstreamEvent {
  StateId newest;
  uint64_t delta_bytes = 0;   ///< of the newest, from the one before
  uint64_t sync_request = 0;  ///< not 0: sync now and report with this number
  bool force_full = false;
};

/// What the replica says of itself.
struct Report {
  StateId committed;
  std::string phase;
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
  std::string message;
  PullStats last_pull;
  uint64_t sync_request = 0;
};

class Upstream {
 public:
  virtual ~Upstream() = default;
  /// What messages and status call it.
  virtual const std::string& address() const = 0;
  virtual StatusOr<ModelDescription> Describe(const std::string& model) = 0;
  /// Epoch 0: nothing is published.
  virtual StatusOr<StateId> Newest(const std::string& model) = 0;
  virtual StatusOr<PullGrant> OpenPull(const std::string& model, const PullWish& wish) = 0;
  /// Attaches; `event` is called until the stream ends, then `ended` once.
  virtual Status Attach(const std::string& model, const Report& first,
                        std::function<void(const UpstreamEvent&)> event,
                        std::function<void(const Status&)> ended) = 0;
  virtual void Send(const Report& report) = 0;
  /// Ends the attachment, if there is one; returns when `ended` has been called.
  virtual void Detach() = 0;
  /// Ends a call that is under way, from another thread. Final.
  virtual void Cancel() = 0;
};

}  // namespace deltawire::receiver
