#include <array>

#include "kernels/cpu/highway/highway.h"
#include "kernels/cpu/scalar/scalar.h"
#include "kernels/kernels.h"
#include "kernels/payload.h"

namespace deltawire::kernels {
namespace {

class Backends {
 public:
  Backends() {
    all_[count_++] = &ScalarBackend();
    for (const Backend* b : HighwayBackends()) {
      if (count_ < all_.size()) all_[count_++] = b;
    }
  }
  std::span<const Backend* const> all() const { return {all_.data(), count_}; }

 private:
  std::array<const Backend*, 32> all_{};
  size_t count_ = 0;
};

}  // namespace

std::string_view ToString(DecodeStatus s) {
  switch (s) {
    case DecodeStatus::kOk:
      return "ok";
    case DecodeStatus::kTruncated:
      return "truncated";
    case DecodeStatus::kMalformed:
      return "malformed";
    case DecodeStatus::kTooLarge:
      return "too large";
  }
  return "unknown";
}

size_t MaxEncodedBytes(size_t raw_bytes, unsigned width) {
  return kTableOffset + BlockCount(raw_bytes / width) * kMaxRowBytes + raw_bytes + kStoreSlack;
}

size_t FoldScratchBytes(unsigned width) { return kBlockElements * width; }

const Backend& Scalar() { return ScalarBackend(); }
const Backend& Best() { return HighwayBackend(); }

std::span<const Backend* const> All() {
  static const Backends backends;
  return backends.all();
}

}  // namespace deltawire::kernels
