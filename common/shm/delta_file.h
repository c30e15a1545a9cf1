// A committed delta as a file beside the receiver's buffer, for processes that hold the weights in
// another layout (docs/delta_file.md). Written once and never changed. A DeltaFile owns its
// mapping, which outlives the file's name, and any thread may read it. Errors name the file:
// kDataLoss when it is incomplete or not a delta file, kResourceExhausted for no room.
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

/// One delta's change to one chunk. An empty payload means that the chunk's new bytes are in the
/// buffer. Otherwise the payload is a valid one of the codec fast.
struct DeltaFileEntry {
  uint32_t chunk = 0;
  uint64_t digest_before = 0;
  uint64_t digest_after = 0;
  Bytes payload;
  bool whole() const { return payload.empty(); }
};

struct DeltaFileHead {
  Hash128 fingerprint;
  uint64_t digest_seed = 0;
  uint32_t chunks = 0;  ///< of the model
  Identity from;
  Identity to;
};

uint64_t DeltaFileBytes(std::span<const DeltaFileEntry> entries);

/// Writes all of `path`, or nothing. REQUIRES: entries in rising order of chunk, several of one
/// chunk in the order of application.
Status WriteDeltaFile(const std::filesystem::path& path, const DeltaFileHead& head,
                      std::span<const DeltaFileEntry> entries);

/// Returns the size of the file that WriteDeltaFile is writing in `folder`, or that a killed
/// process has left unfinished there; nullopt: no such file.
std::optional<uint64_t> DeltaBeingWritten(const std::filesystem::path& folder);

class DeltaFile {
 public:
  /// Maps the file and checks everything but the payloads (kernels::Backend::validate checks
  /// those). Returns kNotFound when its writer has removed it for lack of room.
  static StatusOr<DeltaFile> Open(const std::filesystem::path& path);
  /// Reads the head alone, without its checksum: to find the file that is worth opening.
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
