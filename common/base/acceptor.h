// An acceptor of one listening socket's connections, with a thread of its own on which the callback
// gets each descriptor and becomes its owner. In a shortage of descriptors it retries until some
// are free, and keeps a reserve for the rest of the process.
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

/// Listens at `host`:`port`, exclusively. Port 0 picks a free port. Returns kAlreadyExists when the
/// port is taken, kInvalidArgument when `host` is no address of this machine.
StatusOr<UniqueFd> ListenTcp(const std::string& host, uint16_t port);
/// Listens at the socket file `path`, which must not exist yet and has mode 0600 from the start.
StatusOr<UniqueFd> ListenUnix(const std::string& path);
uint16_t PortOf(const UniqueFd& listener);

class Acceptor {
 public:
  /// Default number of descriptors that connections leave to the rest of the process. A process
  /// with a low limit keeps at most a quarter of that limit in reserve.
  static constexpr size_t kReserve = 64;

  /// `name` is the listener's name in the log. `on_connection` gets non-blocking descriptors and
  /// must not throw.
  Acceptor(UniqueFd listener, std::string name, size_t reserve,
           std::function<void(int fd)> on_connection);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int listener() const { return listener_.get(); }
  /// Stops the thread; no connection is handed over afterwards. Idempotent. REQUIRES: only one
  /// thread calls it.
  void Stop();

 private:
  void Run();
  void AcceptAll();
  /// Returns false when keeping `fd` would eat into the reserve.
  bool MayKeep(int fd) const;
  /// Logs `what` once per shortage, not once per connection.
  void Say(std::string_view what);

  UniqueFd listener_;
  UniqueFd wake_;
  const std::string name_;
  const size_t reserve_;
  const std::function<void(int)> on_connection_;
  std::atomic<bool> stopping_{false};
  bool short_of_descriptors_ = false;  // accept failed, so retry after kRetryMillis
  bool said_ = false;
  std::thread thread_;
};

}  // namespace deltawire
