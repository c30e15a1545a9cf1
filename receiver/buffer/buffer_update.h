// The next version of a Buffer, put together in one of its weight files: begun once the file's
// readers let it, filled chunk by chunk, then committed or discarded. Pulls change the buffer's
// bytes through it alone. It outlives a pull that breaks off, and the next pull goes on with it.
// The Buffer owns it. Begin, BlockingFile and state() may be called from any thread, the rest from
// one. Errors name the directory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/layout/model_dir.h"
#include "receiver/buffer/chunk_bases.h"
#include "receiver/buffer/io_lock.h"
#include "receiver/buffer/served_file.h"

namespace deltawire::receiver {

class Buffer;

class BufferUpdate {
 public:
  /// kNone -> kBegun (Begin) -> kNone (Commit, Discard); kBegun -> kInterrupted, when Commit fails
  /// after its last byte -> kBegun or kNone. A process that was killed leaves kInterrupted, too.
  enum class State : uint8_t {
    kNone,
    kBegun,        ///< bytes may have been changed
    kInterrupted,  ///< others may have opened the file before the update goes on
  };

  explicit BufferUpdate(Buffer& buffer);

  State state() const { return state_; }
  bool begun() const { return state_ == State::kBegun; }
  bool interrupted() const { return state_ == State::kInterrupted; }

  /// Makes a file ready to be changed. Idempotent until Commit. Returns false when others have the
  /// file open; the file then is as it was, name included. With two files, and where leases do not
  /// work, a fresh file replaces one in use; and always one that has another name.
  /// kResourceExhausted when there is no room for it.
  StatusOr<bool> Begin();
  /// Begin with a fresh file, even while others read the old one.
  Status BeginInFreshFile();
  /// The processes that have the file open for which Begin returned false. Inspects every process
  /// of the machine, so it is too slow to be called at each retry.
  std::string Readers() const;
  /// The served file that Begin would have to change, if served receivers alone read it; else null.
  std::shared_ptr<ServedFile> BlockingFile();
  /// An earlier process may have left an update of the slot's file: goes on with it.
  void Resume(int slot);

  /// Does what Commit would do to bytes, and changes no name: Commit then only gives the name. The
  /// same errors as Commit's. REQUIRES: the front file is not the one that the update changes.
  Status Prepare(const Identity& whole);
  /// Commits `whole`: copies the chunks that the update did not touch, puts the side files in place
  /// and gives the file its name. kInternal when a chunk is unknown. kDataLoss when the chunks have
  /// another root, or when bytes to be copied lack their digest; such chunks become unknown, and
  /// their file loses its name. kUnavailable when others have the file open. Once the file has its
  /// name there is no error: what is left to be done then, CheckFiles does.
  Status Commit(const Identity& whole, const std::vector<SideFile>& side_files);
  /// Commits the committed version once more, in another file. REQUIRES: kNone.
  Status CommitCopy();
  /// With two files, discards the chunks of the version, so that the next update starts from the
  /// front file.
  void Discard();

 private:
  using Answer = FileLease::Answer;

  /// The slot that an update would change now.
  int NextSlot() const;
  StatusOr<bool> BeginLocked();
  Status BeginFresh();
  void MarkBegun(int slot, bool fresh);
  /// With `side_files` null the installed ones stay.
  Status CommitLocked(const Identity& whole, const std::vector<SideFile>* side_files);

  Buffer& buffer_;
  ChunkBases& bases_;
  IoLock lock_;
  std::atomic<State> state_{State::kNone};
};

}  // namespace deltawire::receiver
