// The receiver's buffer of one model: a HF model directory whose weight file can be opened by its
// name only while it is one whole version. Life of the file (docs/lifecycle.md):
//   model.safetensors -- BeginUpdate --> .model.safetensors.partial -- Commit --> model.safetensors
// Owner: a Replica. Threads: chunk calls from any, for different chunks; the rest from one.
// Errors name the directory. Cost: 1x the model, 16 bytes per chunk.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/state_id.h"
#include "common/base/status.h"
#include "common/layout/chunks.h"
#include "common/layout/layout.h"
#include "common/layout/model_dir.h"
#include "common/shm/buffer_file.h"
#include "common/shm/dir_lock.h"
#include "common/shm/state_file.h"
#include "common/wire/messages.h"
#include "kernels/kernels.h"

namespace deltawire::receiver {

class Buffer {
 public:
  /// Takes up what an earlier process left in `dir`, whatever moment it was killed at.
  /// kNotFound when there is nothing; kDataLoss when what is there does not fit together.
  static StatusOr<std::unique_ptr<Buffer>> Recover(const std::filesystem::path& dir,
                                                   std::shared_ptr<DirLock> lock,
                                                   const BufferOptions& options);
  /// Makes a new one, dropping an earlier one of another layout. Refuses a directory that holds
  /// weight files which are not ours.
  static StatusOr<std::unique_ptr<Buffer>> Create(const std::filesystem::path& dir,
                                                  std::shared_ptr<DirLock> lock, Layout layout,
                                                  uint64_t digest_seed,
                                                  const BufferOptions& options);

  const Layout& layout() const { return layout_; }
  const ChunkTable& chunks() const { return chunks_; }
  const kernels::DigestKey& key() const { return key_; }
  const std::filesystem::path& directory() const { return dir_; }

  /// Epoch 0 unless the buffer is wholly one version.
  StateId committed() const;
  wire::Have have() const;

  MutableBytes chunk(uint32_t i) {
    return file_.data().subspan(chunks_[i].offset, chunks_[i].bytes);
  }
  bool known(uint32_t i) const { return state_.chunk_version(0, i) != kVersionUnknown; }
  uint64_t digest(uint32_t i) const { return state_.chunk_digest(0, i); }

  /// Takes the file's name away. Idempotent and thread-safe.
  Status BeginUpdate();
  /// Before a chunk's bytes are touched. REQUIRES: BeginUpdate.
  void MarkUnknown(uint32_t i) { state_.MarkUnknown(0, i); }
  /// After they are whole and verified.
  void SetChunk(uint32_t i, uint64_t version, uint64_t digest) {
    state_.SetChunk(0, i, version, digest);
  }
  /// Every chunk is `id` now: says so and gives the name back. kInternal when one is unknown.
  Status Commit(StateId id);

  /// Writes config.json and the like beside the weights, each atomically.
  Status WriteSideFiles(const std::vector<SideFile>& files);

 private:
  Buffer(std::filesystem::path dir, std::shared_ptr<DirLock> lock, Layout layout, ChunkTable chunks,
         StateFile state, BufferFile file);

  const std::filesystem::path dir_;
  const std::shared_ptr<DirLock> lock_;
  const Layout layout_;
  const ChunkTable chunks_;
  StateFile state_;
  const kernels::DigestKey key_;
  BufferFile file_;
  std::mutex mu_;
  bool updating_ = false;
};

}  // namespace deltawire::receiver
