// The receiver's buffer of one model: a HF model directory. Its weight file has its name only while
// it is one whole version, and its bytes never change under a reader. One file, or two that take
// turns (docs/lifecycle.md). Owner: a Replica. Threads: chunk calls from any, for different chunks;
// committed(), status calls and BeginUpdate from any; the rest from one. Errors name the directory.
// Cost: the model's size once or twice, and 32 bytes per chunk.
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
#include "common/shm/dir_lock.h"
#include "common/shm/state_file.h"
#include "common/wire/messages.h"
#include "kernels/kernels.h"
#include "receiver/buffer/buffer_slot.h"
#include "receiver/buffer/served_file.h"
#include "receiver/buffer/side_files.h"

namespace deltawire::receiver {

class Buffer {
 public:
  struct Options {
    /// 1: one file, updated in place when nobody reads it. 2: two files; the named one is always
    /// whole, and updates go to the other. 0: 2 if the memory is enough (ChooseBuffers), else 1.
    uint32_t buffers = 1;
    bool huge_pages = true;
    ThreadPool* pool =
        nullptr;  ///< for populating, checking and copying; null: the caller's thread
    /// Change bytes even while others read them.
    bool unsafe_in_place = false;
  };
  struct CaughtUp {
    bool whole = false;                 ///< the hidden file equals the committed one
    std::vector<uint32_t> lost_chunks;  ///< chunks whose committed bytes lack their digest
  };
  struct Health {
    std::vector<std::string> put_back;  ///< names of files that were gone or changed, now restored
    std::vector<uint32_t> bad_chunks;   ///< chunks with changed bytes: now unknown, to be fetched
  };

  /// Takes up the files that an earlier process left in `dir`, at whatever moment it was killed,
  /// and compares every known chunk with its digest (at memory speed, on the pool). kNotFound when
  /// `dir` has no buffer; kDataLoss when its files do not fit together. After an error no file in a
  /// receiver's directory has the weights' name.
  static StatusOr<std::unique_ptr<Buffer>> Recover(const std::filesystem::path& dir,
                                                   std::shared_ptr<DirLock> lock,
                                                   const Options& options);
  /// An error if `dir` has weight files and no receiver made it. Changes nothing, so it comes
  /// before the lock, which leaves a file.
  static Status CheckDirectory(const std::filesystem::path& dir);
  /// Makes a new buffer and drops an earlier one, even one without its state file. An error if
  /// `dir` holds weight files that are not a receiver's.
  static StatusOr<std::unique_ptr<Buffer>> Create(const std::filesystem::path& dir,
                                                  std::shared_ptr<DirLock> lock, Layout layout,
                                                  uint64_t digest_seed, const Options& options);
  /// 2 when the filesystem (and the machine, if the filesystem lives in memory) has room for two
  /// and a half models, counting what this buffer's files already take; else 1.
  static uint32_t ChooseBuffers(const std::filesystem::path& dir, uint64_t model_bytes);

  const Layout& layout() const { return layout_; }
  const ChunkTable& chunks() const { return chunks_; }
  const kernels::DigestKey& key() const { return key_; }
  const std::filesystem::path& directory() const { return dir_; }
  uint32_t buffers() const { return buffers_; }
  /// False: CatchUp has no use for the deltas that were applied, since no file is updated twice.
  bool catches_up() const {
    return buffers_ == 2 && (lease_problem_.empty() || options_.unsafe_in_place);
  }
  /// Empty where leases work, else the reason why not. Without leases every update goes to a fresh
  /// file (or, with unsafe_in_place, changes bytes that others may be reading).
  const std::string& lease_problem() const { return lease_problem_; }

  /// The identity of the file that has the weights' name; empty when no file has it.
  Identity committed() const;
  /// The identity that the buffer last was wholly, also while the only file is being changed.
  Identity last_whole() const;
  /// True while no file has the weights' name.
  bool updating() const { return front_ < 0; }
  /// True after BeginUpdate and before Commit: bytes may have been changed.
  bool begun() const { return begun_; }
  /// True when an update was broken off. Others may have opened its file before it goes on.
  bool interrupted() const { return work_ >= 0 && !begun_; }
  /// True when a pull may change bytes while it still runs, because that keeps nobody from loading.
  bool at_once() const { return front_ < 0 || buffers_ == 2; }
  /// last_whole() and every chunk's base: the bytes from which an update starts or goes on.
  wire::Have have() const;

  /// Whether chunk i has a base, and the base's digest and bytes. The bytes are read-only, and
  /// valid until PrepareChunk(i) or MarkUnknown(i).
  bool known(uint32_t i) const { return Base(i) >= 0; }
  uint64_t digest(uint32_t i) const;
  Bytes base(uint32_t i) const;

  /// Makes a file ready to be changed. Idempotent until Commit. Returns false when others have the
  /// file open; the file then is as it was, name included. With two files, and where leases do not
  /// work, a fresh file replaces one in use; and always one that has another name.
  /// kResourceExhausted when there is no room for it.
  StatusOr<bool> BeginUpdate();
  /// The processes that have the file open for which BeginUpdate returned false. Inspects every
  /// process of the machine, so it is too slow to be called at each retry.
  std::string Readers() const;
  /// BeginUpdate with a fresh file, even while others read the old one.
  Status BeginUpdateInFreshFile();

  // REQUIRES for all of these: an update has begun.
  /// Ensures that chunk i of the file being updated has the bytes with `digest` (if needed by a
  /// checked copy from the other file), marks the chunk unknown and returns its bytes. kDataLoss
  /// when the base has another digest, or other bytes than its digest.
  StatusOr<MutableBytes> PrepareChunk(uint32_t i, uint64_t digest);
  /// Chunk i of the file being updated, to be written whole. REQUIRES: MarkUnknown(i) before.
  MutableBytes chunk(uint32_t i) { return slots_[work_].bytes(i); }
  void MarkUnknown(uint32_t i);
  /// Records chunk i's new version and digest. REQUIRES: its bytes are whole and verified.
  void SetChunk(uint32_t i, uint64_t version, uint64_t digest);
  /// Does what Commit would do to bytes, and changes no name: Commit then only gives the name. The
  /// same errors as Commit's. REQUIRES: the named file is not the one that an update would change.
  Status Prepare(const Identity& whole);
  /// Commits `whole`: copies the chunks that the update did not touch, puts the side files in place
  /// and gives the file its name. kInternal when a chunk is unknown. kDataLoss when the chunks have
  /// another root, or when bytes to be copied lack their digest; such chunks become unknown, and
  /// their file loses its name. kUnavailable when others have the file open. Once the file has its
  /// name there is no error: what is left to be done then, Check does.
  Status Commit(const Identity& whole, const std::vector<SideFile>& side_files);

  /// In two-file mode: drops what has come of a version that will not be. Its chunks are forgotten,
  /// and the named file is what the next update starts from.
  void Discard();

  /// True in two-file mode while no file has the name and the second file does not exist.
  bool lacks_spare() const {
    return catches_up() && front_ < 0 && !(slots_[0].has_file() && slots_[1].has_file());
  }
  /// Makes the second file, which the update after the first would wait for. kCancelled when
  /// `stop`, which is called from any thread, returned true.
  Status MakeSpare(const std::function<bool()>& stop);

  /// In two-file mode, between updates: brings the hidden file up to the committed state, by
  /// `deltas` where they fit, else by copying. The result is not whole when others have the hidden
  /// file open, or when `stop` returned true while nobody waited to open that file.
  StatusOr<CaughtUp> CatchUp(std::span<const AppliedDelta> deltas,
                             const std::function<bool()>& stop);

  // For receivers that this one serves (receiver/relay).
  /// Chunk i's digest in the committed file, whatever an update that was broken off has brought to
  /// the other one. 0: no file has the name.
  uint64_t committed_digest(uint32_t i) const;
  /// The committed file. While somebody reads it, no update changes its bytes: the update goes to a
  /// fresh file, or with one file is not begun. Null when no file has the name.
  std::shared_ptr<ServedFile> Serve();
  /// The served file that the next update would change, if those who are served read it and nobody
  /// else has it open; else null.
  std::shared_ptr<ServedFile> InTheWay();
  /// Chunks that were found without their digest since the last call, other than by Check and
  /// Distrust, and are unknown now.
  std::vector<uint32_t> TakeLost() { return std::exchange(lost_, {}); }
  /// The installed side files. REQUIRES: between updates.
  StatusOr<std::vector<SideFile>> SideFiles() const { return side_files_.Read(); }

  /// Puts back a name or a side file that somebody removed or changed, checks the bytes of a weight
  /// file that somebody wrote to, and does what failed at the end of a commit. Cheap (a few stats)
  /// when nothing changed; to be called about every second while no pull runs.
  StatusOr<Health> Check();
  /// Whether chunk i has its digest, in the named file and in the base of the next update. From any
  /// thread, between updates.
  bool Intact(uint32_t i) const;
  /// Checks `chunks` in both files and marks those unknown that lack their digest. If the committed
  /// file has such a chunk, it loses its name until the next commit.
  Status Distrust(std::span<const uint32_t> chunks);
  /// Removes its weight files from the directory, before the buffer is destroyed.
  void RemoveFiles();

 private:
  /// Serialises calls of which only one may run at a time.
  class Turn;

  Buffer(std::filesystem::path dir, std::shared_ptr<DirLock> lock, Layout layout, ChunkTable chunks,
         StateFile state, const Options& options);

  static StatusOr<std::unique_ptr<Buffer>> Open(const std::filesystem::path& dir,
                                                std::shared_ptr<DirLock> lock,
                                                const Options& options);
  Status TakeUp();
  /// An interrupted update of the slot, if there is one, goes on from the chunks that it brought.
  void ResumeUpdate(int slot);
  BufferSlot::Of SlotsShare();
  Status OpenFiles();
  /// An error once another directory, or none, is where the buffer's was: nothing there is ours.
  Status CheckPlace() const;
  Status MakeFile(int slot, const std::function<bool()>& stop = nullptr);
  std::filesystem::path FreeHiddenName(int slot) const;

  /// The slot with chunk i's base; -1 when the chunk has none.
  int Base(uint32_t i) const;

  StatusOr<bool> Begin();
  /// The slot that an update would change now.
  int NextSlot() const;
  StatusOr<bool> BeginInPlace(int slot);
  Status BeginFresh();
  void Begun(int slot);
  /// Distrust for a caller that holds a Turn.
  Status Withdraw(std::span<const uint32_t> chunks);
  /// With `side_files` null the installed ones stay.
  Status CommitWork(const Identity& whole, const std::vector<SideFile>* side_files);
  /// The chunks' digests, which make up the root of `whole`.
  StatusOr<std::vector<uint64_t>> DigestsToCommit(const Identity& whole) const;
  Status FillWork(const std::vector<uint64_t>& digests);
  Status GiveName(int slot);
  void AfterCommit(int slot);
  Status RemoveLeftOver();
  Status PutNameBack(Health& health);

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
  InstalledSideFiles side_files_;
  BufferSlot slots_[2];
  std::atomic<int> front_{-1};  // the slot whose file has the name and is whole; -1: none
  std::atomic<int> work_{-1};   // the slot that an update changes, or was changing at a crash
  std::atomic<bool> begun_{false};
  std::vector<uint8_t> touched_;     // chunks that the update in work_ has touched
  std::vector<uint32_t> lost_;       // for TakeLost
  std::filesystem::path left_over_;  // a file that a commit has replaced and could not remove

  Mutex mu_;
  CondVar cv_;
  bool busy_ = false;
};

}  // namespace deltawire::receiver
