// A stream that shows the agent that this process lives, as long as it is open. The agent sends one
// event when it has noted the stream. gRPC's threads call the reactor; any thread may call the
// other methods. Start and status return the agent's errors.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

namespace deltawire {

template <typename Request, typename Event>
class HeldStream final : public grpc::ClientReadReactor<Event> {
 public:
  HeldStream() = default;
  ~HeldStream() override { End(); }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  /// Begins the stream. `call(context, request, reactor)` is the stub's method, and `wait` is the
  /// time limit for an agent that does not listen yet. Call once.
  template <typename Begin>
  void Open(Request request, bool wait, const Begin& call) {
    request_ = std::move(request);
    context_.set_wait_for_ready(wait);
    call(&context_, &request_, this);
    {
      std::lock_guard lock(mu_);
      started_ = true;
    }
    this->StartRead(&event_);
    this->StartCall();
  }
  /// Returns OK when the agent has noted the stream, otherwise its reason for refusal. It calls
  /// `gone`, which may be null, ten times a second; true ends the wait with CANCELLED.
  grpc::Status AwaitNoted(std::chrono::milliseconds timeout, const std::function<bool()>& gone) {
    constexpr std::chrono::milliseconds kGoneEvery{100};
    // The stream itself has no deadline, because it may last for any time.
    const auto end = std::chrono::steady_clock::now() + timeout;
    std::unique_lock lock(mu_);
    while (true) {
      const auto until = std::min(end, std::chrono::steady_clock::now() + kGoneEvery);
      if (cv_.wait_until(lock, until, [this] { return noted_ || done_; })) break;
      if (std::chrono::steady_clock::now() >= end) {
        return {grpc::StatusCode::DEADLINE_EXCEEDED, "the sender did not answer; is it running?"};
      }
      lock.unlock();
      if (gone && gone()) return {grpc::StatusCode::CANCELLED, "nobody waits any longer"};
      lock.lock();
    }
    return done_ ? status_ : grpc::Status::OK;
  }
  /// Returns OK while the stream is open, otherwise how it ended.
  grpc::Status status() const {
    std::lock_guard lock(mu_);
    return done_ ? status_ : grpc::Status::OK;
  }
  bool done() const {
    std::lock_guard lock(mu_);
    return done_;
  }
  /// Ends the stream and waits for its end.
  void End() {
    std::unique_lock lock(mu_);
    if (!started_) return;
    lock.unlock();
    context_.TryCancel();
    lock.lock();
    cv_.wait(lock, [this] { return done_; });
  }

 private:
  void OnReadDone(bool ok) override {
    {
      std::lock_guard lock(mu_);
      noted_ = noted_ || ok;
      cv_.notify_all();
    }
    if (ok) this->StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override {
    std::lock_guard lock(mu_);
    status_ = status;
    done_ = true;
    cv_.notify_all();
  }

  grpc::ClientContext context_;
  Request request_;
  Event event_;
  mutable std::mutex mu_;
  std::condition_variable cv_;
  bool started_ = false, noted_ = false, done_ = false;
  grpc::Status status_;
};

}  // namespace deltawire
