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
  std::optional<std::vector<uint64_t>> said_shape;  // if the parameters say it

  std::vector<uint64_t> Shape() const;
};

class HfTensors {
 public:
  /// Adds the tensor, or checks that it is the one of this name that is there. Returns its index.
  StatusOr<uint32_t> Intern(HfTensor tensor);
  /// Keeps the first `count` tensors and their indices, forgets the others, and returns the names
  /// of those.
  std::vector<std::string> Shrink(size_t count);
  /// To be called after the last Intern. A view whose pitch no parameter says gets one that covers
  /// all its rows.
  void Finish();

  size_t size() const { return tensors_.size(); }
  const HfTensor& operator[](size_t i) const { return tensors_[i]; }
  bool contains(const std::string& name) const { return index_.contains(name); }

  /// How these tensors fit to a checkpoint that lists its own.
  struct Listed {
    std::vector<TensorView> views;  ///< by place; those that it does not list follow its own
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
