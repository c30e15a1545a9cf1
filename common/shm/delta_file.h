// A committed delta as a file beside the receiver's buffer, for processes that hold the weights in
// a layout of their own (docs/delta_file.md). Written once and never changed; a DeltaFile owns its
// mapping, which outlives the file's name. Immutable after Open, so any thread may read.
// Errors name the file: kDataLoss when it is not whole or not one, kResourceExhausted for no room.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/checksum.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/shm/mapped_file.h"

namespace deltawire {

/// The folder of delta files in a receiver's directory.
inline constexpr const char* kDeltaFolder = ".deltawire.deltas";

/// What one delta does to one chunk. An empty payload means that the chunk's new bytes are in the
/// buffer; otherwise the payload is a valid one of the codec fast.
struct DeltaFileEntry {
  uint32_t chunk = 0;
  uint64_t digest_before = 0;
  uint64_t digest_after = 0;
  Bytes payload;
  bool whole() const { return payload.empty(); }
};

/// The model and the two states that a delta is between.
struct DeltaFileHead {
  Hash128 fingerprint;
  uint64_t digest_seed = 0;
  uint32_t chunks = 0;  ///< of the model
  Identity from;
  Identity to;
};

/// Bytes that WriteDeltaFile would take for these entries.
uint64_t DeltaFileBytes(std::span<const DeltaFileEntry> entries);

/// Writes `path` whole, or not at all. REQUIRES: entries in rising order of chunk, several of one
/// chunk in the order of application.
Status WriteDeltaFile(const std::filesystem::path& path, const DeltaFileHead& head,
                      std::span<const DeltaFileEntry> entries);

/// The size of the file that WriteDeltaFile is writing in `folder`, or that a killed process has
/// left unfinished there; nullopt: there is none.
std::optional<uint64_t> DeltaBeingWritten(const std::filesystem::path& folder);

class DeltaFile {
 public:
  /// Maps and checks all of it but what the payloads say (kernels::Backend::validate does that).
  /// kNotFound when it is gone: its writer had no more room for it.
  static StatusOr<DeltaFile> Open(const std::filesystem::path& path);
  /// The head alone, without its checksum: to find the file that is worth opening.
  static StatusOr<DeltaFileHead> Peek(const std::filesystem::path& path);

  const DeltaFileHead& head() const { return head_; }
  /// The payloads point into the mapping.
  const std::vector<DeltaFileEntry>& entries() const { return entries_; }
  uint64_t bytes() const { return map_.bytes(); }

 private:
  DeltaFile() = default;
  DeltaFileHead head_;
  std::vector<DeltaFileEntry> entries_;
  Mapping map_;
};

}  // namespace deltawire
