// One of the two weight files that a buffer may have: the file, the lease that shows its readers,
// and its records in the state file, which give each chunk's version and digest. WeightFiles owns
// it. Chunk calls may come from any thread, for different chunks; the rest from one at a time.
// Errors name the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/layout/chunks.h"
#include "common/layout/layout.h"
#include "common/shm/buffer_file.h"
#include "common/shm/file_lease.h"
#include "common/shm/state_file.h"
#include "kernels/kernels.h"
#include "receiver/buffer/served_file.h"

namespace deltawire::receiver {

/// A fast payload that was applied to a chunk since the previous committed state.
struct AppliedDelta {
  uint32_t chunk = 0;
  uint64_t digest_before = 0;
  uint64_t digest_after = 0;
  Bytes payload;
};

/// Calls `f` for each chunk, on `pool`, or in the caller's thread if it is null.
void ForEachChunk(const ChunkTable& chunks, ThreadPool* pool,
                  const std::function<void(uint32_t)>& f);

class BufferSlot {
 public:
  /// The Buffer's parts and options that both of its slots use.
  struct Env {
    const Layout& layout;
    const ChunkTable& chunks;
    const kernels::DigestKey& key;
    const kernels::Backend& backend;
    bool huge_pages = true;
    ThreadPool* pool = nullptr;
    bool unsafe_in_place = false;  ///< see Buffer::Options
    bool leases = true;            ///< they work in the directory
  };
  BufferSlot(const Env& env, StateFile& state, uint32_t index)
      : env_(env), state_(state), index_(index) {}

  // The file. REQUIRES, but for the first four: there is one.
  bool has_file() const { return file_ != nullptr; }
  bool IsAt(const std::filesystem::path& path) const { return file_ && file_->path() == path; }
  /// Opens the existing file at `path`.
  Status Open(const std::filesystem::path& path);
  /// Makes a new file at `path`. kCancelled when `stop` returned true; see BufferOptions.
  Status Make(const std::filesystem::path& path, const std::function<bool()>& stop);
  BufferFile& file() const { return *file_; }
  /// Closes the file, if there is one, and forgets its chunks. Its readers keep their
  /// mappings.
  void Forget();
  /// Forgets the file and removes it from the directory, unless its path leads to another file.
  Status Remove();
  /// True when the file's path still leads to that file.
  bool HasItsPath() const;
  /// True when another process gave the file a second name (`ln`, `cp -l`, or `mv` before its name
  /// was put back). A process may open the file by that name at any time, so its bytes must not
  /// change.
  bool HasAnotherName() const;
  /// Remembers when the file was last written, so that IsTouched shows later writes and cuts.
  void Remember();
  bool IsTouched() const;

  // Its readers.
  /// Whether the file may be changed once TryAlone says that nobody has it open.
  bool IsReusable() const;
  /// Tests whether nobody else has the file open. After kAlone the lease is held.
  FileLease::Answer TryAlone() {
    return env_.unsafe_in_place ? FileLease::Answer::kAlone : lease_.Try();
  }
  FileLease& lease() { return lease_; }
  std::shared_ptr<ServedFile> Serve();
  /// The file's present state as it is served; null: it is not.
  const std::shared_ptr<ServedFile>& served() const { return served_; }
  bool IsLeased() const { return served_ != nullptr && served_->IsLeased(); }
  /// Ends the serving of the file, so that it may be changed. False while a lease is out.
  bool CloseServed();

  // Its records.
  Identity identity() const { return state_.identity(index_); }
  bool IsWhole() const { return state_.phase(index_) == SlotPhase::kWhole; }
  bool IsWriting() const { return state_.phase(index_) == SlotPhase::kWriting; }
  uint64_t inode() const { return state_.inode(index_); }
  void BeginWrite() {
    if (!IsWriting()) state_.BeginWrite(index_);
  }
  void FinishWrite(const Identity& whole) { state_.FinishWrite(index_, whole); }
  bool HasItsRoot() const;

  // Its chunks.
  bool Knows(uint32_t i) const { return file_ && version(i) != kVersionUnknown; }
  uint64_t version(uint32_t i) const { return state_.chunk_version(index_, i); }
  uint64_t digest(uint32_t i) const { return state_.chunk_digest(index_, i); }
  MutableBytes bytes(uint32_t i) const {
    return file_->data().subspan(env_.chunks[i].offset, env_.chunks[i].bytes);
  }
  void MarkUnknown(uint32_t i) { state_.MarkUnknown(index_, i); }
  void SetChunk(uint32_t i, uint64_t version, uint64_t digest) {
    state_.SetChunk(index_, i, version, digest);
  }
  bool HasItsDigest(uint32_t i) const {
    return env_.backend.digest(env_.key, bytes(i)) == digest(i);
  }
  /// The known chunks without their digest.
  std::vector<uint32_t> FindCorrupt() const;
  /// Copies a chunk and checks the copy. kDataLoss: `from` has other bytes than its digest.
  Status CopyChunk(const BufferSlot& from, uint32_t i);
  /// Brings a chunk to the state that it has in `from`: by the deltas that start at its bytes, or
  /// else by a copy.
  Status CatchUpChunk(const BufferSlot& from, uint32_t i,
                      std::span<const AppliedDelta* const> deltas);

 private:
  const Env env_;
  StateFile& state_;
  const uint32_t index_;
  std::shared_ptr<BufferFile> file_;
  FileLease lease_;
  std::shared_ptr<ServedFile> served_;
  int64_t written_[2] = {0, 0};  // seconds and nanoseconds
};

}  // namespace deltawire::receiver
