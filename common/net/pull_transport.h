// What a receiver needs of the bulk protocol, whatever carries it: where a pull's chunks go, and
// one pull. PullClient (pull_client.h) carries it over TCP; the simulation has a transport of its
// own. Owner: one PullTransport per pull. Run once, blocking; Cancel from any thread ends Run.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/bytes.h"
#include "common/base/identity.h"
#include "common/base/status.h"
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
  /// The first `bytes` of the payload are in place, so that they can be worked on while they are
  /// still in the cache. Rises to payload_bytes before Finish.
  virtual void Arrived(const wire::FrameHeader& /*header*/, size_t /*bytes*/) {}
  /// The payload is in. A delta's checksum is right; a whole chunk's bytes are the sink's to
  /// compare with digest_after, nobody else has.
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

/// What a pull has brought, as its End frames name it.
struct PullEnd {
  Identity identity;  ///< the root is of the chunks that the sender owns
  uint64_t side_files_hash = 0;
};

class PullTransport {
 public:
  virtual ~PullTransport() = default;

  /// Sends `have`, receives until every stream has ended.
  virtual StatusOr<PullEnd> Run(const wire::Have& have, ChunkSink& sink) = 0;
  virtual void Cancel() = 0;
};

}  // namespace deltawire::net
