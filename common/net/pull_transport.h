// What a receiver needs of the bulk protocol, independent of the carrier: the sink for a pull's
// chunks, and the pull itself. PullClient (pull_client.h) carries it over TCP; the simulation has
// its own transport. Owner: one PullTransport per pull. Run is called once and blocks; Cancel, from
// any thread, ends it.
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

/// Where chunk frames go. Calls for different streams come from several threads at once; calls for
/// one chunk come in the order in which its frames were sent. An error return ends the pull.
class ChunkSink {
 public:
  virtual ~ChunkSink() = default;

  /// A chunk frame's header has arrived. Returns the memory for its payload_bytes, or an error for
  /// a frame that cannot be right.
  virtual StatusOr<MutableBytes> Begin(const wire::FrameHeader& header) = 0;
  /// The first `bytes` of the payload are in place and can be processed while they are still in the
  /// cache. `bytes` rises with each call and reaches payload_bytes before Finish.
  virtual void Arrived(const wire::FrameHeader& /*header*/, size_t /*bytes*/) {}
  /// The whole payload has arrived. A delta's checksum has been checked; a whole chunk's bytes have
  /// not: the sink itself must compare them with digest_after.
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
  std::chrono::milliseconds stream_timeout{30000};  ///< longest silence; pings come more often
  std::shared_ptr<Tls> tls;                         ///< null: plaintext
  std::string token;  ///< each stream proves that it knows this; empty: none
  LinkFigures link;   ///< what the way to the sender is taken for
  SocketChoice sockets;
};

/// The state that a pull has brought, as its End frames name it.
struct PullEnd {
  Identity identity;  ///< its root covers the chunks that the sender owns
  uint64_t side_files_hash = 0;
};

class PullTransport {
 public:
  virtual ~PullTransport() = default;

  /// Begins to connect to the target, whose ticket may not be known yet; does not block. At most
  /// once, before Run. What fails is tried again by Run. Who is dialled waits two seconds for a
  /// first byte, so Run has to follow within that time.
  virtual void Connect() {}
  /// The ticket that the target lacked. REQUIRES: before Run.
  virtual void SetTicket(const wire::Ticket& /*ticket*/) {}
  /// Sends `have` and receives until every stream has ended.
  virtual StatusOr<PullEnd> Run(const wire::Have& have, ChunkSink& sink) = 0;
  virtual void Cancel() = 0;
  /// After Run, also of a pull that broke: what its connections showed of the way to the sender.
  virtual LinkSample link() const { return {}; }
};

}  // namespace deltawire::net
