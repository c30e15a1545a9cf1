// A Mutex (common/base/sync.h) that clang's thread-safety analysis checks, at no cost. A member
// names the lock that guards it (ABSL_GUARDED_BY), and a method names the lock that its caller
// holds (ABSL_EXCLUSIVE_LOCKS_REQUIRED). `./run tidy` rejects violations. The analysis treats a
// lambda as a separate function, so a lambda that touches guarded members needs an annotation too.
#pragma once

#include <mutex>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"

namespace deltawire {

class ABSL_LOCKABLE CheckedMutex : public Mutex {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { Mutex::lock(); }
  bool try_lock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return Mutex::try_lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { Mutex::unlock(); }
};

/// Holds a CheckedMutex for its scope, except between unlock() and lock(). It is a
/// std::unique_lock, so a CondVar can wait with it.
class ABSL_SCOPED_LOCKABLE MutexLock : public std::unique_lock<Mutex> {
 public:
  explicit MutexLock(CheckedMutex& mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu)
      : std::unique_lock<Mutex>(mu) {}
  ~MutexLock() ABSL_UNLOCK_FUNCTION() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { std::unique_lock<Mutex>::lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { std::unique_lock<Mutex>::unlock(); }
};

// Abseil's ABSL_UNLOCK_FUNCTION releases in either mode, which the analysis cannot undo.
#if defined(__clang__)
#define DW_RELEASES_UNTIL_END(mu) __attribute__((release_capability(mu)))
#else
#define DW_RELEASES_UNTIL_END(mu)
#endif

/// Releases a CheckedMutex that the caller holds, and locks it again at the end of the scope, also
/// when an exception ends it.
class ABSL_SCOPED_LOCKABLE MutexUnlock {
 public:
  explicit MutexUnlock(CheckedMutex& mu) DW_RELEASES_UNTIL_END(mu) : mu_(mu) { mu_.unlock(); }
  ~MutexUnlock() ABSL_UNLOCK_FUNCTION() { Relock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  void Relock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mu_.lock(); }
  CheckedMutex& mu_;
};

}  // namespace deltawire

#undef DW_RELEASES_UNTIL_END
