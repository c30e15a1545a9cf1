// The sender or relay that a replica pulls from, as an interface without gRPC types.
// grpc_upstream.cc implements it over PullService. A replica owns one per agent. Attach, Send,
// Detach and Cancel may be called from any thread, other calls from one at a time. Events come from
// the implementation's own thread. Only Detach and the unary calls block. Errors name the sender's
// address and the call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/delta/pull_request.h"
#include "common/delta/receiver_report.h"
#include "common/delta/sender_event.h"
#include "common/layout/coverage.h"
#include "common/layout/layout.h"
#include "common/layout/model_dir.h"
#include "common/wire/messages.h"

namespace deltawire::receiver {

/// A checked description of a model: the layout has the stated fingerprint, the digest seed is the
/// fingerprint's low half, and the side files have their hash.
struct ModelDescription {
  Layout layout;
  uint64_t digest_seed = 0;
  std::vector<SideFile> side_files;
  uint64_t side_files_hash = 0;
  Coverage owned;   ///< the chunks that this sender publishes
  Hash128 lineage;  ///< of the published state; zero: nothing is published
};

struct PullGrant {
  wire::Ticket ticket{};
  std::string host;
  uint16_t port = 0;
  uint32_t history = 0;  ///< number of deltas that the sender asks the receiver to keep
  Identity newest;       ///< the sender's, or the incoming version that is pulled; may be empty
};

/// Whether `b`, which came after `a`, is a beat: it says nothing new.
bool IsBeat(const SenderEvent& a, const SenderEvent& b);

/// Whether an upstream that failed a call with `why` runs and has no version yet: a sender
/// without the model (its trainer may be starting), or a relay whose first pull still runs.
inline bool AsksToWait(const Status& why) { return absl::IsNotFound(why) || absl::IsAborted(why); }

class Upstream {
 public:
  virtual ~Upstream() = default;
  /// The sender's name in messages and status.
  virtual const std::string& address() const = 0;
  /// The one of several addresses that is used now.
  virtual std::string in_use() const { return address(); }
  /// The newest state that the sender itself has named, which a relay in use may not have yet.
  /// nullopt: this upstream is not attached to the sender itself.
  virtual std::optional<Identity> sender_newest() const { return std::nullopt; }
  /// The least time that a call has taken: a round trip or a little more. 0: not known.
  virtual double round_trip() const { return 0; }
  virtual StatusOr<ModelDescription> Describe(const std::string& model) = 0;
  /// The newest state; epoch 0 when nothing is published.
  virtual StatusOr<Identity> Newest(const std::string& model) = 0;
  /// The side files with `hash`, which a pull's End frame names. The implementation has checked
  /// that they have this hash.
  virtual StatusOr<std::vector<SideFile>> SideFiles(const std::string& model, uint64_t hash) = 0;
  /// The implementation sets the receiver in the request.
  virtual StatusOr<PullGrant> OpenPull(const PullRequest& request) = 0;
  /// The pull that OpenPull opened last has ended: OK if its version is committed, else the
  /// upstream's fault. kCancelled: it ended for another reason.
  virtual void NotePullEnd(const Status& /*status*/) {}
  /// Attaches in the background; `event` is called until the stream ends, then `ended` once.
  virtual Status Attach(const std::string& model, const ReceiverReport& first,
                        std::function<void(const SenderEvent&)> event,
                        std::function<void(const Status&)> ended) = 0;
  virtual void Send(const ReceiverReport& report) = 0;
  /// Ends the attachment, if there is one, and returns when `ended` has been called. REQUIRES: not
  /// called from `event` or `ended`.
  virtual void Detach() = 0;
  /// Ends a running call, and makes all later calls fail.
  virtual void Cancel() = 0;
};

std::vector<Upstream*> PointersTo(const std::vector<std::unique_ptr<Upstream>>& upstreams);

}  // namespace deltawire::receiver
