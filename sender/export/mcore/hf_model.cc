#include "sender/export/mcore/hf_model.h"

#include "sender/export/mcore/nearest_family.h"

namespace deltawire::mcore {
namespace {

namespace fs = std::filesystem;

bool HasWeights(const fs::path& dir) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    if (entry.path().extension() == ".safetensors") return true;
  }
  return false;
}

}  // namespace

StatusOr<HfModel> HfModel::Open(const fs::path& dir, const std::string& family,
                                std::span<const fs::path> families, bool weights) {
  DW_ASSIGN_OR_RETURN(HfConfig config, HfConfig::Open(dir));
  HfModel model(std::move(config));
  DW_ASSIGN_OR_RETURN(model.families_, FamilySet::Load(families));
  if (weights && HasWeights(dir)) {
    DW_ASSIGN_OR_RETURN(ModelDir checkpoint, ModelDir::Open(dir));
    model.checkpoint_.emplace(std::move(checkpoint));
  }
  StatusOr<const Family*> selected = model.families_.Select(model.config_, family);
  if (!selected.ok() && family.empty() && selected.status().code() == StatusCode::kNotFound) {
    const Layout* const listing = model.checkpoint_ ? &model.checkpoint_->layout() : nullptr;
    return Errorf(StatusCode::kNotFound, "{}{}", MessageOf(selected.status()),
                  DescribeNearest(model.families_, model.config_, listing));
  }
  DW_ASSIGN_OR_RETURN(model.family_, std::move(selected));
  return model;
}

StatusOr<Plan> HfModel::PlanFor(const ParallelConfig& parallel, const Layout* listing) const {
  if (checkpoint_) listing = &checkpoint_->layout();
  return Plan::Make(*family_, config_, parallel, listing);
}

StatusOr<Plan> HfModel::ProvenPlan(const ParallelConfig& parallel, const Layout* listing) const {
  StatusOr<Plan> plan = PlanFor(parallel, listing);
  if (plan.ok()) DW_RETURN_IF_ERROR(plan->Check().ToStatus());
  return plan;
}

}  // namespace deltawire::mcore
