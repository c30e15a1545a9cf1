// The sending end of the bulk protocol: it accepts streams, ties them to pulls and sends frames.
// PullSource and PullSession, which common/serving implements, decide what to send. The daemon owns
// it; Stop (or destruction) closes every stream. Callbacks come from IoThreads' threads, several at
// once for one session. Errors reach the peer as an Error frame, and the log.
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

OutFrame EndFrame(const PullEnd& end);

/// Holds a pull's streams back while other pulls have priority. All methods are thread-safe.
class Pacing {
 public:
  virtual ~Pacing() = default;
  /// Returns how long `bytes` more must wait while IsHeldBack is true. The stream asks repeatedly.
  virtual std::chrono::nanoseconds WaitFor(size_t /*bytes*/) { return {}; }
  virtual bool IsHeldBack() { return false; }
  /// Returns how much of a frame to send at a time, at most `most`.
  virtual size_t PieceBytes(size_t most) { return most; }
  /// Reports for how long a stream was held back.
  virtual void AddWait(std::chrono::nanoseconds /*time*/) {}
  /// Reports that `bytes` more have reached the receiver's kernel.
  virtual void AddSent(uint64_t /*bytes*/) {}
};

/// One pull, as the sender sees it. All methods are thread-safe.
class PullSession {
 public:
  virtual ~PullSession() = default;

  virtual uint32_t chunks() const = 0;  ///< number of entries that Have must carry
  /// The limits of this pull's rate, over all its streams; null: no limit of its own.
  virtual std::array<TokenBucket*, 2> rates() { return {}; }

  /// Null: this pull waits for no other one.
  virtual Pacing* pacing() { return nullptr; }

  virtual LinkFigures link() { return {}; }
  /// Reports that a stream has waited because Next had nothing for it. `queued` is the number of
  /// its bytes that only this kernel held when the wait began, `left` the number now.
  virtual void Waited(uint16_t /*stream*/, uint64_t /*queued*/, uint64_t /*left*/) {}
  /// Reports the kernel's facts of a stream that is about to be closed.
  virtual void Measured(const TcpFacts& /*facts*/) {}

  /// Called once, with the receiver's chunks. Other streams may call Next before, and get nullopt.
  virtual Status Start(const wire::Have& have) = 0;

  /// Returns the next frame of `stream`, kEnd included; nullopt when there is nothing to send yet.
  /// The session then calls `wake` once, from any thread, when another call may help.
  virtual StatusOr<std::optional<OutFrame>> Next(uint16_t stream, std::function<void()> wake) = 0;

  /// Called when a stream has begun. Any thread may call `cut` at any later time to end the stream.
  /// The current frame is completed if that takes at most Options::cut_grace. Then the error that
  /// Next returns goes to the peer in an Error frame (else ABORTED).
  virtual void StreamOpened(uint16_t stream, std::function<void()> cut) = 0;
  /// Called once per opened stream; `why` is OK after the stream's kEnd was sent.
  virtual void StreamClosed(uint16_t stream, const Status& why) = 0;
};

/// The opener of a stream, as far as the connection identifies it.
struct StreamPeer {
  std::string address;                         ///< "10.0.0.2:40512"
  std::vector<std::string> certificate_names;  ///< of its verified certificate; empty: none
  security::ChannelBinding binding{};          ///< zeros without TLS
};

class PullSource {
 public:
  virtual ~PullSource() = default;
  /// Returns the ticket's pull. kPermissionDenied for an unknown or expired ticket and for another
  /// principal's, kFailedPrecondition for another layout, kInvalidArgument for a stream number that
  /// is out of range or has already joined.
  virtual StatusOr<std::shared_ptr<PullSession>> Join(const wire::Hello& hello,
                                                      const StreamPeer& peer) = 0;
};

class PullServer {
 public:
  static constexpr std::chrono::milliseconds kLeastPingInterval{10}, kMostPingInterval{250};

  struct Options {
    std::chrono::milliseconds stream_timeout{30000};  ///< a stream without progress is closed
    /// The interval of an idle stream's pings. 0: a quarter of stream_timeout, clamped to the two
    /// constants above. The receiver's own timeout (--stream-timeout-ms) is at least four times
    /// kMostPingInterval, so pings keep its stream open whatever this end's timeout is.
    std::chrono::milliseconds ping_interval{0};
    /// The limits for a new connection's first byte, and for its whole Hello.
    std::chrono::milliseconds first_byte_timeout{2000};
    std::chrono::milliseconds hello_timeout{5000};
    /// A stream that is cut may take this long to complete the current frame.
    std::chrono::milliseconds cut_grace{100};
    size_t max_connections = 16384;
    size_t max_connections_per_address = 4096;
    /// Descriptors that bulk connections leave to other users, e.g. the control port.
    size_t reserved_descriptors = 2 * Acceptor::kReserve;
    std::shared_ptr<Tls> tls;  ///< null: plaintext
    uint64_t bytes_per_s = 0;  ///< over all streams; 0: no limit
    SocketChoice sockets;
  };

  /// Listens at once; returns kAlreadyExists when the port is taken. REQUIRES: `io` and `source`
  /// outlive the server.
  static StatusOr<std::unique_ptr<PullServer>> Listen(IoThreads& io, const std::string& host,
                                                      uint16_t port, PullSource& source,
                                                      const Options& options);
  ~PullServer();

  uint16_t port() const;
  size_t connections() const;  ///< number of admitted connections that are open
  uint64_t refused() const;    ///< connections beyond the limits
  void Stop();

  struct Impl;

 private:
  explicit PullServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace deltawire::net
