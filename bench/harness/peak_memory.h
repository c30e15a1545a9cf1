// How much resident memory this process has taken, at the worst moment, since the object was made.
// Counts shared pages too: touch buffers before. One at a time; the kernel keeps the number, so
// that nothing is missed between samples.
#pragma once

#include <cstdint>
#include <optional>

namespace deltawire::bench {

class PeakMemory {
 public:
  PeakMemory();
  /// Bytes; nothing where the kernel does not let the peak be reset.
  std::optional<uint64_t> Beyond() const;

 private:
  uint64_t start_ = 0;
  bool reset_ = false;
};

}  // namespace deltawire::bench
