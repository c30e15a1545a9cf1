// Anonymous memory in huge pages where the machine gives them, touched, for buffers far out of
// cache: without them a benchmark measures address translation as well.
// Owns its memory. Errors: kResourceExhausted.
#pragma once

#include <cstdint>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace deltawire::bench {

class HugeBuffer {
 public:
  HugeBuffer() = default;
  /// `bytes` > 0 zeros; starts at a multiple of 2 MiB.
  static StatusOr<HugeBuffer> Create(uint64_t bytes);
  HugeBuffer(HugeBuffer&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  HugeBuffer& operator=(HugeBuffer&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HugeBuffer();

  Bytes data() const { return {base_, bytes_}; }
  MutableBytes data() { return {base_, bytes_}; }
  /// What it takes of memory: rounded up to whole huge pages.
  uint64_t resident() const;

 private:
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
};

/// Share of this process's anonymous memory that lies in huge pages; 0 where nobody tells.
double HugePageShare();

}  // namespace deltawire::bench
