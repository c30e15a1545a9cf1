// The version in a model's directory: the committed one, the one that engines may load, and whether
// an update has taken the weights' name away. A BufferGate owns it. Every method may be called from
// any thread.
#pragma once

#include <functional>

#include "common/base/checked_mutex.h"
#include "common/base/identity.h"
#include "receiver/buffer/buffer.h"

namespace deltawire::receiver {

class BufferVersion {
 public:
  Identity committed() const ABSL_LOCKS_EXCLUDED(mu_);
  /// Whether an update has taken the weights' name away, and is not committed.
  bool half_updated() const ABSL_LOCKS_EXCLUDED(mu_);
  /// The version that was committed last, with its delta beside it; empty: none yet.
  Identity Ready() const ABSL_LOCKS_EXCLUDED(mu_);
  /// Calls `listener` at once, and from now on whenever Ready() may have changed, on the thread
  /// that changes the directory next. May be set once.
  void OnReady(std::function<void()> listener) ABSL_LOCKS_EXCLUDED(mu_);

  /// Takes up a buffer that was recovered: its version is ready, or its update goes on.
  void TakeUp(const Buffer& buffer) ABSL_LOCKS_EXCLUDED(mu_);
  /// Notes the state that the buffer is in now.
  void NoteBuffer(const Buffer& buffer) ABSL_LOCKS_EXCLUDED(mu_);
  /// Notes the committed version alone, after a check, which is no update.
  void NoteVersion(const Buffer& buffer) ABSL_LOCKS_EXCLUDED(mu_);
  /// The committed version has lost its name, since chunks of it are corrupt.
  void NoteNameLost() ABSL_LOCKS_EXCLUDED(mu_);
  /// No version is committed or ready: the directory is gone.
  void ForgetVersion() ABSL_LOCKS_EXCLUDED(mu_);
  /// The buffer is gone, too, so that no update goes on.
  void ForgetBuffer() ABSL_LOCKS_EXCLUDED(mu_);
  /// Engines may load the committed version from now on. Calls the listener.
  void MakeReady() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable CheckedMutex mu_;
  Identity committed_ ABSL_GUARDED_BY(mu_);
  Identity ready_ ABSL_GUARDED_BY(mu_);
  bool half_updated_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void()> on_ready_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire::receiver
