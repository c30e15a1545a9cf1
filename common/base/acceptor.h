// Accepts the connections of one listening socket and hands each descriptor to a callback. It
// survives a shortage of descriptors: it tries again until some are free, and keeps a reserve free
// for the rest of the process. Owner: a server. Threads: `on_connection` runs on the acceptor's own
// thread and owns the descriptor. Cost: one thread, and one descriptor beside the socket.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace deltawire {

/// Listens at `host`:`port` (0: any free port), which no other socket can share. kAlreadyExists
/// when the port is taken, kInvalidArgument when `host` is no address of this machine.
StatusOr<UniqueFd> ListenTcp(const std::string& host, uint16_t port);
/// Listens at the socket file `path`, which must not exist yet and has mode 0600 from the start.
StatusOr<UniqueFd> ListenUnix(const std::string& path);
/// The port that a listening TCP socket is bound to.
uint16_t PortOf(const UniqueFd& listener);

class Acceptor {
 public:
  /// Default number of descriptors that connections leave to the rest of the process. A process
  /// with a low limit keeps at most a quarter of that limit in reserve.
  static constexpr size_t kReserve = 64;

  /// `name` says in the log what is listening. `on_connection` gets non-blocking descriptors and
  /// must not throw.
  Acceptor(UniqueFd listener, std::string name, size_t reserve,
           std::function<void(int fd)> on_connection);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int listener() const { return listener_.get(); }
  /// After it returns no connection is handed over. Idempotent. REQUIRES: only one thread calls it.
  void Stop();

 private:
  void Run();
  void AcceptAll();
  /// False when keeping `fd` would eat into the reserve.
  bool MayKeep(int fd) const;
  /// Logs `what` once per shortage, not once per connection.
  void Say(std::string_view what);

  UniqueFd listener_;
  UniqueFd wake_;
  const std::string name_;
  const size_t reserve_;
  const std::function<void(int)> on_connection_;
  std::atomic<bool> stopping_{false};
  bool short_of_descriptors_ = false;  // accept failed: try again after kRetryMillis
  bool said_ = false;
  std::thread thread_;
};

}  // namespace deltawire
