// The committed deltas that a receiver leaves beside its buffer for engines (docs/delta_file.md): a
// bounded number of files, the oldest dropped first. Owner: a Replica, whose driving thread alone
// uses it. Cost: a copy of each delta's payloads, in the directory's memory; 8 bytes per chunk.
// Errors name the file; none of them stands in a commit's way.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <span>
#include <vector>

#include "common/base/identity.h"
#include "common/base/status.h"
#include "receiver/buffer.h"

namespace deltawire::receiver {

class DeltaFiles {
 public:
  static constexpr size_t kMaxFiles = 64;

  /// Keeps at most `limit_bytes` of files; 0: none, and those that an earlier process left go.
  DeltaFiles(std::filesystem::path directory, uint64_t limit_bytes);

  bool enabled() const { return limit_ > 0; }
  /// Takes up the files of an earlier process. `buffer` is what Put will be about: its committed
  /// state is the first delta's base.
  Status Start(const Buffer& buffer);
  /// After `buffer` was committed as `to`: writes what changed since the last state that was put,
  /// from `applied` where that leads there, else as whole chunks.
  Status Put(const Buffer& buffer, const Identity& to,
             std::span<const Buffer::AppliedDelta> applied);

 private:
  struct File {
    uint64_t serial = 0;
    uint64_t bytes = 0;
  };
  std::filesystem::path PathOf(uint64_t serial) const;
  void DropOldest();

  const std::filesystem::path directory_;
  const uint64_t limit_;
  std::deque<File> files_;  // oldest first
  uint64_t bytes_ = 0;
  uint64_t next_serial_ = 1;
  Identity last_;  // what digests_ are of; empty: nothing is known
  std::vector<uint64_t> digests_;
};

}  // namespace deltawire::receiver
