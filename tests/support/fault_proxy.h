// A TCP proxy before a sender's bulk or control port that causes one fault at a time; a seed
// chooses its kind and place. It knows no protocol. It listens at the same port of another loopback
// address. Owner: the test case. Threads: its own, joined by the destructor. Cost: a thread per
// connection. Errors: an exception if it cannot listen.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "common/base/bytes.h"

namespace deltawire::testing {

struct Fault {
  enum class Kind : uint8_t {
    kFlip,   ///< flips one bit
    kZero,   ///< sets some bytes to zero
    kSwap,   ///< exchanges two neighbouring runs of bytes
    kDrop,   ///< omits some bytes
    kTwice,  ///< delivers some bytes twice
    kStall,  ///< delivers nothing more on the connection in this direction
    kCut,    ///< closes the connection
  };
  Kind kind = Kind::kFlip;
  bool towards_receiver = true;
  uint64_t offset = 0;  ///< bytes in that direction, over all connections, before the fault
  uint32_t bytes = 1;   ///< number of bytes that it affects

  /// Draws a fault. Offsets are spread evenly over the orders of magnitude below `span`.
  static Fault Draw(std::mt19937_64& random, uint64_t span);
};
std::string ToString(const Fault& fault);

class FaultProxy {
 public:
  static constexpr const char* kHost = "127.0.0.2";

  /// Forwards from kHost:port to 127.0.0.1:port.
  explicit FaultProxy(uint16_t port);
  ~FaultProxy();

  /// Sets the next fault; `offset` counts from now on.
  void Arm(const Fault& fault);
  /// Removes the fault; returns whether it has happened.
  bool Disarm();
  bool happened() const { return happened_; }

 private:
  struct Connection {
    int receiver = -1, sender = -1;
    std::array<bool, 2> mute{};
    std::atomic<bool> done{false};
    std::thread thread;
  };

  void Accept();
  void Pump(Connection& connection);
  /// Applies the fault to these bytes; false when the connection ends here.
  bool Pass(Connection& connection, bool towards_receiver, std::string& bytes);
  void Reap(bool all);

  const uint16_t port_;
  int listener_ = -1;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> happened_{false};
  std::mutex mu_;
  std::optional<Fault> fault_;
  uint64_t passed_ = 0;  // bytes in the fault's direction since Arm
  std::list<Connection> connections_;
  std::thread accepting_;
};

}  // namespace deltawire::testing
