// A TCP proxy that does one fault at a time, of a kind and at a place that a seed decides: before a
// sender's bulk port or its control port. It knows no protocol. It listens at the same port of
// another loopback address. Owner: the test case; threads of its own, joined at the end.
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
    kFlip,   ///< one bit
    kZero,   ///< some bytes become zero
    kSwap,   ///< two neighbouring runs of bytes change places
    kDrop,   ///< some bytes are left out
    kStall,  ///< from here on the connection says nothing more, in this direction
    kCut,    ///< the connection is closed
  };
  Kind kind = Kind::kFlip;
  bool towards_receiver = true;
  uint64_t offset = 0;  ///< bytes in that direction, of all connections, before it
  uint32_t bytes = 1;   ///< that it concerns

  /// Offsets are spread evenly over the magnitudes below `span`.
  static Fault Draw(std::mt19937_64& random, uint64_t span);
};
std::string ToString(const Fault& fault);

class FaultProxy {
 public:
  static constexpr const char* kHost = "127.0.0.2";

  /// From kHost:port to 127.0.0.1:port.
  explicit FaultProxy(uint16_t port);
  ~FaultProxy();

  /// The next fault; counting begins now.
  void Arm(const Fault& fault);
  /// It is not to happen any more. True when it has happened.
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
  /// What becomes of these bytes on their way; false when the connection ends here.
  bool Pass(Connection& connection, bool towards_receiver, std::string& bytes);
  void Reap(bool all);

  const uint16_t port_;
  int listener_ = -1;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> happened_{false};
  std::mutex mu_;
  std::optional<Fault> fault_;
  uint64_t passed_ = 0;  // in the fault's direction since Arm
  std::list<Connection> connections_;
  std::thread accepting_;
};

}  // namespace deltawire::testing
