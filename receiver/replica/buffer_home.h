// A model's directory at a receiver: its lock, its buffer, the sink of pulls, and the delta files
// beside it. It makes the buffer for a sender's layout, and again if the directory was removed. A
// Replica owns it; its driving thread alone uses it, but facts() is for any thread. Errors name the
// directory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/checked_mutex.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/delta/coder_rates.h"
#include "common/shm/dir_lock.h"
#include "receiver/attach/upstream.h"
#include "receiver/buffer/buffer.h"
#include "receiver/buffer/buffer_gate.h"
#include "receiver/buffer/delta_files.h"
#include "receiver/pull/pull_sink.h"
#include "receiver/replica/replica_options.h"

namespace deltawire::receiver {

/// Facts about a buffer, for threads that must not touch it.
struct BufferFacts {
  uint64_t model_bytes = 0;
  std::string fingerprint;  ///< of the layout; empty: there is no buffer
  uint32_t buffers = 0;     ///< weight files
  std::string why_buffers;  ///< the reason for their number
  Identity last_whole;      ///< the state that it last was wholly, as of the last NoteWhole
};

class BufferHome {
 public:
  /// Locks the directory and takes up the buffer that it holds, if it holds one. kAlreadyExists
  /// names another owner of the directory.
  static StatusOr<std::unique_ptr<BufferHome>> Open(const ReplicaOptions& options, ThreadPool& pool,
                                                    CoderRates& rates);

  /// Null until there is one.
  Buffer* buffer() const { return buffer_.get(); }
  /// Null until Make.
  PullSink* sink() const { return sink_.get(); }
  /// Counts the buffers that this process has made.
  uint64_t number() const { return number_; }
  /// Returns false if another process removed or moved the directory, or its state file.
  bool IsInPlace() const;
  /// Whether the buffer must be replaced, since its directory is gone or `layout` is another one.
  /// In the first case it removes the buffer's files from where the directory was.
  bool IsStale(const Layout& layout) const;
  /// Destroys the buffer.
  void Destroy() ABSL_LOCKS_EXCLUDED(mu_);
  /// Makes the missing objects for `description`, whose layout it moves away. `stop`, called from
  /// any thread, ends the reading of the first bytes. Returns true if the sink is new.
  StatusOr<bool> Make(ModelDescription& description, BufferGate& gate,
                      const std::function<bool()>& stop);
  BufferFacts facts() const ABSL_LOCKS_EXCLUDED(mu_);
  /// Updates BufferFacts::last_whole, after a pull or commit.
  void NoteWhole() ABSL_LOCKS_EXCLUDED(mu_);
  /// Writes the delta of the last commit to a file for engines.
  void WriteDelta();

 private:
  BufferHome(const ReplicaOptions& options, ThreadPool& pool, CoderRates& rates, DirLock lock);
  Buffer::Options BufferOptions() const;
  void TakeFirstBytes(const std::function<bool()>& stop);
  /// The reason for the number of weight files.
  std::string WhyBuffers() const;
  /// Notes the buffer's layout.
  void NoteLayout() ABSL_LOCKS_EXCLUDED(mu_);

  const ReplicaOptions options_;
  ThreadPool& pool_;
  CoderRates& rates_;
  std::shared_ptr<DirLock> lock_;
  std::unique_ptr<Buffer> buffer_;
  std::unique_ptr<PullSink> sink_;  // of buffer_
  DeltaFiles delta_files_;
  uint64_t number_ = 0;
  mutable CheckedMutex mu_;
  BufferFacts facts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire::receiver
