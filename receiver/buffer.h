// The receiver's buffer of one model: a HF model directory whose weight file can be opened by its
// name only while it is one whole version, and whose bytes never change under a reader: one file or
// two that take turns (docs/lifecycle.md). Owner: a Replica. Threads: chunk calls from any, for
// different chunks; committed(), status calls and BeginUpdate from any; the rest from one.
// Errors name the directory. Cost: 1x or 2x the model, 32 bytes per chunk.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/base/thread_pool.h"
#include "common/layout/chunks.h"
#include "common/layout/layout.h"
#include "common/layout/model_dir.h"
#include "common/shm/buffer_file.h"
#include "common/shm/dir_lock.h"
#include "common/shm/file_lease.h"
#include "common/shm/state_file.h"
#include "common/wire/messages.h"
#include "kernels/kernels.h"
#include "receiver/side_files.h"

namespace deltawire::receiver {

class Buffer {
 public:
  struct Options {
    /// 1: updated in place, when nobody reads. 2: the named file is always whole, updates go to the
    /// other. 0: 2 where the memory is enough (ChooseBuffers).
    uint32_t buffers = 1;
    bool huge_pages = true;
    ThreadPool* pool =
        nullptr;  ///< for populating, checking and copying; null: the caller's thread
    /// Change bytes whoever reads them.
    bool unsafe_in_place = false;
  };
  /// A fast payload that took a chunk of the committed state before to the one of now.
  struct AppliedDelta {
    uint32_t chunk = 0;
    uint64_t digest_before = 0;
    uint64_t digest_after = 0;
    Bytes payload;
  };
  struct CaughtUp {
    bool whole = false;                 ///< the hidden file is as the committed one
    std::vector<uint32_t> lost_chunks;  ///< of the committed one, which lost their digest
  };
  struct Health {
    std::vector<std::string> put_back;  ///< names of files that were gone or changed, and are right
    std::vector<uint32_t> bad_chunks;   ///< lost their bytes: unknown now, to be fetched
  };

  /// Takes up what an earlier process left in `dir`, whatever moment it was killed at, and compares
  /// every known chunk with its digest (at memory speed, on the pool). kNotFound when there is
  /// nothing; kDataLoss when what is there does not fit together.
  static StatusOr<std::unique_ptr<Buffer>> Recover(const std::filesystem::path& dir,
                                                   std::shared_ptr<DirLock> lock,
                                                   const Options& options);
  /// Makes a new one, dropping an earlier one, also one without its state file. Refuses a directory
  /// that holds weight files which are not a receiver's.
  static StatusOr<std::unique_ptr<Buffer>> Create(const std::filesystem::path& dir,
                                                  std::shared_ptr<DirLock> lock, Layout layout,
                                                  uint64_t digest_seed, const Options& options);
  /// 2 when the filesystem (and for one in memory the machine) has room for two and a half models,
  /// what is taken by this buffer already included; else 1.
  static uint32_t ChooseBuffers(const std::filesystem::path& dir, uint64_t model_bytes);

  const Layout& layout() const { return layout_; }
  const ChunkTable& chunks() const { return chunks_; }
  const kernels::DigestKey& key() const { return key_; }
  const std::filesystem::path& directory() const { return dir_; }
  uint32_t buffers() const { return buffers_; }
  /// Empty where leases work; else why not, and every update goes to a fresh file (or, by option,
  /// changes bytes whoever reads them).
  const std::string& lease_problem() const { return lease_problem_; }

  /// Of the file that has the name; empty when none has.
  Identity committed() const;
  /// What it last was wholly, also while the only file is being changed.
  Identity last_whole() const;
  /// No file has the name.
  bool updating() const { return front_ < 0; }
  /// Bytes have been changed since the last commit, or may have been.
  bool begun() const { return begun_; }
  /// An update was broken off; its file may be in use when it goes on.
  bool interrupted() const { return work_ >= 0 && !begun_; }
  /// Bytes may be changed while a pull still runs, and nobody is kept from loading by it.
  bool at_once() const { return front_ < 0 || buffers_ == 2; }
  /// last_whole(), and each chunk's base: what an update that begins, or goes on, starts from.
  wire::Have have() const;

  /// Of chunk i's base. The bytes are for reading, and stay until the chunk is prepared or marked.
  bool known(uint32_t i) const { return Base(i) >= 0; }
  uint64_t digest(uint32_t i) const;
  Bytes base(uint32_t i) const;

  /// Makes a file ready to be changed. Idempotent until Commit. False: others have it open; it
  /// is as it was, name included. In two-file mode, and where leases are not to be had, a fresh
  /// file takes the place of one in use; kResourceExhausted when there is no room for it.
  StatusOr<bool> BeginUpdate();
  /// Who has the file open that BeginUpdate waits for. Looks at every process: not for each try.
  std::string Readers() const;
  /// The same into a fresh file, whoever reads the old one.
  Status BeginUpdateInFreshFile();

  // REQUIRES for all of these: an update has begun.
  /// Makes chunk i's bytes in the file that is changed those with `digest` (copying them, checked,
  /// from the other file), and marks the chunk unknown. kDataLoss when the base has other bytes.
  StatusOr<MutableBytes> PrepareChunk(uint32_t i, uint64_t digest);
  /// Chunk i in the file that is changed, to be written whole. REQUIRES: MarkUnknown(i) before.
  MutableBytes chunk(uint32_t i) { return ChunkOf(work_, i); }
  void MarkUnknown(uint32_t i);
  /// After its bytes are whole and verified.
  void SetChunk(uint32_t i, uint64_t version, uint64_t digest);
  /// Every base is `whole` now: copies those that were not touched, puts the side files in place
  /// and gives the name. kInternal when a chunk is unknown, kDataLoss when the root is another, or
  /// when chunks have lost their digest: these are unknown from then on, and their file has no
  /// name.
  Status Commit(const Identity& whole, const std::vector<SideFile>& side_files);

  /// In two-file mode, between updates: brings the hidden file up to what is committed, by `deltas`
  /// where they fit, else by copying. Not whole when it is in use, or `stop` said so.
  StatusOr<CaughtUp> CatchUp(std::span<const AppliedDelta> deltas,
                             const std::function<bool()>& stop);

  /// Cheap (a few stats); to be called about every second while no pull runs. Puts back a name or
  /// side file that is gone, and looks at bytes that somebody wrote.
  StatusOr<Health> Check();
  /// Whether chunk i has its digest, in what readers open and in what an update would build on.
  /// From any thread, between updates.
  bool Intact(uint32_t i) const;
  /// Marks those of `chunks` unknown that have not, wherever it is; the committed file loses its
  /// name until the next commit if it has such a one.
  Status Distrust(std::span<const uint32_t> chunks);

 private:
  struct Slot {
    std::optional<BufferFile> file;
    FileLease lease;
  };
  /// One of the calls that are one at a time; no mutex is held meanwhile.
  class Turn;

  Buffer(std::filesystem::path dir, std::shared_ptr<DirLock> lock, Layout layout, ChunkTable chunks,
         StateFile state, const Options& options);

  // buffer_recover.cc
  Status TakeUp();
  Status OpenFiles();
  void ForgetSlot(int slot);
  Status DropFile(int slot);
  std::vector<uint32_t> FindBad(int slot) const;
  bool HasItsRoot(uint32_t slot) const;
  Status MakeFile(int slot);
  std::filesystem::path FreeHiddenName(int slot) const;

  /// The slot with chunk i's base, -1: none.
  int Base(uint32_t i) const;
  bool Known(int slot, uint32_t i) const;
  Bytes ChunkOf(int slot, uint32_t i) const;
  MutableBytes ChunkOf(int slot, uint32_t i);
  void ForEachChunk(const std::function<void(uint32_t)>& f) const;

  StatusOr<bool> Begin();
  StatusOr<bool> BeginInPlace(int slot);
  Status BeginFresh();
  void Begun(int slot);
  /// The file's path still leads to it.
  bool HasItsPath(int slot) const;
  bool HasItsDigest(int slot, uint32_t i) const;
  /// What Distrust does. REQUIRES: a Turn.
  Status Withdraw(std::span<const uint32_t> chunks);
  Status CopyChunk(int from, int to, uint32_t i);
  /// `side_files` null: those in place stay.
  Status CommitWork(const Identity& whole, const std::vector<SideFile>* side_files);
  StatusOr<std::vector<uint64_t>> DigestsToCommit() const;
  Status FillWork(const std::vector<uint64_t>& digests);
  Status GiveName(int slot);
  Status AfterCommit(int slot);
  Status CatchUpChunk(int slot, uint32_t i, std::span<const AppliedDelta* const> deltas);
  Status PutNameBack(Health& health);
  void RememberFront();
  bool FrontIsTouched() const;

  const std::filesystem::path dir_;
  const std::shared_ptr<DirLock> lock_;
  const Layout layout_;
  const ChunkTable chunks_;
  const Options options_;
  StateFile state_;
  const kernels::DigestKey key_;
  const kernels::Backend& backend_;
  uint32_t buffers_ = 1;
  std::string lease_problem_;
  SideFileStore side_files_;
  Slot slots_[2];
  std::atomic<int> front_{-1};  // its file has the name and is whole
  std::atomic<int> work_{-1};   // what an update changes, also one that a crash broke off
  std::atomic<bool> begun_{false};
  std::vector<uint8_t> touched_;  // by the update in work_
  int64_t front_mtime_[2] = {0, 0};

  Mutex mu_;
  CondVar cv_;
  bool busy_ = false;
};

}  // namespace deltawire::receiver
