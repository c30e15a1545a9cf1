// The corrupt chunks of a model's buffer, which the next pull fetches whole. A Replica owns it.
// Every method may be called from any thread.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/base/checked_mutex.h"

namespace deltawire::receiver {

class CorruptChunks {
 public:
  /// Chunks are of the layout `fingerprint` from now on; empty: there is no buffer. Another layout
  /// numbers its chunks differently, so they are forgotten then.
  void SetLayout(const std::string& fingerprint) ABSL_LOCKS_EXCLUDED(mu_);
  /// Adds and counts a chunk. Returns false if it is there already.
  bool Add(uint32_t chunk) ABSL_LOCKS_EXCLUDED(mu_);
  /// The same for a chunk of the layout `fingerprint`. Returns false also for another layout.
  bool AddOf(const std::string& fingerprint, uint32_t chunk) ABSL_LOCKS_EXCLUDED(mu_);
  /// Adds chunks without counting them: others have counted them, or Take has returned them.
  void Merge(const std::vector<uint32_t>& chunks) ABSL_LOCKS_EXCLUDED(mu_);
  /// Counts chunks that the buffer has marked unknown by itself.
  void Count(size_t chunks) ABSL_LOCKS_EXCLUDED(mu_);
  /// Returns the chunks in order, and forgets them.
  std::vector<uint32_t> Take() ABSL_LOCKS_EXCLUDED(mu_);

  bool empty() const ABSL_LOCKS_EXCLUDED(mu_);
  /// The chunks that Add, AddOf and Count have counted in this process.
  uint64_t counted() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool AddUnder(uint32_t chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable CheckedMutex mu_;
  std::string layout_ ABSL_GUARDED_BY(mu_);
  std::set<uint32_t> chunks_ ABSL_GUARDED_BY(mu_);
  uint64_t counted_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace deltawire::receiver
