// The Asio code that the .cc files of common/net share, and private to it. Each stream is a
// coroutine on its own strand. A Watchdog closes a socket on which one wait takes too long.
// FromAsio and FromException turn errors into Status.
#pragma once

#include <algorithm>
#include <boost/asio.hpp>
#include <chrono>
#include <exception>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/net/io_threads.h"
#include "common/net/moved_bytes.h"

namespace deltawire::net {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

/// The completion token of every wait: it returns errors as values instead of throwing them.
inline constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

struct IoThreads::Impl {
  asio::io_context context;
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  std::vector<std::thread> threads;
};

/// The one place where Asio's errors become a Status. `what` names the peer and the action.
inline Status FromAsio(std::string_view what, const ErrorCode& ec) {
  StatusCode code = StatusCode::kUnavailable;
  std::string text = ec.message();
  if (ec == asio::error::eof || ec == asio::error::connection_reset ||
      ec == asio::error::broken_pipe) {
    text = "the peer closed the connection";
  } else if (ec == asio::error::operation_aborted || ec == asio::error::bad_descriptor) {
    code = StatusCode::kCancelled;
    text = "cancelled";
  } else if (ec == asio::error::address_in_use) {
    code = StatusCode::kAlreadyExists;
  } else if (ec == asio::error::access_denied) {
    code = StatusCode::kPermissionDenied;
  }
  return Errorf(code, "{}: {}", what, text);
}

/// Closes a socket after `limit` without progress, or at the deadline that EndAfter sets. Progress
/// is a Feed(), or bytes that only the kernel has seen: on a slow link half a MiB, a stream's unit
/// of I/O, takes longer than the limit. Runs on the socket's strand. Owned by shared_ptr because
/// its timer may outlive the stream.
class Watchdog : public std::enable_shared_from_this<Watchdog> {
 public:
  /// The direction of the kernel's bytes that counts as progress: the stream's own, so that a peer
  /// cannot keep it open by sending unexpected bytes one at a time.
  enum class Counts : uint8_t { kReceived, kAcknowledged, kBoth };
  Watchdog(std::shared_ptr<tcp::socket> socket, std::chrono::milliseconds limit, Counts counts)
      : socket_(std::move(socket)),
        timer_(socket_->get_executor()),
        limit_(limit),
        counts_(counts),
        shown_(limit) {}

  void Start() {
    Feed();
    Arm();
  }
  void Count(Counts counts) { counts_ = counts; }
  /// Reports progress, which restarts the time limit.
  void Feed() {
    if (!last_) deadline_ = std::chrono::steady_clock::now() + limit_;
  }
  /// Closes the socket `rest` from now, whatever the progress; replaces an earlier deadline.
  void EndAfter(std::chrono::milliseconds rest) {
    last_ = true;
    shown_ = rest;
    deadline_ = std::chrono::steady_clock::now() + rest;
    timer_.cancel();  // its handler arms it again, with the new deadline
  }
  /// Undoes EndAfter, and restarts the time limit.
  void Resume() {
    last_ = false;
    shown_ = limit_;
    Feed();
  }
  void Stop() {
    stopped_ = true;
    timer_.cancel();
  }
  bool fired() const { return fired_; }
  /// Returns the time without progress at which it fired, for messages.
  std::chrono::milliseconds limit() const { return shown_; }

 private:
  /// Checks the kernel's count four times per limit.
  void Arm() {
    const auto now = std::chrono::steady_clock::now();
    timer_.expires_at(last_ ? deadline_ : std::min(deadline_, now + limit_ / 4));
    timer_.async_wait([self = shared_from_this()](const ErrorCode&) {
      if (self->stopped_) return;
      if (self->Moved()) self->Feed();
      if (std::chrono::steady_clock::now() < self->deadline_) return self->Arm();
      self->fired_ = true;
      ErrorCode ignored;
      self->socket_->close(ignored);
    });
  }

  bool Moved() {
    const MovedBytes moved = MovedBytesOf(socket_->native_handle());
    const bool received = counts_ != Counts::kAcknowledged, sent = counts_ != Counts::kReceived;
    const uint64_t count = (received ? moved.received : 0) + (sent ? moved.acknowledged : 0);
    return std::exchange(moved_, count) != count;
  }

  std::shared_ptr<tcp::socket> socket_;
  asio::steady_timer timer_;
  const std::chrono::milliseconds limit_;
  Counts counts_;
  uint64_t moved_ = 0;
  std::chrono::milliseconds shown_;
  bool last_ = false;
  std::chrono::steady_clock::time_point deadline_;
  bool stopped_ = false;
  bool fired_ = false;
};

inline Status FromException(std::string_view what, const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& e) {
    return Errorf(StatusCode::kInternal, "{}: {}", what, e.what());
  } catch (...) {
    return Errorf(StatusCode::kInternal, "{}: an exception of unknown type", what);
  }
}

/// Returns "10.0.0.2:7701", or "?" when the peer has gone already.
inline std::string PeerName(const tcp::socket& socket) {
  ErrorCode ec;
  const auto peer = socket.remote_endpoint(ec);
  if (ec) return "?";
  return fmt::format("{}:{}", peer.address().to_string(), peer.port());
}

}  // namespace deltawire::net
