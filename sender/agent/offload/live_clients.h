// The trainer's clients that are alive: each keeps at least one stream open.
#pragma once

#include <cstdint>
#include <map>

namespace deltawire::sender {

class LiveClients {
 public:
  /// Adds a stream of the client. 0 is no client.
  void Add(uint64_t client) {
    if (client == 0) return;
    Client& known = clients_.try_emplace(client).first->second;
    if (known.streams++ == 0) known.came = ++arrivals_;
  }
  /// Removes a stream. Returns whether the client is dead by that.
  bool Remove(uint64_t client) {
    const auto known = clients_.find(client);
    if (known == clients_.end() || --known->second.streams > 0) return false;
    clients_.erase(known);
    return true;
  }
  /// The number of clients that have come.
  uint64_t arrivals() const { return arrivals_; }
  /// Whether the client is unknown or came after that many others.
  bool CameAfter(uint64_t client, uint64_t arrivals) const {
    const auto known = clients_.find(client);
    return known == clients_.end() || known->second.came > arrivals;
  }

 private:
  struct Client {
    uint64_t came = 0;  // arrivals_ after it came
    uint32_t streams = 0;
  };
  std::map<uint64_t, Client> clients_;
  uint64_t arrivals_ = 0;
};

}  // namespace deltawire::sender
