// A committed weight file whose bytes are served to other receivers. It keeps those who read it
// apart from the update that will change it. Owner: the Buffer and whoever serves it, by
// shared_ptr; the mapping lives as long. Threads: any. Cost: a lock per lease. Errors: none.
#pragma once

#include <chrono>
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
  /// A lease: while the caller holds it, the bytes stay. Null once the file is closed.
  std::shared_ptr<const void> Read() {
    {
      std::lock_guard lock(mu_);
      if (closed_) return nullptr;
      ++readers_;
    }
    return {this, [self = shared_from_this()](const void*) { self->Left(); }};
  }

  bool read() const {
    std::lock_guard lock(mu_);
    return readers_ > 0;
  }
  /// Closes the file for good, so that it may be changed; false while somebody reads it.
  bool Close() {
    std::lock_guard lock(mu_);
    if (readers_ > 0) return false;
    closed_ = true;
    return true;
  }
  /// Gives out no more leases, and waits until all are returned; false: one is still out after
  /// `limit`.
  bool Drain(std::chrono::milliseconds limit) {
    std::unique_lock lock(mu_);
    closed_ = true;
    return cv_.wait_for(lock, limit, [this] { return readers_ == 0; });
  }
  /// Undoes Drain or Close. REQUIRES: the bytes have not been changed since; Buffer::Reopen sees to
  /// that.
  void Open() {
    std::lock_guard lock(mu_);
    closed_ = false;
  }

 private:
  void Left() {
    std::lock_guard lock(mu_);
    --readers_;
    cv_.notify_all();
  }

  const std::shared_ptr<const BufferFile> file_;
  mutable Mutex mu_;
  CondVar cv_;
  bool closed_ = false;
  uint32_t readers_ = 0;
};

}  // namespace deltawire::receiver
