// A model's HF layout: the ordered `tensors_meta` with every tensor's offset in the data section.
// Immutable; make it once per model and pass it by shared_ptr or const&. Tensors are tightly packed
// in tensors_meta order, so offsets follow from shapes and dtypes. Errors name the tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/status.h"
#include "common/layout/dtype.h"

namespace deltawire {

/// One entry of tensors_meta. An empty shape is a scalar (one element); a zero dimension is legal.
struct TensorMeta {
  std::string name;
  DType dtype = DType::kBF16;
  std::vector<uint64_t> shape;
  friend bool operator==(const TensorMeta&, const TensorMeta&) = default;
};

/// Returns the tensor's size in bytes, or an error that names the tensor when the size is 2^63 or
/// more.
StatusOr<uint64_t> TensorBytes(const TensorMeta& t);

class Layout {
 public:
  static constexpr size_t kMaxTensors = 4'000'000;
  static constexpr size_t kMaxNameBytes = 1024;
  static constexpr size_t kMaxRank = 16;

  /// Checks names (non-empty, unique, valid UTF-8, not "__metadata__", bounded), ranks, overflow.
  static StatusOr<Layout> Create(std::vector<TensorMeta> tensors);

  size_t size() const { return tensors_.size(); }
  const TensorMeta& tensor(size_t i) const { return tensors_[i]; }
  const std::vector<TensorMeta>& tensors() const { return tensors_; }
  uint64_t offset(size_t i) const { return offsets_[i]; }  ///< bytes into the data section
  uint64_t bytes(size_t i) const { return offsets_[i + 1] - offsets_[i]; }
  uint64_t total_bytes() const { return offsets_.back(); }
  std::optional<size_t> Find(std::string_view name) const;

  /// XXH3-128 over the canonical text of tensors_meta (docs/wire_format.md, "Layout fingerprint").
  const Hash128& fingerprint() const { return fingerprint_; }

 private:
  Layout() = default;
  std::vector<TensorMeta> tensors_;
  std::vector<uint64_t> offsets_;  // size() + 1 of them
  std::unordered_map<std::string, size_t> index_;
  Hash128 fingerprint_;
};

/// Describes the difference between two layouts for a user ("tensor X is missing, ..."); empty when
/// they are equal. Lists at most `limit` findings.
std::string DescribeDifference(const Layout& want, const Layout& got, size_t limit = 5);
/// The same for a model that has changed, where neither layout is wrong ("tensor X was added,
/// ...").
std::string DescribeChange(const Layout& before, const Layout& after, size_t limit = 5);

}  // namespace deltawire
