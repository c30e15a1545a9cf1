// The weights in a running engine's memory, brought from one committed version to the next by what
// changed (docs/engine.md). All that can be checked is checked in Prepare; Apply then only writes,
// and Rollback takes back what it wrote. Owner: the engine's process, one per rank; not thread-safe
// but for committed() and WaitForOther. Errors leave the memory as it was.
// Cost: of an update, its changes; Adopt and Check read every byte.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/layout/chunks.h"
#include "common/layout/layout.h"
#include "common/shm/delta_file.h"
#include "common/shm/state_file.h"
#include "receiver/engine_client/held_buffer.h"
#include "receiver/engine_client/layout_program.h"

namespace deltawire::engine {

class DeviceMemory;
struct Scratch;

/// Storages, the boxes of tensors in them, and where they are in this process.
struct Binding {
  std::vector<Storage> storages;
  std::vector<std::byte*> memory;  ///< by storage; stays while it is bound
  std::vector<Box> boxes;
  int device = -1;         ///< the GPU that the memory is on; -1: it is this machine's
  void* stream = nullptr;  ///< the cudaStream_t on which the engine computes; null: the default one
};

/// What this rank's memory has of a chunk, where it has a part of the chunk only. If all ranks hold
/// the same state, their digests add up, modulo 2^64, to the chunk's digest if each byte is in one
/// rank's memory, and to k times the chunk's digest if each byte is in the memory of k ranks.
struct Share {
  uint32_t chunk = 0;
  uint64_t bytes = 0;
  uint64_t digest = 0;
  uint64_t places = 0;  ///< the digest if each byte were 1; it tells how the ranks' parts lie
};

/// What Adopt, Check and Judge found.
struct Comparison {
  Identity identity;   ///< what the memory was compared with
  uint64_t bytes = 0;  ///< of this memory that were looked at; Judge: of chunks that were judged
  std::vector<std::string> different;  ///< tensors whose bytes in memory are others
  std::vector<Share> shares;           ///< of Check, by chunk
};

struct UpdateInfo {
  Identity from, to;
  uint64_t deltas = 0;   ///< delta files in the chain; 0: everything comes from the buffer
  uint64_t changes = 0;  ///< elements that payloads change, of the whole model
  uint64_t chunks_by_delta = 0;
  uint64_t chunks_whole = 0;  ///< read from the buffer
  uint64_t payload_bytes = 0;
  uint64_t chunks_healed = 0;  ///< among chunks_whole: had drifted
};

class EngineWeights {
 public:
  /// `directory`: a receiver's, of one model. `threads`: for reading and writing memory.
  static StatusOr<std::unique_ptr<EngineWeights>> Open(const std::filesystem::path& directory,
                                                       size_t threads);

  const Layout& layout() const { return layout_; }
  const std::filesystem::path& directory() const { return directory_; }
  /// What the receiver has committed; empty when nothing.
  Identity committed() const;
  /// Waits until another version than `known` is committed. kDeadlineExceeded when the time is
  /// over, kCancelled when `gone` returns true, kFailedPrecondition when the buffer was made anew.
  StatusOr<Identity> WaitForOther(const Identity& known, std::chrono::milliseconds limit,
                                  const std::function<bool()>& gone) const;

  /// From now on `binding` is the engine's memory. Its state is unknown until Adopt. Storages may
  /// overlap where no two boxes share a byte. If the memory is on a GPU, an error of the device
  /// within Apply or Rollback leaves its state unknown; no other error does.
  Status Bind(const Binding& binding);
  /// REQUIRES: storages() > 0.
  const LayoutProgram& program() const { return *program_; }
  /// The number of storages that are bound; 0 if nothing is.
  size_t storages() const { return memory_.size(); }

  /// Compares all mapped memory with the committed buffer, bit by bit. Where nothing differs, the
  /// memory is that state from now on: held().
  StatusOr<Comparison> Adopt();
  /// What the memory is; empty while not known.
  const Identity& held() const { return held_; }

  /// Prepares the update from held() to the committed version, and checks all of it, before a byte
  /// of the engine's memory changes. An update that was applied before can no longer be rolled
  /// back. kFailedPrecondition while held() is empty, or when the buffer is gone or was made anew;
  /// kUnavailable while nothing is committed, or when another version was meanwhile: try again.
  /// Chunks that come from the buffer are copied, so that whatever becomes of the update, the
  /// receiver's file is not held open for it.
  StatusOr<UpdateInfo> Prepare();
  /// Forgets what Prepare made ready, and gives its memory back. An update that was applied stays,
  /// and can still be rolled back.
  void Discard();
  /// The tensors that the prepared update changes, in rising order; none without one.
  std::vector<uint32_t> ChangedTensors() const;
  /// Writes what Prepare made ready. Takes no memory for the changes: Prepare has taken and filled
  /// it, so that a lack of memory is found before the first byte is written.
  Status Apply();
  /// Makes the memory what it was before the last Apply. kFailedPrecondition without one.
  Status Rollback();

  /// Digests this rank's memory of `count` chunks from `first` on, and compares those that it has
  /// whole with held(). Of the others it gives its shares, for Judge. A chunk that has drifted
  /// comes whole, out of the receiver's buffer, with the next update that is prepared.
  StatusOr<Comparison> Check(uint32_t first, uint32_t count);
  StatusOr<Comparison> Check() { return Check(0, static_cast<uint32_t>(chunks_.size())); }
  /// Adds up the shares that all ranks have of some chunks. Chunks whose bytes are not all on
  /// equally many ranks are not judged.
  StatusOr<Comparison> Judge(std::span<const Share> of_all_ranks);
  const ChunkTable& chunks() const { return chunks_; }
  enum class State { kHeld, kPrepared };
  /// Copies a tensor of held(), or of what was prepared, out of the receiver's buffer, and checks
  /// its digests. kUnavailable when the buffer is another state by now.
  Status ReadTensor(State state, uint32_t tensor, MutableBytes to) const;
  /// The digest of a chunk of held(). kFailedPrecondition while held() is empty.
  StatusOr<uint64_t> DigestOf(uint32_t chunk) const;

 private:
  struct Prepared;
  enum class Way : int { kForwards = 1, kBackwards = -1 };

  EngineWeights(std::filesystem::path directory, StateReader state, Layout layout,
                ChunkTable chunks, size_t threads);
  Status RefuseOtherBuffer() const;
  StatusOr<std::vector<std::filesystem::path>> FindChain(const Identity& to) const;
  StatusOr<std::vector<std::filesystem::path>> AwaitChain(const Identity& to) const;
  Status CheckChain(Prepared& prepared) const;
  void MakeRoom(Prepared& prepared) const;
  Status TakeFromBuffer(Prepared& prepared) const;
  void Scatter(uint32_t chunk, Bytes payload, Way way, Scratch& scratch) const;
  struct Gathered;
  Gathered Gather(uint32_t chunk) const;
  /// Exchanges what this rank has of the chunk with `other`, run by run.
  void Exchange(uint32_t chunk, std::byte* other) const;
  /// What a run's bytes are wanted for. Of kNowhere only their number means something.
  enum class Access { kNowhere, kRead, kWrite };
  template <typename Fn>
  void ForEachRun(uint32_t chunk, Access access, const Fn& fn) const;
  /// fn(0) to fn(count - 1), each of which accesses the engine's memory.
  void ForEachIndex(size_t count, const std::function<void(size_t)>& fn) const;
  Status Write(Prepared& prepared, Way way);
  Status LoadOnDevice(const Prepared& prepared) const;
  Status WriteOnDevice(Prepared& prepared, Way way);
  Status DeviceStatus() const;

  const std::filesystem::path directory_;
  const StateReader state_;
  const Layout layout_;
  const ChunkTable chunks_;
  const kernels::DigestKey key_;
  const kernels::Backend& backend_;
  mutable ThreadPool pool_;
  std::optional<LayoutProgram> program_;
  std::vector<std::byte*> memory_;
  std::unique_ptr<DeviceMemory> device_;  // none where the memory is this machine's
  Identity held_;
  std::vector<uint64_t> digests_;  // of held_
  std::set<uint32_t> drifted_;     // chunks whose memory is not what held_ says
  std::unique_ptr<Prepared> prepared_;
  std::unique_ptr<Prepared> applied_;

 public:
  ~EngineWeights();
};

}  // namespace deltawire::engine
