// A receiver's interface to the bulk protocol, whatever carries it: the sink for a pull's chunks,
// and the pull itself. PullClient (pull_client.h) uses TCP; the simulation has its own transport.
// There is one PullTransport per pull. Run is called once and blocks; Cancel, from any thread, ends
// it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/bytes.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/net/link_plan.h"
#include "common/net/tune_socket.h"
#include "common/wire/frame.h"
#include "common/wire/messages.h"

namespace deltawire::net {

class Tls;

/// The destination of chunk frames. Calls for different streams come from several threads at once.
/// Calls for one chunk come in the order in which its frames were sent. An error ends the pull.
class ChunkSink {
 public:
  virtual ~ChunkSink() = default;

  /// Called when a chunk frame's header has arrived. Returns the memory for its payload_bytes, or
  /// an error for an impossible frame.
  virtual StatusOr<MutableBytes> Begin(const wire::FrameHeader& header) = 0;
  /// Called when the first `bytes` of the payload are in place, so that they can be processed while
  /// in the cache. `bytes` rises with each call and reaches payload_bytes before Finish.
  virtual void Arrived(const wire::FrameHeader& /*header*/, size_t /*bytes*/) {}
  /// Called when the whole payload has arrived. A delta's checksum has been checked. A whole
  /// chunk's bytes have not: the sink itself must compare them with digest_after.
  virtual Status Finish(const wire::FrameHeader& header) = 0;
  /// Called when the payload did not arrive whole or did not match its checksum.
  virtual void Abandon(const wire::FrameHeader& header) = 0;
};

struct PullTarget {
  std::string host;
  uint16_t port = 0;
  wire::Ticket ticket{};
  Hash128 fingerprint;
  uint16_t streams = 4;
  std::chrono::milliseconds stream_timeout{30000};  ///< longest silence; pings come more often
  std::shared_ptr<Tls> tls;                         ///< null: plaintext
  std::string token;  ///< each stream proves that it knows this; empty: none
  LinkFigures link;   ///< the estimate of the link to the sender
  SocketChoice sockets;
};

/// The state that a pull delivered, as its End frames name it.
struct PullEnd {
  Identity identity;  ///< its root covers the sender's own chunks
  uint64_t side_files_hash = 0;
};

class PullTransport {
 public:
  virtual ~PullTransport() = default;

  /// Begins to connect to the target, whose ticket may be unknown yet; does not block. At most
  /// once, before Run, which retries a failure. The sender waits two seconds for a first byte, so
  /// Run must follow within that time.
  virtual void Connect() {}
  /// Sets the ticket that the target lacked. REQUIRES: before Run.
  virtual void SetTicket(const wire::Ticket& /*ticket*/) {}
  /// Sends `have` and receives until every stream has ended.
  virtual StatusOr<PullEnd> Run(const wire::Have& have, ChunkSink& sink) = 0;
  virtual void Cancel() = 0;
  /// Returns the measurements of the link to the sender, after Run, also of a pull that failed.
  virtual LinkSample link() const { return {}; }
};

}  // namespace deltawire::net
