#include "tests/simulation/network.h"

#include <algorithm>

namespace deltawire::simulation {
namespace {

Scheduler& Now() { return *Scheduler::current(); }

/// The server's keepalive (proto/control_server.cc): it pings after so long, and waits so long.
constexpr auto kMute = std::chrono::seconds(5 + 3);

std::pair<std::string, std::string> Pair(const std::string& a, const std::string& b) {
  return a < b ? std::pair(a, b) : std::pair(b, a);
}

}  // namespace

Status Connection::Send(Side from, Message message, Time deadline) {
  Now().Point("send");
  Direction& out = to_[1 - from];
  while (!Ended(from) && !out.closed && out.bytes > network_.options_.window) {
    if (Now().now() >= deadline) return absl::DeadlineExceededError("the other end takes nothing");
    Now().Block(&out, "room to send", std::min(deadline, EndsAt(from)));
  }
  if (out.closed || Ended(from)) {
    return absl::UnavailableError("the connection has ended");
  }
  network_.Flip(message.bytes);
  const auto sending = std::chrono::duration_cast<Time>(std::chrono::duration<double>(
      static_cast<double>(message.bytes.size() + 64) / network_.options_.bytes_per_s));
  out.busy_until = std::max(out.busy_until, Now().now()) + sending;
  Time arrives = out.busy_until + network_.Latency();
  if (!out.on_the_way.empty()) arrives = std::max(arrives, out.on_the_way.back().first);
  out.bytes += message.bytes.size();
  out.on_the_way.emplace_back(arrives, std::move(message));
  Now().Wake(this);
  return absl::OkStatus();
}

StatusOr<Message> Connection::Receive(Side at, Time deadline) {
  Now().Point("receive");
  Direction& in = to_[at];
  while (true) {
    const bool reachable = network_.Reachable(client_, server_);
    const Time now = Now().now();
    const Time mutes = at == kServer ? MutesAt() : kForever;
    if (mutes <= now) Break(at);
    if (broken_[at]) return absl::UnavailableError("the connection broke");
    if (reachable && in.reset && in.closed_at <= now) {
      return absl::UnavailableError("the other end reset the connection");
    }
    if (reachable && !in.on_the_way.empty() && in.on_the_way.front().first <= now) {
      Message message = std::move(in.on_the_way.front().second);
      in.on_the_way.pop_front();
      in.bytes -= message.bytes.size();
      Now().Wake(&in);
      return message;
    }
    if (reachable && in.closed && in.on_the_way.empty() && in.closed_at <= now) {
      return absl::UnavailableError("the other end closed the connection");
    }
    if (now >= deadline) return absl::DeadlineExceededError("nothing came in time");
    Time next = std::min(deadline, mutes);
    if (reachable && in.reset) next = std::min(next, in.closed_at);
    if (reachable && !in.on_the_way.empty()) next = std::min(next, in.on_the_way.front().first);
    if (reachable && in.on_the_way.empty() && in.closed) next = std::min(next, in.closed_at);
    Now().Block(this, "a message", next);
  }
}

void Connection::Close(Side from) {
  Direction& out = to_[1 - from];
  if (out.closed) return;
  out.closed = true;
  out.closed_at = std::max(out.busy_until, Now().now()) + network_.Latency();
  Now().Wake(this);
  Now().Wake(&out);
  Now().Wake(&to_[from]);
}

void Connection::Break(Side from) {
  broken_[from] = true;
  Direction& out = to_[1 - from];
  if (!out.reset) {
    out.reset = true;
    out.closed_at = Now().now() + network_.Latency();
  }
  for (Direction& d : to_) {
    d.on_the_way.clear();
    Now().Wake(&d);
  }
  Now().Wake(this);
}

Time Connection::MutesAt() const {
  if (!keepalive_) return kForever;
  const Time since = std::min(lost_since_, network_.PartedSince(client_, server_));
  return since == kForever ? kForever : since + kMute;
}

bool Connection::Ended(Side at) const {
  const Direction& in = to_[at];
  if (broken_[at] || (at == kServer && MutesAt() <= Now().now())) return true;
  return (in.closed || in.reset) && in.closed_at <= Now().now() &&
         network_.Reachable(client_, server_);
}

Time Connection::EndsAt(Side at) const {
  const Direction& in = to_[at];
  const Time mutes = at == kServer ? MutesAt() : kForever;
  const bool ends = (in.closed || in.reset) && network_.Reachable(client_, server_);
  return std::min(mutes, ends ? in.closed_at : kForever);
}

Time Network::Latency() {
  return options_.shortest +
         Time(random_.Below(static_cast<uint64_t>((options_.longest - options_.shortest).count())));
}

void Network::Flip(std::vector<std::byte>& bytes) {
  if (bytes.empty() || !random_.Chance(options_.flips)) return;
  bytes[random_.Below(bytes.size())] ^= static_cast<std::byte>(1u << random_.Below(8));
}

StatusOr<std::shared_ptr<Connection>> Network::Connect(const std::string& from,
                                                       const std::string& to,
                                                       const std::string& port, Time timeout,
                                                       CallHandle* handle) {
  const Time deadline = Now().now() + timeout;
  Now().Sleep(Latency());
  while (!Reachable(from, to)) {
    if (handle != nullptr && handle->cancelled) return absl::CancelledError("cancelled");
    if (Now().now() >= deadline) {
      return absl::DeadlineExceededError(to + " does not answer");
    }
    Now().Block(this, "an unreachable node", deadline);
  }
  Node& target = *nodes_.at(to);
  // A machine that is off does not even refuse.
  while (target.dark) {
    if (handle != nullptr && handle->cancelled) return absl::CancelledError("cancelled");
    if (Now().now() >= deadline) return absl::DeadlineExceededError(to + " does not answer");
    Now().Block(this, "a machine that is off", deadline);
  }
  const auto listener = target.listeners.find(port);
  if (!target.alive() || listener == target.listeners.end()) {
    return absl::UnavailableError(to + " refused the connection");
  }
  std::shared_ptr<Connection> connection(new Connection(*this, from, to, port != "bulk"));
  std::erase_if(connections_, [](const auto& c) { return c.expired(); });
  connections_.push_back(connection);
  Now().Spawn(port, target.process, [serve = listener->second, connection] { serve(connection); });
  Now().Sleep(Latency());
  return connection;
}

void ServeCall(const std::shared_ptr<Connection>& connection) {
  using Served = std::function<Message(const std::function<bool()>& gone)>;
  const auto asked = connection->Receive(Connection::kServer);
  if (!asked.ok()) return;
  const auto& serve = *static_cast<const Served*>(asked->object.get());
  Message answer = serve([connection] {
    Now().Point("gone?");
    return connection->Ended(Connection::kServer);
  });
  (void)connection->Send(Connection::kServer, std::move(answer));
  connection->Close(Connection::kServer);
}

StatusOr<Message> Network::CallAny(const std::string& from, const std::string& to, Time timeout,
                                   Served serve, CallHandle* handle) {
  if (handle != nullptr && handle->cancelled) return absl::CancelledError("cancelled");
  const Time deadline = timeout == kForever ? kForever : Now().now() + timeout;
  const Time connecting = std::min<Time>(timeout, std::chrono::seconds(10));
  DW_ASSIGN_OR_RETURN(const auto connection, Connect(from, to, "call", connecting, handle));
  if (handle != nullptr) {
    if (handle->cancelled) connection->Break(Connection::kClient);
    handle->connection = connection;
  }
  DW_RETURN_IF_ERROR(connection->Send(
      Connection::kClient, {.object = std::make_shared<const Served>(std::move(serve))}));
  auto answer = connection->Receive(Connection::kClient, deadline);
  connection->Close(Connection::kClient);
  if (handle != nullptr) handle->connection.reset();
  return answer;
}

void Network::Cancel(CallHandle& handle) {
  handle.cancelled = true;
  if (handle.connection != nullptr) handle.connection->Break(Connection::kClient);
  Now().Wake(this);
}

void Network::Partition(const std::string& a, const std::string& b) {
  partitions_.emplace(Pair(a, b), Now().now());
  // The servers among them begin to count.
  for (const auto& weak : connections_) {
    if (const auto connection = weak.lock()) Now().Wake(connection.get());
  }
}

void Network::Heal() {
  partitions_.clear();
  Now().Wake(this);
  for (const auto& weak : connections_) {
    if (const auto connection = weak.lock()) Now().Wake(connection.get());
  }
  for (auto& [name, node] : nodes_) {
    if (node->dark) NodeStarted(name);
  }
}

bool Network::Reachable(const std::string& a, const std::string& b) const {
  return !partitions_.contains(Pair(a, b));
}

Time Network::PartedSince(const std::string& a, const std::string& b) const {
  const auto since = partitions_.find(Pair(a, b));
  return since == partitions_.end() ? kForever : since->second;
}

void Network::BreakSome(double share) {
  for (const auto& weak : connections_) {
    const auto connection = weak.lock();
    if (connection == nullptr || !random_.Chance(share)) continue;
    connection->Break(random_.Chance(0.5) ? Connection::kClient : Connection::kServer);
  }
}

void Network::BreakAll(const std::string& name) {
  for (const auto& weak : connections_) {
    const auto connection = weak.lock();
    if (connection == nullptr) continue;
    if (connection->client_ == name) connection->Break(Connection::kClient);
    if (connection->server_ == name) connection->Break(Connection::kServer);
  }
}

void Network::NodeStarted(const std::string& name) {
  if (const auto node = nodes_.find(name); node != nodes_.end()) node->second->dark = false;
  std::erase_if(silent_, [&](const auto& entry) {
    if (entry.first != name) return false;
    if (const auto connection = entry.second.lock()) {
      connection->Break(connection->client_ == name ? Connection::kClient : Connection::kServer);
    }
    return true;
  });
  Now().Wake(this);
}

void Network::NodeDied(const std::string& name, bool told) {
  const bool silent = random_.Chance(options_.silent_deaths) && !told;
  for (const auto& weak : connections_) {
    const auto connection = weak.lock();
    if (connection == nullptr) continue;
    if (connection->client_ != name && connection->server_ != name) continue;
    const bool client = connection->client_ == name;
    if (silent) {
      silent_.emplace_back(name, weak);
      if (client) connection->lost_since_ = Now().now();
      Now().Wake(connection.get());
    } else {
      connection->Break(client ? Connection::kClient : Connection::kServer);
    }
  }
  if (const auto node = nodes_.find(name); node != nodes_.end()) node->second->dark = silent;
}

}  // namespace deltawire::simulation
