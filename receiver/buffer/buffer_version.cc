#include "receiver/buffer/buffer_version.h"

#include <utility>

namespace deltawire::receiver {

void BufferVersion::OnReady(std::function<void()> listener) {
  {
    MutexLock lock(mu_);
    on_ready_ = listener;
  }
  listener();
}

Identity BufferVersion::Ready() const {
  MutexLock lock(mu_);
  return ready_;
}

Identity BufferVersion::committed() const {
  MutexLock lock(mu_);
  return committed_;
}

bool BufferVersion::half_updated() const {
  MutexLock lock(mu_);
  return half_updated_;
}

void BufferVersion::TakeUp(const Buffer& buffer) {
  MutexLock lock(mu_);
  committed_ = ready_ = buffer.committed();
  half_updated_ = committed_.empty() && !buffer.last_whole().empty();
}

void BufferVersion::NoteVersion(const Buffer& buffer) {
  MutexLock lock(mu_);
  committed_ = buffer.committed();
  half_updated_ = half_updated_ && committed_.empty();
}

void BufferVersion::NoteBuffer(const Buffer& buffer) {
  MutexLock lock(mu_);
  committed_ = buffer.committed();
  const bool changed = buffer.update().begun() && !buffer.last_whole().empty();
  half_updated_ = committed_.empty() && (half_updated_ || changed);
}

void BufferVersion::NoteNameLost() {
  MutexLock lock(mu_);
  committed_ = {};
  half_updated_ = true;
}

void BufferVersion::ForgetVersion() {
  MutexLock lock(mu_);
  committed_ = ready_ = {};
}

void BufferVersion::ForgetBuffer() {
  MutexLock lock(mu_);
  committed_ = ready_ = {};
  half_updated_ = false;
}

void BufferVersion::MakeReady() {
  std::function<void()> listener;
  {
    MutexLock lock(mu_);
    ready_ = committed_;
    listener = on_ready_;
  }
  if (listener) listener();
}

}  // namespace deltawire::receiver
