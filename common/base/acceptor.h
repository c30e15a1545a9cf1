// Accepts the connections of one listening socket and hands their descriptors over, and outlives a
// shortage of descriptors: it waits until there are some again, and keeps a reserve free for
// others. Owner: a server; `on_connection` is called from the acceptor's own thread and owns the
// descriptor. Cost: one thread, and one descriptor beside the socket.
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

/// Listens at `host`:`port` (0: any), alone. kAlreadyExists when taken, kInvalidArgument when
/// `host` is no address of this machine's.
StatusOr<UniqueFd> ListenTcp(const std::string& host, uint16_t port);
/// Listens at a socket file that does not exist yet, with mode 0600 from the first moment.
StatusOr<UniqueFd> ListenUnix(const std::string& path);
/// The port that a TCP socket listens at.
uint16_t PortOf(const UniqueFd& listener);

class Acceptor {
 public:
  /// Descriptors that connections leave to the rest of the process; a small process' quarter.
  static constexpr size_t kReserve = 64;

  /// `name`: what listens, for the log. `on_connection` gets non-blocking descriptors and must not
  /// throw.
  Acceptor(UniqueFd listener, std::string name, size_t reserve,
           std::function<void(int fd)> on_connection);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int listener() const { return listener_.get(); }
  /// No further connection is handed over. Idempotent; from one thread.
  void Stop();

 private:
  void Run();
  void AcceptAll();
  /// False when taking `fd` would eat into the reserve.
  bool MayKeep(int fd) const;
  /// Once per shortage, not once per connection.
  void Say(std::string_view what);

  UniqueFd listener_;
  UniqueFd wake_;
  const std::string name_;
  const size_t reserve_;
  const std::function<void(int)> on_connection_;
  std::atomic<bool> stopping_{false};
  bool short_of_descriptors_ = false;  // accept failed: look again soon
  bool said_ = false;
  std::thread thread_;
};

}  // namespace deltawire
