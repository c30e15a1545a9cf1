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

struct Scratch;

/// Storages, the boxes of tensors in them, and where they are in this process.
struct Binding {
  std::vector<Storage> storages;
  std::vector<std::byte*> memory;  ///< by storage; stays while it is bound
  std::vector<Box> boxes;
};

/// What Adopt and Check found.
struct Comparison {
  Identity identity;  ///< what the memory was compared with
  uint64_t bytes = 0;
  std::vector<std::string> different;  ///< tensors whose bytes in memory are others
};

struct UpdateInfo {
  Identity from, to;
  uint64_t deltas = 0;   ///< delta files in the chain; 0: everything comes from the buffer
  uint64_t changes = 0;  ///< elements that payloads change, of the whole model
  uint64_t chunks_by_delta = 0;
  uint64_t chunks_whole = 0;  ///< read from the buffer
  uint64_t payload_bytes = 0;
};

/// The part of a chunk's digest that this rank's memory makes up; the ranks' parts of one state add
/// up, modulo 2^64, to the chunk's digest where each byte is some rank's.
struct PartialDigest {
  uint32_t chunk = 0;
  uint64_t bytes = 0;  ///< of the chunk that this rank has
  uint64_t digest = 0;
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
  /// overlap where no two boxes share a byte.
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
  /// back. kFailedPrecondition while held() is empty; kUnavailable while nothing is committed, or
  /// when another version was meanwhile: try again. Chunks that come from the buffer are copied, so
  /// that whatever becomes of the update, the receiver's file is not held open for it.
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

  /// The digests of this rank's memory, chunk by chunk. Chunks that it has whole are compared with
  /// held(); the others are returned, to be added up over the ranks.
  StatusOr<Comparison> Check(std::vector<PartialDigest>* parts) const;
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
  StatusOr<std::vector<std::filesystem::path>> FindChain(const Identity& to) const;
  StatusOr<std::vector<std::filesystem::path>> AwaitChain(const Identity& to) const;
  Status CheckChain(Prepared& prepared) const;
  void MakeRoom(Prepared& prepared) const;
  Status TakeFromBuffer(Prepared& prepared) const;
  void Scatter(uint32_t chunk, Bytes payload, Way way, Scratch& scratch) const;
  /// Exchanges what this rank has of the chunk with `other`, run by run.
  void Exchange(uint32_t chunk, std::byte* other) const;
  template <typename Fn>
  void ForEachRun(uint32_t chunk, const Fn& fn) const;

  const std::filesystem::path directory_;
  const StateReader state_;
  const Layout layout_;
  const ChunkTable chunks_;
  const kernels::DigestKey key_;
  const kernels::Backend& backend_;
  mutable ThreadPool pool_;
  std::optional<LayoutProgram> program_;
  std::vector<std::byte*> memory_;
  Identity held_;
  std::vector<uint64_t> digests_;  // of held_
  std::unique_ptr<Prepared> prepared_;
  std::unique_ptr<Prepared> applied_;

 public:
  ~EngineWeights();
};

}  // namespace deltawire::engine
