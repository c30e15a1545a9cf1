// A TCP proxy before a sender's bulk port that limits the speed, or changes what the receiver says
// that it has. It listens at the same port of another loopback address, which the sender
// advertises. Owner: the test case. Threads: its own, joined by the destructor. Cost: its sleeps
// are the link's speed; no test waits for them to pass. Errors: an exception if it cannot listen.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/wire/messages.h"

namespace deltawire::testing {

class Proxy {
 public:
  static constexpr const char* kHost = "127.0.0.2";

  /// Forwards from kHost:port to 127.0.0.1:port.
  explicit Proxy(uint16_t port);
  ~Proxy();

  /// Bytes per second towards the receiver, all connections together; 0: no limit.
  void set_rate(uint64_t bytes_per_s) { rate_ = bytes_per_s; }
  /// Changes the Have that the sender gets. `edit` is called from the proxy's threads.
  void set_edit(std::function<void(wire::Have&)> edit);

 private:
  void Accept();
  void PumpUp(int receiver, int sender);
  void PumpDown(int sender, int receiver);
  void EditHave(std::vector<std::byte>& header, std::vector<std::byte>& payload);
  void Pass(size_t bytes);

  const uint16_t port_;
  int listener_ = -1;
  std::atomic<uint64_t> rate_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mu_;
  std::function<void(wire::Have&)> edit_;
  std::chrono::steady_clock::time_point free_at_;
  std::vector<int> sockets_;
  std::thread accepting_;
  std::vector<std::thread> threads_;
};

}  // namespace deltawire::testing
