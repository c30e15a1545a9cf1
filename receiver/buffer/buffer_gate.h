// The gate between the readers of a model's directory and its updates: an engine holds a version
// while it reads it, and an update waits for readers and engines before it begins. A Replica owns
// it, and the update's calls name the Buffer. Every public method may be called from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "common/base/checked_mutex.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "receiver/buffer/buffer.h"
#include "receiver/buffer/buffer_version.h"
#include "receiver/buffer/downstream.h"

namespace deltawire::receiver {

class BufferGate {
 public:
  struct Options {
    std::string model;
    bool unsafe_in_place = false;
    /// The time for which an update of the only file waits for readers, if copy_for_reader is set.
    /// After it the update goes to a fresh file, and the readers keep the old one. Without
    /// copy_for_reader an update waits without limit.
    std::chrono::milliseconds reader_grace{10000};
    bool copy_for_reader = false;
    Downstream* downstream = nullptr;  ///< serves the committed file; null: none
  };
  /// `news` is called, without a lock, when a wait begins, and when other readers cause it.
  explicit BufferGate(Options options, std::function<void()> news = nullptr)
      : options_(std::move(options)), news_(std::move(news)) {}

  // Engines (receiver/engine).
  /// Keeps the named file at `id` until Release or `until`; its next version waits. False: the file
  /// is not at `id`, or is about to change. waits() shows the name `reader`.
  bool Hold(const Identity& id, const std::string& reader,
            SteadyClock::time_point until = SteadyClock::time_point::max())
      ABSL_LOCKS_EXCLUDED(mu_);
  void Release(const std::string& reader) ABSL_LOCKS_EXCLUDED(mu_);

  // The running pull.
  /// The limit of the changes that a pull may make before its commit.
  enum class Limit : uint8_t {
    kNone,
    kKeepName,  ///< the only file keeps its name: an agent may still abandon its part
    kPrepare,   ///< no change that a reader sees: the version waits for its group's commit
  };
  /// The reason of the last failure of Touch since SetLimit.
  enum class Refusal : uint8_t { kNone, kReader, kCannotPrepare };
  void SetLimit(Limit limit);
  /// The version is published, so kKeepName becomes kNone.
  void EndKeepName();
  /// The pull is over; refusal() stays.
  void EndLimit() { limit_ = Limit::kNone; }
  Limit limit() const { return limit_; }
  Refusal refusal() const { return refusal_; }
  /// Makes the buffer ready for a pull to change its first byte, from any of the pull's threads.
  /// Does not wait: returns kUnavailable while a reader blocks it.
  Status Touch(Buffer& buffer) ABSL_LOCKS_EXCLUDED(mu_);
  /// Waits for the readers that keep the buffer's bytes from being changed. kCancelled: see
  /// SetYielding.
  Status WaitWritable(Buffer& buffer) ABSL_LOCKS_EXCLUDED(mu_);
  /// Waits until no engine holds the directory, and lets no other one hold it until EndChange.
  Status BeginChange() ABSL_LOCKS_EXCLUDED(mu_);
  void EndChange(const Buffer& buffer) ABSL_LOCKS_EXCLUDED(mu_);
  /// The same after the committed version has lost its name, since chunks of it are corrupt.
  void EndChangeWithoutName() ABSL_LOCKS_EXCLUDED(mu_);
  /// A yielding gate ends its waits with kCancelled, unless the weights' name is gone: a half
  /// updated file could not be loaded at all, so its update goes on.
  void SetYielding(bool yielding) ABSL_LOCKS_EXCLUDED(mu_);
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  /// The buffer's version, which the gate notes at each step of an update.
  BufferVersion& version() { return version_; }
  const BufferVersion& version() const { return version_; }

  struct Waits {
    bool waiting = false;
    std::string readers;            ///< processes that hold up an update now
    double seconds = 0, worst = 0;  ///< of all waits, with the present one
    double ended_seconds = 0;       ///< of those that have ended
  };
  Waits waits() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  /// kOpen -> kDraining (an update waits for engines: no other one may hold) -> kChanging
  /// (BeginChange) -> kOpen (EndChange); kDraining -> kOpen when the wait ends without a change.
  enum class State : uint8_t { kOpen, kDraining, kChanging };

  /// BufferUpdate::Begin; also false while an engine holds the only file.
  StatusOr<bool> BeginUpdate(Buffer& buffer) ABSL_LOCKS_EXCLUDED(mu_);
  Status TouchForPrepare(Buffer& buffer);
  bool IsInterrupted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || (yielding_ && !version_.half_updated());
  }
  /// Ends the wait, if one had begun, and adds it to the sums.
  void EndWait() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// The engines that hold the directory.
  std::string Holders() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Releases the holds whose time is over.
  void DropLateHolders() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const std::function<void()> news_;
  BufferVersion version_;
  std::atomic<Limit> limit_{Limit::kNone};
  std::atomic<Refusal> refusal_{Refusal::kNone};
  mutable CheckedMutex mu_;
  CondVar cv_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kOpen;
  bool yielding_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  /// Engines that read the directory, and until when.
  std::multimap<std::string, SteadyClock::time_point> holders_ ABSL_GUARDED_BY(mu_);
  int updates_begun_ ABSL_GUARDED_BY(mu_) = 0;  // threads that begin to change the only file
  std::string readers_ ABSL_GUARDED_BY(mu_);
  std::optional<SteadyClock::time_point> waiting_since_ ABSL_GUARDED_BY(mu_);
  double waited_ ABSL_GUARDED_BY(mu_) = 0, worst_wait_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace deltawire::receiver
