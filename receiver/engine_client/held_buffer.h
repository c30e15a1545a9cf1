// A receiver's committed weights, held for reading: while this has the file open, the receiver
// changes no byte of it (docs/lifecycle.md). A reader destroys it soon, since with one buffer the
// next update waits for it. Any thread may read. kUnavailable: no version is committed. kDataLoss:
// the file is no buffer.
#pragma once

#include <filesystem>
#include <memory>

#include "common/base/bytes.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/layout/chunks.h"
#include "common/layout/layout.h"
#include "common/shm/mapped_file.h"
#include "common/shm/state_file.h"

namespace deltawire::engine {

class HeldBuffer {
 public:
  static constexpr const char* kFileName = "model.safetensors";
  /// Opens the version that is committed in `directory` now.
  static StatusOr<HeldBuffer> Open(const std::filesystem::path& directory,
                                   const StateReader& state);

  const Identity& identity() const { return slot_.identity; }
  /// The data section.
  Bytes data() const { return {map_.base() + data_offset_, map_.bytes() - data_offset_}; }
  /// Digests of its chunks, as the receiver recorded them at the commit.
  uint64_t digest(uint32_t chunk) const { return state_->chunk_digest(index_, chunk); }
  /// The layout that its header states.
  StatusOr<Layout> ReadLayout() const;
  /// Whether nothing has changed since it was opened. A file system without leases cannot promise
  /// that.
  bool StillHolds() const { return state_->StillHolds(index_, slot_); }

 private:
  HeldBuffer() = default;
  const StateReader* state_ = nullptr;
  uint32_t index_ = 0;
  StateReader::Slot slot_;
  std::filesystem::path path_;
  UniqueFd fd_;
  Mapping map_;
  uint64_t data_offset_ = 0;
};

}  // namespace deltawire::engine
