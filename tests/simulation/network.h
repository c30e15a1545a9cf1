// The simulated network: nodes, and connections that carry messages in order, with latency and a
// rate. A connection breaks at one end; the other end hears of it later, and across a partition not
// before it heals. A partition holds all messages back and tells nobody. A machine that died
// silently answers no dial. Errors: kUnavailable (ended, refused), kDeadlineExceeded.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "tests/simulation/process.h"
#include "tests/simulation/scheduler.h"

namespace deltawire::simulation {

class Network;

struct Message {
  std::vector<std::byte> bytes;
  std::shared_ptr<const void> object;  ///< content that is passed without encoding
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  enum Side : uint8_t { kClient, kServer };

  /// Waits while more than the window is under way.
  Status Send(Side from, Message message, Time deadline = kForever);
  StatusOr<Message> Receive(Side at, Time deadline = kForever);
  /// Ends the connection; the other side learns of it after all earlier messages.
  void Close(Side from);
  /// Resets the connection: this side knows at once, the other as soon as that reaches it. Messages
  /// under way are lost.
  void Break(Side from);
  /// Whether this side's process has learned that the connection has ended.
  bool Ended(Side at) const;
  /// When it will learn of an end that is under way; kForever when none is.
  Time EndsAt(Side at) const;

 private:
  friend class Network;
  struct Direction {
    std::deque<std::pair<Time, Message>> on_the_way;
    size_t bytes = 0;
    Time busy_until{0};
    bool closed = false;
    bool reset = false;
    Time closed_at{0};  ///< or reset at
  };
  Connection(Network& network, std::string client, std::string server, bool keepalive)
      : network_(network),
        client_(std::move(client)),
        server_(std::move(server)),
        keepalive_(keepalive) {}
  /// When the server gives up a peer that its pings do not reach; kForever while they do.
  Time MutesAt() const;

  Network& network_;
  const std::string client_, server_;
  const bool keepalive_;
  Direction to_[2];
  bool broken_[2] = {};
  Time lost_since_ = kForever;  // when the client's machine died silently
};

/// Lets another thread cancel a caller's calls, for good.
struct CallHandle {
  bool cancelled = false;
  std::shared_ptr<Connection> connection;
};

/// A machine of a daemon or trainer, which outlives its processes.
struct Node {
  std::string name;
  std::shared_ptr<Process> process;  ///< null: never started
  /// By port: called in a fiber of the process for each connection.
  std::map<std::string, std::function<void(std::shared_ptr<Connection>)>> listeners;
  bool alive() const { return process != nullptr && process->alive(); }
  bool dark = false;  ///< its machine died silently, and has not been started since
};

class Network {
 public:
  struct Options {
    Time shortest = std::chrono::microseconds(50), longest = std::chrono::milliseconds(2);
    double bytes_per_s = 2e6;
    size_t window = 8192;
    double flips = 0;          ///< share of messages in which a bit flips
    double silent_deaths = 0;  ///< share of deaths of which the peers are not told
  };
  Network(const Options& options, Random random) : options_(options), random_(random) {}

  void Add(Node& node) { nodes_[node.name] = &node; }
  Node& node(const std::string& name) { return *nodes_.at(name); }

  /// Connects from the calling process. Waits while a partition lasts, at most `timeout`.
  StatusOr<std::shared_ptr<Connection>> Connect(const std::string& from, const std::string& to,
                                                const std::string& port,
                                                Time timeout = std::chrono::seconds(10),
                                                CallHandle* handle = nullptr);

  /// Runs `serve` in a fiber of `to`'s process and returns its result. `gone` tells `serve` that
  /// its caller has gone. `serve` must capture by value: its caller may be dead by then.
  template <typename R>
  StatusOr<R> Call(const std::string& from, const std::string& to, Time timeout,
                   std::function<StatusOr<R>(const std::function<bool()>& gone)> serve,
                   CallHandle* handle = nullptr);
  void Cancel(CallHandle& handle);

  void Partition(const std::string& a, const std::string& b);
  void Heal();
  bool Reachable(const std::string& a, const std::string& b) const;
  /// When the partition between them began; kForever while there is none.
  Time PartedSince(const std::string& a, const std::string& b) const;
  /// Breaks each connection with probability `share`, at either end first.
  void BreakSome(double share);
  /// Breaks all connections of `name`, at its end.
  void BreakAll(const std::string& name);
  /// Tells the network that the process of `name` has died. `told`: its peers hear of it for sure,
  /// as at the other end of a Unix socket.
  void NodeDied(const std::string& name, bool told = false);
  /// The machine of `name` runs again, and resets what its peers still take for connections.
  void NodeStarted(const std::string& name);
  double bytes_per_s() const { return options_.bytes_per_s; }
  void SetFlips(double share) { options_.flips = share; }

 private:
  friend class Connection;
  using Served = std::function<Message(const std::function<bool()>& gone)>;
  StatusOr<Message> CallAny(const std::string& from, const std::string& to, Time timeout,
                            Served serve, CallHandle* handle);
  Time Latency();
  void Flip(std::vector<std::byte>& bytes);

  Options options_;
  Random random_;
  std::map<std::string, Node*> nodes_;
  std::map<std::pair<std::string, std::string>, Time> partitions_;  // since when
  std::vector<std::weak_ptr<Connection>> connections_;
  std::vector<std::pair<std::string, std::weak_ptr<Connection>>> silent_;  // by who died unnoticed
};

/// The listener with which every node serves Call.
void ServeCall(const std::shared_ptr<Connection>& connection);

template <typename R>
StatusOr<R> Network::Call(const std::string& from, const std::string& to, Time timeout,
                          std::function<StatusOr<R>(const std::function<bool()>& gone)> serve,
                          CallHandle* handle) {
  const Served any = [serve](const std::function<bool()>& gone) {
    return Message{.object = std::make_shared<const StatusOr<R>>(serve(gone))};
  };
  auto answered = CallAny(from, to, timeout, any, handle);
  if (!answered.ok()) return answered.status();
  return *static_cast<const StatusOr<R>*>(answered->object.get());
}

}  // namespace deltawire::simulation
