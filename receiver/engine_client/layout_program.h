// A map from the elements of HF tensors to an engine's memory: boxes of a tensor and their places
// in the engine's storages. Found by watching the engine's loader (python/deltawire/
// engine), checked here. Immutable after Create; any thread may read. Units are bytes. A lookup of
// a run takes a few nanoseconds, whatever its bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/layout/layout.h"
#include "kernels/kernels.h"

namespace deltawire::engine {

/// Memory of the engine that holds parameters. It may hold other things as well.
struct Storage {
  std::string name;  ///< for messages
  uint64_t bytes = 0;
};

/// Elements of HF tensor `tensor` (copy.src_*) that stand in storage `storage` (copy.dst_*).
struct Box {
  uint32_t tensor = 0;
  uint32_t storage = 0;
  kernels::StridedCopy copy;
};

/// One run of consecutive bytes of an HF tensor, which are consecutive in the engine's memory too.
struct Run {
  uint64_t tensor_offset = 0;
  uint64_t storage_offset = 0;
  uint64_t bytes = 0;
};

/// A box whose dimensions are in the order of the tensor's memory, so that a byte of the tensor
/// finds its place by division.
class OrderedBox {
 public:
  /// kInvalidArgument when the box cannot be ordered so (its elements overlap in the tensor), or
  /// leaves the tensor or the storage, or cuts elements of `width` bytes.
  static StatusOr<OrderedBox> Create(const Box& box, uint64_t tensor_bytes, uint64_t storage_bytes,
                                     unsigned width);

  uint32_t storage() const { return storage_; }
  /// The box's bytes of the tensor lie in [first, last).
  uint64_t first() const { return offset_; }
  uint64_t last() const { return last_; }
  uint64_t bytes() const { return bytes_; }
  /// Its bytes of the storage lie in [storage_first, storage_last).
  uint64_t storage_first() const { return dst_offset_; }
  uint64_t storage_last() const { return dst_last_; }
  /// The strides alone show that no two of its elements share a place; false proves nothing.
  bool storage_nests() const { return dst_nests_; }
  /// The first run that ends behind byte `at`; its begin may lie before `at`. bytes == 0: none.
  Run RunAt(uint64_t at) const;
  /// The box as a copy from the tensor to the storage, source strides falling.
  kernels::StridedCopy copy() const;
  /// Appends the same for the bytes that the box has of the tensor's [begin, end). Cost: at most
  /// two pieces more for each dimension than one.
  void Pieces(uint64_t begin, uint64_t end, std::vector<kernels::StridedCopy>* pieces) const;

 private:
  void PiecesFrom(size_t dim, uint64_t src, uint64_t dst, uint64_t begin, uint64_t end,
                  std::vector<kernels::StridedCopy>* pieces) const;
  kernels::StridedCopy CopyFrom(size_t dim, uint64_t src, uint64_t dst) const;

  struct Dim {
    uint64_t count, src_stride;
    int64_t dst_stride;
  };
  static bool Nests(std::vector<Dim> dims, uint64_t run_bytes);

  uint32_t storage_ = 0;
  uint64_t offset_ = 0, last_ = 0, bytes_ = 0, run_bytes_ = 0, dst_offset_ = 0, dst_last_ = 0;
  bool dst_nests_ = false;
  std::vector<Dim> dims_;  // source strides fall
};

class LayoutProgram {
 public:
  /// Refuses boxes that two tensors', or two elements', bytes would share a place in the engine's
  /// memory by, and boxes that OrderedBox refuses; the message names tensor and storage.
  static StatusOr<LayoutProgram> Create(const Layout& layout, std::vector<Storage> storages,
                                        std::span<const Box> boxes);

  const std::vector<Storage>& storages() const { return storages_; }
  /// The places of a tensor, in no order; several where the engine holds it several times; none
  /// where it holds nothing of it.
  std::span<const OrderedBox> boxes(size_t tensor) const {
    return {boxes_.data() + first_[tensor], boxes_.data() + first_[tensor + 1]};
  }
  /// Some of the tensor's bytes stand in several places.
  bool several(size_t tensor) const { return several_[tensor]; }
  /// Bytes of storage `s` that no tensor has: padding, or what the loader computes.
  uint64_t unmapped(size_t s) const { return storages_[s].bytes - mapped_[s]; }

 private:
  std::vector<Storage> storages_;
  std::vector<uint64_t> mapped_;
  std::vector<OrderedBox> boxes_;  // by tensor
  std::vector<size_t> first_;
  std::vector<bool> several_;
};

}  // namespace deltawire::engine
