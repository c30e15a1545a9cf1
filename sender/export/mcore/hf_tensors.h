// The HF tensors that a plan's parameters form. Each is made at its first use; two parameters that
// disagree on a tensor are kInvalidArgument. A Planner uses one, for one plan.
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

struct HfTensor {
  std::string name;
  DType dtype = DType::kBF16;
  TensorView view;
  bool flat = false;
  bool packed = false;
  std::optional<std::vector<uint64_t>> said_shape;  // if the parameters give it

  std::vector<uint64_t> Shape() const;
};

class HfTensors {
 public:
  /// Adds the tensor, or checks that it equals the existing one of this name. Returns its index.
  StatusOr<uint32_t> Intern(HfTensor tensor);
  /// Keeps the first `count` tensors and their indices, removes the others, and returns the names
  /// of those.
  std::vector<std::string> Shrink(size_t count);
  /// Call it after the last Intern. A view for which no parameter gives a pitch gets one that
  /// covers all its rows.
  void Finish();

  size_t size() const { return tensors_.size(); }
  const HfTensor& operator[](size_t i) const { return tensors_[i]; }
  bool contains(const std::string& name) const { return index_.contains(name); }

  /// The match between these tensors and a checkpoint's list.
  struct Listed {
    std::vector<TensorView> views;  ///< by place; unlisted tensors follow the listed ones
    std::vector<uint32_t> place;    ///< of each tensor of this plan
    std::vector<bool> made;         ///< for each listed tensor, whether this plan makes it
    std::vector<std::string> unlisted, misshapen;  ///< findings
  };
  /// REQUIRES: Finish().
  Listed Among(const Layout& listing) const;

 private:
  std::vector<HfTensor> tensors_;
  std::unordered_map<std::string, uint32_t> index_;
};

}  // namespace deltawire::mcore
