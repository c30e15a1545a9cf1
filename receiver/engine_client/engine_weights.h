// The weights in a running engine's memory, which updates bring from one committed version to the
// next (docs/engine.md). Prepare checks all that can be checked. Apply then only writes, and
// Rollback undoes that. The engine's process owns one per rank. Only committed() and WaitForOther
// are thread-safe. Errors leave the memory as it was. An update costs its changes; Adopt and Check
// read every byte.
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
#include "receiver/engine_client/bound_memory.h"
#include "receiver/engine_client/held_buffer.h"
#include "receiver/engine_client/layout_program.h"

namespace deltawire::engine {

/// A part of a chunk in this rank's memory. If all ranks hold the same state, their digests add up,
/// modulo 2^64, to the chunk's digest if each byte is in one rank's memory, and to k times the
/// chunk's digest if each byte is in the memory of k ranks.
struct Share {
  uint32_t chunk = 0;
  uint64_t bytes = 0;
  uint64_t digest = 0;
  uint64_t places = 0;  ///< the digest if each byte were 1; it tells how the ranks' parts lie
};

/// The result of Adopt, Check or Judge.
struct Comparison {
  Identity identity;   ///< the version that the memory was compared with
  uint64_t bytes = 0;  ///< compared bytes of this memory; Judge: bytes of the chunks that it judged
  std::vector<std::string> different;  ///< tensors that differ
  std::vector<Share> shares;           ///< by chunk; only Check fills it
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
  /// Opens a receiver's directory of one model. `threads` read and write memory.
  static StatusOr<std::unique_ptr<EngineWeights>> Open(const std::filesystem::path& directory,
                                                       size_t threads);
  ~EngineWeights();

  const Layout& layout() const { return layout_; }
  const std::filesystem::path& directory() const { return directory_; }
  /// The version that the receiver has committed; empty: none.
  Identity committed() const;
  /// Waits until another version than `known` is committed. kDeadlineExceeded when the time is
  /// over, kCancelled when `gone` returns true, kFailedPrecondition when the buffer was made anew.
  StatusOr<Identity> WaitForOther(const Identity& known, std::chrono::milliseconds limit,
                                  const std::function<bool()>& gone) const;

  /// Makes `binding` the engine's memory, whose state is unknown until Adopt. Storages may overlap
  /// where no two boxes share a byte. If the memory is on a GPU, an error of the device within
  /// Apply or Rollback leaves its state unknown; no other error does.
  Status Bind(const Binding& binding);
  /// REQUIRES: storages() > 0.
  const LayoutProgram& program() const { return memory_.program(); }
  /// The number of storages that are bound; 0 if nothing is.
  size_t storages() const { return memory_.storages(); }

  /// Compares all mapped memory with the committed buffer, bit by bit. If nothing differs, held()
  /// is that state from now on.
  StatusOr<Comparison> Adopt();
  /// The version in the memory; empty: not known.
  const Identity& held() const { return held_; }

  /// Prepares the update from held() to the committed version, and checks all of it, before a byte
  /// of the engine's memory changes. An update that was applied before can no longer be rolled
  /// back. kFailedPrecondition while held() is empty, or when the buffer is gone or was made anew;
  /// kUnavailable while nothing is committed, or when another version was committed during the
  /// call: try again. It copies the chunks that come from the buffer, so that the update does not
  /// hold the receiver's file open.
  StatusOr<UpdateInfo> Prepare();
  /// Discards the prepared update, and frees its memory. An update that was applied stays, and can
  /// still be rolled back.
  void Discard();
  /// The tensors that the prepared update changes, in rising order; none without one.
  std::vector<uint32_t> ChangedTensors() const;
  /// Writes the prepared update. It allocates nothing: Prepare has done so, and has thus found a
  /// lack of memory before the first byte is written.
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
  EngineWeights(std::filesystem::path directory, StateReader state, Layout layout,
                ChunkTable chunks, size_t threads);
  /// Opens the receiver's buffer, and refuses a file that was cut short.
  StatusOr<HeldBuffer> OpenBuffer() const;
  Status RefuseOtherBuffer() const;
  // The parts of Prepare.
  Status CheckChain(PreparedUpdate& update) const;
  void MakeRoom(PreparedUpdate& update) const;
  Status TakeFromBuffer(PreparedUpdate& update) const;
  /// After an error nothing is known of the memory any more.
  Status Write(PreparedUpdate& update, BoundMemory::Way way);

  const std::filesystem::path directory_;
  const StateReader state_;
  const Layout layout_;
  const ChunkTable chunks_;
  const kernels::DigestKey key_;
  const kernels::Backend& backend_;
  mutable ThreadPool pool_;
  BoundMemory memory_;
  Identity held_;
  std::vector<uint64_t> digests_;  // of held_
  std::set<uint32_t> drifted_;     // chunks whose memory differs from held_
  std::unique_ptr<PreparedUpdate> prepared_;
  std::unique_ptr<PreparedUpdate> applied_;
};

}  // namespace deltawire::engine
