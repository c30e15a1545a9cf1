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

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/net/io_threads.h"
#include "common/wire/frame.h"
#include "common/wire/messages.h"

namespace deltawire::net {

/// A frame to send. `payload` stays valid for as long as `keep` lives.
struct OutFrame {
  wire::FrameHeader header;
  Bytes payload;
  std::shared_ptr<const void> keep;
};

/// One pull, seen from the sender. All methods are thread-safe.
class PullSession {
 public:
  virtual ~PullSession() = default;

  virtual uint32_t chunks() const = 0;  ///< entries that Have must carry

  /// What the receiver holds; called once, before any Next.
  virtual Status Start(const wire::Have& have) = 0;

  /// The next frame of `stream`, kEnd included; nullopt when there is nothing to send yet, in which
  /// case `wake` is called once (from any thread) when asking again may help.
  virtual StatusOr<std::optional<OutFrame>> Next(uint16_t stream, std::function<void()> wake) = 0;

  /// Called when a stream has begun; `cut` closes it at once from any thread, and is harmless
  /// later.
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
  struct Options {
    std::chrono::milliseconds stream_timeout{30000};  ///< no progress on a stream: it is closed
    std::chrono::milliseconds ping_interval{5000};    ///< idle streams say so this often
  };

  /// Listens at once; kAlreadyExists when the port is taken. `io` and `source` outlive the server.
  static StatusOr<std::unique_ptr<PullServer>> Listen(IoThreads& io, const std::string& host,
                                                      uint16_t port, PullSource& source,
                                                      const Options& options);
  ~PullServer();

  uint16_t port() const;
  void Stop();

  struct Impl;

 private:
  explicit PullServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace deltawire::net
