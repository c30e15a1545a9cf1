// The sending end of the bulk protocol: accepts streams, ties them to pulls, sends frames.
// PullSource and PullSession, which common/serving implements, decide what to send.
// Owner: the daemon; Stop (or destruction) closes every stream. Threads: callbacks come from
// IoThreads' threads, several at once for one session.
// Errors reach the peer as an Error frame, and the log.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/acceptor.h"
#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/token_bucket.h"
#include "common/net/io_threads.h"
#include "common/net/pull_transport.h"
#include "common/net/tcp_facts.h"
#include "common/security/token_proof.h"
#include "common/wire/frame.h"
#include "common/wire/messages.h"

namespace deltawire::net {

/// A frame to send. `payload` stays valid as long as `keep` lives.
struct OutFrame {
  wire::FrameHeader header;
  Bytes payload;
  std::shared_ptr<const void> keep;
};

/// The last frame of a stream.
OutFrame EndFrame(const PullEnd& end);

/// Holds a pull's streams back while other pulls go first. All methods are thread-safe.
class Pacing {
 public:
  virtual ~Pacing() = default;
  /// How long `bytes` more must wait, while IsHeldBack is true: the stream asks it again and again.
  virtual std::chrono::nanoseconds WaitFor(size_t /*bytes*/) { return {}; }
  virtual bool IsHeldBack() { return false; }
  /// How much of a frame to send at a time, at most `most`.
  virtual size_t PieceBytes(size_t most) { return most; }
  /// A stream was held back for so long.
  virtual void AddWait(std::chrono::nanoseconds /*time*/) {}
  /// So many bytes more have reached the receiver's kernel.
  virtual void AddSent(uint64_t /*bytes*/) {}
};

/// One pull, seen from the sender. All methods are thread-safe.
class PullSession {
 public:
  virtual ~PullSession() = default;

  virtual uint32_t chunks() const = 0;  ///< number of entries that Have must carry
  /// The rates at which this pull may be sent, over all its streams; null: no limit of its own.
  virtual std::array<TokenBucket*, 2> rates() { return {}; }

  /// Null: this pull waits for no other one.
  virtual Pacing* pacing() { return nullptr; }

  /// An estimate of the link to the receiver.
  virtual LinkFigures link() { return {}; }
  /// A stream that Next had nothing for has waited. The kernel held `queued` bytes of it when it
  /// began to wait that the receiver's kernel did not have, and holds `left` now.
  virtual void Waited(uint16_t /*stream*/, uint64_t /*queued*/, uint64_t /*left*/) {}
  /// What the kernel says of a stream that is about to be closed.
  virtual void Measured(const TcpFacts& /*facts*/) {}

  /// Receives what the receiver holds; called once. Other streams may call Next before, and get
  /// nullopt.
  virtual Status Start(const wire::Have& have) = 0;

  /// The next frame of `stream`, kEnd included; nullopt when there is nothing to send yet. The
  /// session then calls `wake` once, from any thread, when asking again may help.
  virtual StatusOr<std::optional<OutFrame>> Next(uint16_t stream, std::function<void()> wake) = 0;

  /// Called when a stream has begun. `cut` may be called from any thread, at any later time, to end
  /// the stream: the frame under way is completed if that takes at most Options::cut_grace, and the
  /// error that Next then returns goes to the peer in an Error frame (else ABORTED).
  virtual void StreamOpened(uint16_t stream, std::function<void()> cut) = 0;
  /// Called once per opened stream; `why` is OK after the stream's kEnd was sent.
  virtual void StreamClosed(uint16_t stream, const Status& why) = 0;
};

/// Who opened a stream, as far as the connection shows it.
struct StreamPeer {
  std::string address;                         ///< "10.0.0.2:40512"
  std::vector<std::string> certificate_names;  ///< of its verified certificate; empty: none
  security::ChannelBinding binding{};          ///< zeros without TLS
};

/// Finds the pull that a ticket belongs to.
class PullSource {
 public:
  virtual ~PullSource() = default;
  /// kPermissionDenied for an unknown or expired ticket and for one that was granted to somebody
  /// else, kFailedPrecondition for another layout, kInvalidArgument for a stream number that is out
  /// of range or has already joined.
  virtual StatusOr<std::shared_ptr<PullSession>> Join(const wire::Hello& hello,
                                                      const StreamPeer& peer) = 0;
};

class PullServer {
 public:
  static constexpr std::chrono::milliseconds kLeastPingInterval{10}, kMostPingInterval{250};

  struct Options {
    std::chrono::milliseconds stream_timeout{30000};  ///< a stream without progress is closed
    /// An idle stream sends a ping this often. 0: a quarter of stream_timeout, clamped to the two
    /// constants above. The receiver's own timeout (--stream-timeout-ms) is at least four times
    /// kMostPingInterval, so pings keep its stream open whatever this end's timeout is.
    std::chrono::milliseconds ping_interval{0};
    /// A new connection must send its first byte within the first of these, and its whole Hello
    /// within the second.
    std::chrono::milliseconds first_byte_timeout{2000};
    std::chrono::milliseconds hello_timeout{5000};
    /// A stream that is cut may take this long to complete the frame under way.
    std::chrono::milliseconds cut_grace{100};
    size_t max_connections = 16384;
    size_t max_connections_per_address = 4096;
    /// Descriptors that bulk connections leave to everything else, e.g. to the control port.
    size_t reserved_descriptors = 2 * Acceptor::kReserve;
    std::shared_ptr<Tls> tls;  ///< null: plaintext
    uint64_t bytes_per_s = 0;  ///< over all streams; 0: no limit
    SocketChoice sockets;
  };

  /// Listens at once; kAlreadyExists when the port is taken.
  /// REQUIRES: `io` and `source` outlive the server.
  static StatusOr<std::unique_ptr<PullServer>> Listen(IoThreads& io, const std::string& host,
                                                      uint16_t port, PullSource& source,
                                                      const Options& options);
  ~PullServer();

  uint16_t port() const;
  size_t connections() const;  ///< number of admitted connections that are open
  uint64_t refused() const;    ///< connections that were beyond the limits
  void Stop();

  struct Impl;

 private:
  explicit PullServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace deltawire::net
