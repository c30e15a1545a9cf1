// A model directory as an export sees it: config.json, the matching family, and the checkpoint's
// tensors if there are any. Plans point into it. It maps the weights but reads no tensor. Errors
// name the directory or the family.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "common/base/status.h"
#include "common/layout/model_dir.h"
#include "sender/export/mcore/plan.h"

namespace deltawire::mcore {

class HfModel {
 public:
  /// If `family` is empty, config.json chooses it. `families` are directories of further families.
  /// With `weights` false, config.json is used alone, even if there are tensors.
  static StatusOr<HfModel> Open(const std::filesystem::path& dir, const std::string& family,
                                std::span<const std::filesystem::path> families,
                                bool weights = true);

  const Family& family() const { return *family_; }
  /// The weights beside config.json, if there are any.
  const std::optional<ModelDir>& checkpoint() const { return checkpoint_; }

  /// Returns an unchecked plan for the checkpoint's tensors, or for `listing` if there is no
  /// checkpoint. REQUIRES: this outlives the plan.
  StatusOr<Plan> PlanFor(const ParallelConfig& parallel, const Layout* listing = nullptr) const;
  /// Returns the same plan with its coverage proven.
  StatusOr<Plan> ProvenPlan(const ParallelConfig& parallel, const Layout* listing = nullptr) const;

 private:
  explicit HfModel(HfConfig config) : config_(std::move(config)) {}
  FamilySet families_;
  HfConfig config_;
  const Family* family_ = nullptr;
  std::optional<ModelDir> checkpoint_;
};

}  // namespace deltawire::mcore
