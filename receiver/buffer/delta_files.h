// The committed deltas that a receiver leaves beside its buffer for engines (docs/delta_file.md): a
// bounded number of files, of which it removes the oldest first. It takes each delta's payloads
// once more, in the directory's filesystem, and 8 bytes of memory per chunk. A BufferHome owns it;
// one thread uses it. Errors name the file, and never keep a version from being committed.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <span>
#include <vector>

#include "common/base/identity.h"
#include "common/base/status.h"
#include "receiver/buffer/buffer.h"

namespace deltawire::receiver {

class DeltaFiles {
 public:
  static constexpr size_t kMaxFiles = 64;

  /// Keeps files of at most `limit_bytes` together. With 0 it keeps none, and removes those that an
  /// earlier process left.
  DeltaFiles(std::filesystem::path directory, uint64_t limit_bytes);

  bool enabled() const { return limit_ > 0; }
  /// Takes up the files of an earlier process. The committed state of `buffer`, which every Put
  /// will get, is the first delta's base.
  Status Start(const Buffer& buffer);
  /// Writes the delta from the last state that was put to `to`, as which `buffer` was just
  /// committed. A changed chunk whose deltas in `applied` do not lead there gets no payload, so
  /// that engines read it whole.
  Status Put(const Buffer& buffer, const Identity& to, std::span<const AppliedDelta> applied);

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
  Identity last_;  // the state whose digests are in digests_; empty: none is known
  std::vector<uint64_t> digests_;
};

}  // namespace deltawire::receiver
