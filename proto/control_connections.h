// The connections of one control port: how many each address has, and how many bytes each has sent
// that are part of no whole message yet. gRPC buffers a message of any length before it looks at
// the limit, so who sends too much is cut off here. Owner: the ControlServer. Threads: any, and one
// of its own, which sleeps while nothing comes. Cost: a look-up per message, and per connection
// three system calls at most 50 times a second. Errors: those of epoll.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "common/base/log_throttle.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/base/unique_fd.h"

namespace deltawire {

struct ControlLimits {
  size_t connections = 16384;
  size_t connections_per_address = 4096;
  /// Bytes of requests on their way: received, and part of no message that is whole.
  uint64_t bytes = uint64_t{256} << 20;
  uint64_t bytes_per_address = uint64_t{64} << 20;
  uint64_t bytes_per_connection = uint64_t{16} << 20;
  std::chrono::milliseconds until_whole{60000};  ///< for a request of more than kSmall
  static constexpr uint64_t kSmall = uint64_t{256} << 10;
};

/// The peer of a connection as gRPC names it, such as "ipv4:10.0.0.2:40512"; "" if it has gone.
std::string PeerOf(int socket);
/// What gRPC says of the same peer, without the escapes in it.
std::string Unescaped(std::string_view peer);

class ControlConnections {
 public:
  /// `name` says in the log what they are connections of.
  static StatusOr<std::shared_ptr<ControlConnections>> Start(std::string name,
                                                             const ControlLimits& limits);
  ~ControlConnections();
  ControlConnections(const ControlConnections&) = delete;
  ControlConnections& operator=(const ControlConnections&) = delete;

  /// Counts the connection until its descriptor is closed, by whomever. False when it is beyond the
  /// limits, which is logged; the caller then closes it.
  bool Take(int fd);
  /// A message of `peer` is whole, and with whoever handles it. `bytes`: with what came before it.
  void Whole(const std::string& peer, size_t bytes);

  uint64_t refused() const { return refused_; }  ///< connections that were not taken, or were cut
  /// Of connections that are open, and of some that have just ended.
  size_t count() const;

 private:
  struct Connection {
    int fd = -1;
    uint64_t cookie = 0;  // the kernel's name of the socket, never used again
    std::string peer, address;
    uint64_t received = 0, settled = 0;  // bytes; at most kAllowance more are settled
    uint64_t sent = 0;                   // bytes that the peer has acknowledged
    SteadyClock::time_point looked;
    SteadyClock::time_point late_since;  // on_the_way has been more than kSmall; none: it is not
    uint64_t on_the_way() const { return received > settled ? received - settled : 0; }
  };
  struct OfAddress {
    size_t connections = 0;
    uint64_t bytes = 0;
  };
  using Entry = std::unordered_map<uint64_t, Connection>::iterator;

  ControlConnections(std::string name, const ControlLimits& limits);
  void Run();
  // REQUIRES (here and below): mu_ held
  /// Reads what has come on it; forgets it if it has ended. False: it has.
  bool Look(Entry entry);
  /// `before` of its bytes were counted as on the way.
  void Recount(Connection& connection, uint64_t before);
  /// Has whatever comes on it reported to Run.
  void Arm(Entry entry);
  /// Cuts connections until the limits hold that `entry`, which it may forget, has a part in.
  void CutWhatIsTooMuch(Entry entry);
  void CutWhatIsLate();
  void Cut(Entry entry, const std::string& why);
  /// The connection from there with the most on its way.
  Entry MostOf(const std::string& address);
  void Forget(Entry entry);
  /// Forgets those that have ended without a word from the kernel, as when gRPC closed them.
  void Sweep();
  bool HasRoom(const std::string& address) const;

  const std::string name_;
  const ControlLimits limits_;
  UniqueFd epoll_, wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> refused_{0};
  LogThrottle log_;

  mutable Mutex mu_;
  std::unordered_map<uint64_t, Connection> connections_;  // by a number, 1, 2, 3, ...
  std::unordered_map<std::string, uint64_t> by_peer_;
  std::unordered_map<int, uint64_t> by_fd_;
  std::unordered_map<std::string, OfAddress> of_address_;
  uint64_t bytes_ = 0;  // on the way, of all
  size_t late_ = 0;     // connections with late_since
  uint64_t next_ = 1;
  SteadyClock::time_point swept_;
  Thread thread_;
};

}  // namespace deltawire
