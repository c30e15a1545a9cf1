// The connections of one control port: the count per address, and the bytes of each that belong to
// no whole message yet. gRPC buffers a message of any length before it checks the limit, so a peer
// that sends too much is cut here. Any thread may call it; its own thread sleeps while no bytes
// arrive. It makes three system calls per connection at most 50 times a second.
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
  /// Received bytes of requests that are not whole yet.
  uint64_t bytes = uint64_t{256} << 20;
  uint64_t bytes_per_address = uint64_t{64} << 20;
  uint64_t bytes_per_connection = uint64_t{16} << 20;
  std::chrono::milliseconds until_whole{60000};  ///< for a request of more than kSmall
  static constexpr uint64_t kSmall = uint64_t{256} << 10;
};

/// Returns gRPC's name for a peer, such as "ipv4:10.0.0.2:40512", or "" if it has gone.
std::string PeerOf(int socket);
/// Returns gRPC's text without its escapes.
std::string Unescaped(std::string_view peer);

class ControlConnections {
 public:
  /// `name` describes the connections in the log.
  static StatusOr<std::shared_ptr<ControlConnections>> Start(std::string name,
                                                             const ControlLimits& limits);
  ~ControlConnections();
  ControlConnections(const ControlConnections&) = delete;
  ControlConnections& operator=(const ControlConnections&) = delete;

  /// Counts the connection until its descriptor is closed, by any thread. Returns false if it is
  /// beyond the limits, and logs that; the caller then closes it.
  bool Take(int fd);
  /// Records that the handler has a whole message of `peer`. `bytes` includes earlier parts.
  void Whole(const std::string& peer, size_t bytes);

  uint64_t refused() const { return refused_; }  ///< connections refused or cut
  /// Returns the number of open connections, including some that have just ended.
  size_t count() const;

 private:
  struct Connection {
    int fd = -1;
    uint64_t cookie = 0;  // the kernel's number for the socket, never reused
    std::string peer, address;
    uint64_t received = 0, settled = 0;  // settled may exceed received by kAllowance
    uint64_t sent = 0;                   // bytes that the peer has acknowledged
    SteadyClock::time_point looked;
    SteadyClock::time_point late_since;  // when on_the_way exceeded kSmall; none: it does not
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
  // Reads the connection's counters. Forgets it and returns false if it has ended.
  bool Look(Entry entry);
  /// Updates the totals. `before` is the connection's earlier share.
  void Recount(Connection& connection, uint64_t before);
  /// Makes epoll report the connection's bytes to Run.
  void Arm(Entry entry);
  /// Cuts connections until the limits that `entry` counts towards hold. May forget `entry`.
  void CutWhatIsTooMuch(Entry entry);
  void CutWhatIsLate();
  void Cut(Entry entry, const std::string& why);
  /// Returns the address's connection with the most unfinished bytes.
  Entry MostOf(const std::string& address);
  void Forget(Entry entry);
  /// Forgets connections that ended without an event, as when gRPC closed them.
  void Sweep();
  bool HasRoom(const std::string& address) const;

  const std::string name_;
  const ControlLimits limits_;
  UniqueFd epoll_, wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> refused_{0};
  LogThrottle log_;

  mutable Mutex mu_;
  std::unordered_map<uint64_t, Connection> connections_;  // by number: 1, 2, 3, ...
  std::unordered_map<std::string, uint64_t> by_peer_;
  std::unordered_map<int, uint64_t> by_fd_;
  std::unordered_map<std::string, OfAddress> of_address_;
  uint64_t bytes_ = 0;  // unfinished bytes of all
  size_t late_ = 0;     // connections with late_since
  uint64_t next_ = 1;
  SteadyClock::time_point swept_;
  Thread thread_;
};

}  // namespace deltawire
