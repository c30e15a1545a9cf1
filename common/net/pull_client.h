// The receiving end of the bulk protocol: dials N streams for one pull and hands frames to a sink.
// A blocking call for the thread that drives a replica; the streams run on IoThreads.
// Owner: one PullClient per pull. Run once; Cancel from any thread makes Run return kCancelled.
// Errors: the first one of any stream ends all; frames that were handed over before stay valid.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/bytes.h"
#include "common/base/state_id.h"
#include "common/base/status.h"
#include "common/net/io_threads.h"
#include "common/wire/frame.h"
#include "common/wire/messages.h"

namespace deltawire::net {

/// Where chunk frames go. Calls for different streams come at the same time from several threads;
/// those for one chunk come in the order sent. An error return ends the pull.
class ChunkSink {
 public:
  virtual ~ChunkSink() = default;

  /// A chunk frame's header is in: where shall its payload_bytes go? Refuse here what cannot be.
  virtual StatusOr<MutableBytes> Begin(const wire::FrameHeader& header) = 0;
  /// The payload is in and its checksum is right.
  virtual Status Finish(const wire::FrameHeader& header) = 0;
  /// The payload did not arrive whole or did not match its checksum.
  virtual void Abandon(const wire::FrameHeader& header) = 0;
};

struct PullTarget {
  std::string host;
  uint16_t port = 0;
  wire::Ticket ticket{};
  Hash128 fingerprint;
  uint16_t streams = 4;
  std::chrono::milliseconds stream_timeout{30000};  ///< silence of the sender; it pings more often
};

class PullClient {
 public:
  PullClient(IoThreads& io, PullTarget target);
  ~PullClient();

  /// Sends `have`, receives until every stream has ended; returns the state that the pull brings.
  StatusOr<StateId> Run(const wire::Have& have, ChunkSink& sink);
  void Cancel();

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace deltawire::net
