// A committed weight file whose bytes this receiver serves to others. Its leases keep an update
// from changing the bytes under a pull that still reads them. The mapping lives as long as this
// object. Every method may be called from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/sync.h"
#include "common/shm/buffer_file.h"

namespace deltawire::receiver {

class ServedFile : public std::enable_shared_from_this<ServedFile> {
 public:
  explicit ServedFile(std::shared_ptr<const BufferFile> file) : file_(std::move(file)) {}

  /// REQUIRES: a lease.
  Bytes data() const { return file_->data(); }
  /// A lease, which keeps the bytes as they are; null unless the file is open.
  std::shared_ptr<const void> Lease() {
    {
      std::lock_guard lock(mu_);
      if (state_ != State::kOpen) return nullptr;
      ++leases_;
    }
    return {this, [self = shared_from_this()](const void*) { self->Return(); }};
  }
  bool IsLeased() const {
    std::lock_guard lock(mu_);
    return leases_ > 0;
  }
  /// Gives out no more leases, and waits until all are returned, or for `limit`. Returns whether
  /// all are returned.
  bool Drain(std::chrono::milliseconds limit) {
    std::unique_lock lock(mu_);
    if (state_ == State::kOpen) state_ = State::kDraining;
    return cv_.wait_for(lock, limit, [this] { return leases_ == 0; });
  }
  /// Ends Drain. A closed file stays closed.
  void EndDrain() {
    std::lock_guard lock(mu_);
    if (state_ == State::kDraining) state_ = State::kOpen;
  }
  /// Closes the file, so that an update may change it. False while a lease is out.
  bool Close() {
    std::lock_guard lock(mu_);
    if (leases_ > 0) return false;
    state_ = State::kClosed;
    return true;
  }

 private:
  /// kOpen -> kDraining (Drain) -> kOpen (EndDrain); both -> kClosed (Close).
  enum class State : uint8_t { kOpen, kDraining, kClosed };

  void Return() {
    std::lock_guard lock(mu_);
    --leases_;
    cv_.notify_all();
  }

  const std::shared_ptr<const BufferFile> file_;
  mutable Mutex mu_;
  CondVar cv_;
  State state_ = State::kOpen;
  uint32_t leases_ = 0;
};

}  // namespace deltawire::receiver
