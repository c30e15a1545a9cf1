// The memory of a running engine that is bound to a model's tensors, this machine's or a GPU's. It
// reads, compares and writes the bytes that this rank has of a chunk. EngineWeights owns it, and
// calls it from one thread. After an error of a device within Write the bytes are unknown.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/layout/chunks.h"
#include "common/layout/layout.h"
#include "receiver/engine_client/layout_program.h"

namespace deltawire::engine {

class DeviceMemory;
struct PreparedUpdate;
struct Scratch;

/// Storages, the boxes of tensors in them, and where they are in this process.
struct Binding {
  std::vector<Storage> storages;
  std::vector<std::byte*> memory;  ///< by storage; stays while it is bound
  std::vector<Box> boxes;
  int device = -1;         ///< the GPU that the memory is on; -1: it is this machine's
  void* stream = nullptr;  ///< the cudaStream_t on which the engine computes; null: the default one
};

class BoundMemory {
 public:
  /// All of them outlive it.
  BoundMemory(const Layout& layout, const ChunkTable& chunks, const kernels::DigestKey& key,
              ThreadPool& pool);
  ~BoundMemory();

  /// Checks a binding, and returns its program. Storages may overlap where no two boxes share a
  /// byte.
  static StatusOr<LayoutProgram> ProgramOf(const Layout& layout, const Binding& binding);
  /// Replaces the memory by that of `binding`. After an error nothing is bound. `program`: see
  /// ProgramOf.
  Status Bind(const Binding& binding, LayoutProgram program);
  bool bound() const { return program_.has_value(); }
  /// REQUIRES: bound().
  const LayoutProgram& program() const { return *program_; }
  size_t storages() const { return memory_.size(); }

  /// Calls fn(0) to fn(count - 1), each of which accesses the memory.
  void ForEachIndex(size_t count, const std::function<void(size_t)>& fn) const;
  /// Returns the first error of the device since the last call.
  Status TakeStatus() const;

  struct Compared {
    uint64_t bytes = 0;
    bool differs = false;
  };
  /// Compares the chunk with the bytes that it is to have.
  Compared Compare(uint32_t chunk, const std::byte* wanted) const;
  struct Gathered {
    uint64_t bytes = 0;
    bool differs = false;  ///< two places of one element do not agree
    uint64_t digest = 0;   ///< of this rank's bytes at their places, with zeros between them
    uint64_t places = 0;   ///< the digest if each byte were 1; only of a part of a chunk
  };
  Gathered Gather(uint32_t chunk) const;

  /// The bytes that this rank has of the chunk.
  size_t BytesOf(uint32_t chunk) const;
  /// Copies those bytes out of `whole`, run by run, as Write exchanges them.
  void Pack(uint32_t chunk, const std::byte* whole, std::byte* to) const;
  /// Brings the update's deltas to the device, if the memory is on one.
  Status Load(const PreparedUpdate& update) const;
  enum class Way : uint8_t { kForwards, kBackwards };
  /// Applies the update, or takes it back. Only a device can fail.
  Status Write(PreparedUpdate& update, Way way);

 private:
  /// The use of a run's bytes. With kNowhere only their number means something.
  enum class Access : uint8_t { kNowhere, kRead, kWrite };
  template <typename Fn>
  void ForEachRun(uint32_t chunk, Access access, const Fn& fn) const;
  /// Adds the payload's differences, or subtracts them.
  void Scatter(uint32_t chunk, Bytes payload, Way way, Scratch& scratch) const;
  /// Exchanges this rank's bytes of the chunk with `other`, run by run.
  void Exchange(uint32_t chunk, std::byte* other) const;

  const Layout& layout_;
  const ChunkTable& chunks_;
  const kernels::DigestKey& key_;
  const kernels::Backend& backend_;
  ThreadPool& pool_;
  std::optional<LayoutProgram> program_;
  std::vector<std::byte*> memory_;
  std::unique_ptr<DeviceMemory> device_;  // null: the memory is this machine's
};

}  // namespace deltawire::engine
