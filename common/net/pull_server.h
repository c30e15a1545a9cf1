// The sending end of the bulk protocol: accepts streams, ties them to pulls, sends frames.
// Used by the sender and by relays; what to send is decided behind PullSource and PullSession.
// Owner: the daemon; Stop (or destruction) closes every stream. Threads: IoThreads'; callbacks come
// from there, several at once for one session. Errors reach the peer as an Error frame and the log.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/acceptor.h"
#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/net/io_threads.h"
#include "common/net/pull_transport.h"
#include "common/wire/frame.h"
#include "common/wire/messages.h"

namespace deltawire::net {

/// A frame to send. `payload` stays valid for as long as `keep` lives.
struct OutFrame {
  wire::FrameHeader header;
  Bytes payload;
  std::shared_ptr<const void> keep;
};

/// The last frame of a stream.
OutFrame EndFrame(const PullEnd& end);

/// One pull, seen from the sender. All methods are thread-safe.
class PullSession {
 public:
  virtual ~PullSession() = default;

  virtual uint32_t chunks() const = 0;  ///< entries that Have must carry

  /// What the receiver holds; called once. Other streams may ask for frames before: there are none.
  virtual Status Start(const wire::Have& have) = 0;

  /// The next frame of `stream`, kEnd included; nullopt when there is nothing to send yet, in which
  /// case `wake` is called once (from any thread) when asking again may help.
  virtual StatusOr<std::optional<OutFrame>> Next(uint16_t stream, std::function<void()> wake) = 0;

  /// Called when a stream has begun; `cut` ends it from any thread, and is harmless later: the
  /// frame under way is completed if that takes no time, then Next is asked for the reason, which
  /// goes to the peer in an Error frame (ABORTED, if Next knows none).
  virtual void StreamOpened(uint16_t stream, std::function<void()> cut) = 0;
  /// Called once per opened stream; OK after its kEnd was sent.
  virtual void StreamClosed(uint16_t stream, const Status& why) = 0;
};

/// Finds the pull that a ticket belongs to.
class PullSource {
 public:
  virtual ~PullSource() = default;
  /// kPermissionDenied for an unknown or expired ticket, kFailedPrecondition for another layout,
  /// kInvalidArgument for a stream that is out of range or there already.
  virtual StatusOr<std::shared_ptr<PullSession>> Join(const wire::Hello& hello,
                                                      const std::string& peer) = 0;
};

class PullServer {
 public:
  static constexpr std::chrono::milliseconds kLeastPingInterval{10}, kMostPingInterval{250};

  struct Options {
    std::chrono::milliseconds stream_timeout{30000};  ///< no progress on a stream: it is closed
    /// Idle streams say so this often; 0: a quarter of stream_timeout, between the two above. A
    /// receiver's timeout is its own, and at least four of the longer (--stream-timeout-ms).
    std::chrono::milliseconds ping_interval{0};
    /// A new connection has said something, and its whole Hello, within these.
    std::chrono::milliseconds first_byte_timeout{2000};
    std::chrono::milliseconds hello_timeout{5000};
    /// A stream that is cut ends the frame under way within this, or is closed in the middle of it.
    std::chrono::milliseconds cut_grace{200};
    size_t max_connections = 16384;
    size_t max_connections_per_address = 4096;
    /// Descriptors that bulk connections leave to everything else, the control port among it.
    size_t reserved_descriptors = 2 * Acceptor::kReserve;
  };

  /// Listens at once; kAlreadyExists when the port is taken. `io` and `source` outlive the server.
  static StatusOr<std::unique_ptr<PullServer>> Listen(IoThreads& io, const std::string& host,
                                                      uint16_t port, PullSource& source,
                                                      const Options& options);
  ~PullServer();

  uint16_t port() const;
  size_t connections() const;  ///< open now, without those that are only being refused
  void Stop();

  struct Impl;

 private:
  explicit PullServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace deltawire::net
