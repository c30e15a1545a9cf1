// The terms under which a pull is granted. The PullDesk sets them, and a ServedPull and its parts
// read them.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/stages.h"
#include "common/base/token_bucket.h"
#include "common/delta/coder_rates.h"
#include "common/delta/pull_request.h"
#include "common/net/pull_server.h"
#include "common/serving/admission.h"
#include "common/serving/incoming_version.h"
#include "common/serving/link_estimate.h"
#include "common/serving/version_store.h"

namespace deltawire {

/// The coding of a pull's chunks.
struct PullCoding {
  std::optional<kernels::Codec> codec = kernels::Codec::kFast;  ///< none: chosen chunk by chunk
  uint32_t history = 0;
  CoderRates* rates = nullptr;         ///< the coders' speeds in this process
  std::shared_ptr<LinkEstimate> link;  ///< the link to this receiver
  CoderSpeeds decode;                  ///< of the receiver, all threads; 0: unknown
  double encode_threads = 1;           ///< threads that may code for this pull at once
};

/// The peer that asks for a pull.
struct PullCaller {
  std::string peer;       ///< the receiver's address
  std::string principal;  ///< the receiver's; empty: the daemon knows no principals
  /// Checks that a stream comes from the principal; null: a ticket is proof enough.
  std::function<Status(const wire::Hello&, const net::StreamPeer&)> admits;
};

struct PullTerms {
  PullRequest request;
  PullCaller caller;
  PullCoding coding;
  /// The state to end at, from StateSource::At; null: the newest state at the start, or the first
  /// one that overtakes the pull.
  std::shared_ptr<const Published> pinned;
  /// The incoming version whose chunks are sent first; null: none.
  std::shared_ptr<IncomingVersion> incoming;
  /// The pull ends at that version, and a newer one does not overtake it. REQUIRES: `incoming`.
  bool ends_at_incoming = false;
  Identity granted;  ///< the state to end at if none overtakes it, for the log
  /// A frame that reads a half for longer than this is late, and the frames after it are copied.
  std::chrono::milliseconds late_after{62};
  /// All streams must arrive within this time. Have may arrive later, by as long as it takes at
  /// 64 KiB/s.
  std::chrono::milliseconds ticket_life{30000};
  /// The rates of the receiver's pulls together, and of all pulls of its site; null: no limit.
  std::shared_ptr<TokenBucket> rate, site_rate;
  std::shared_ptr<Admission> admission;  ///< null: no pull has priority
  StageObserver stages;                  ///< called when the pull has ended without an error
};

}  // namespace deltawire
