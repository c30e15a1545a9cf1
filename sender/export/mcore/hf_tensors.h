// The HF tensors that a plan's parameters make, each made at its first use and used alike ever
// after. Owner: a Planner, for one plan. One thread.
// Errors: kInvalidArgument where two parameters disagree on a tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"
#include "common/layout/layout.h"
#include "sender/export/mcore/program.h"

namespace deltawire::mcore {

/// An HF tensor as the parameters say it is.
struct HfTensor {
  std::string name;
  DType dtype = DType::kBF16;
  TensorView view;
  bool flat = false;
  bool packed = false;
  std::optional<std::vector<uint64_t>> said_shape;  // where it is said

  std::vector<uint64_t> Shape() const;
};

class HfTensors {
 public:
  /// The tensor's index.
  StatusOr<uint32_t> Intern(HfTensor tensor);
  /// Forgets all but the first `count`, whose indices stay. The names of the others.
  std::vector<std::string> Shrink(size_t count);
  /// No more will come: where a view's pitch is not said, it covers all rows.
  void Finish();

  size_t size() const { return tensors_.size(); }
  const HfTensor& operator[](size_t i) const { return tensors_[i]; }
  bool contains(const std::string& name) const { return index_.contains(name); }

  /// Of a checkpoint that lists its tensors.
  struct Listed {
    std::vector<TensorView> views;  ///< by place; beyond the listing those that it has not
    std::vector<uint32_t> place;    ///< of each tensor here
    std::vector<bool> made;         ///< which of the listing are here
    std::vector<std::string> unlisted, misshapen;  ///< findings
  };
  /// REQUIRES: Finish().
  Listed Among(const Layout& listing) const;

 private:
  std::vector<HfTensor> tensors_;
  std::unordered_map<std::string, uint32_t> index_;
};

}  // namespace deltawire::mcore
