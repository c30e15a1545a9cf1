// The plan of an export: every parameter that each rank of a Megatron job holds, and the program
// that copies it to its HF tensors. It is made from metadata alone, and proves that all programs
// together write every byte of tensors_meta exactly once. The family outlives it. Time and memory
// follow the number of shards, not of bytes. Errors name tensors and parameters.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/layout/layout.h"
#include "sender/export/mcore/family.h"
#include "sender/export/mcore/parallel.h"
#include "sender/export/mcore/program.h"

namespace deltawire::mcore {

/// One parameter of the model (of one layer, one expert), all its shards together.
struct PlannedParam {
  const Param* param = nullptr;
  uint32_t chunk = 0;    ///< pipeline chunk, v * P + p
  uint32_t layer = 0;    ///< decoder or MTP layer, over the whole model
  uint32_t local = 0;    ///< the layer's number within the chunk
  uint32_t inner = 0;    ///< in an MTP layer of several inner layers, the number of its own
  uint32_t expert = 0;   ///< over the whole model
  bool mtp = false;      ///< in an MTP layer
  bool exported = true;  ///< false: ranks hold it, but HF does not
  bool made = true;      ///< false: only other core versions create it; used if present
  ParamCut cut;
  Split other_split = Split::kNone;  ///< under the other setting (Spelling)
  DType dtype = DType::kBF16;        ///< the trainer's, as far as the plan knows
  std::vector<uint64_t> shape;       ///< of the whole parameter, if rows and columns do not give it
  int8_t add = 0;                    ///< added to values on the way to HF
  std::vector<std::string> pass;     ///< names of a parameter that is passed through; else empty
};

/// One rank's shard of one parameter.
struct ShardParam {
  uint32_t planned = 0;  ///< index in Plan::planned()
  uint32_t shard = 0;
  uint32_t chunk = 0;              ///< virtual pipeline chunk of the rank
  std::vector<std::string> names;  ///< the name under this config, then other spellings
  std::vector<uint64_t> shape;     ///< empty: not checked, since it is not exported
  DType dtype = DType::kBF16;
  bool writes = false;    ///< this rank's copy is the one that is exported
  bool optional = false;  ///< the rank may lack it
  bool made = true;       ///< as in its PlannedParam
};

/// Errors of a plan, by name. Lists end at kMaxFindings; counts are complete.
struct PlanFindings {
  static constexpr size_t kMaxFindings = 10;
  uint64_t tensors = 0, missing = 0, doubled = 0, misshapen = 0;
  uint64_t unlisted = 0;  ///< made by the family, but not in the checkpoint
  std::vector<std::string> findings;
  uint64_t wrong() const { return missing + doubled + misshapen + unlisted; }
  bool ok() const { return wrong() == 0; }
  /// Returns OK, or kFailedPrecondition with the findings.
  Status ToStatus() const;
};

class Plan {
 public:
  /// `listing` is tensors_meta of the checkpoint that the engines load, if there is one; its names,
  /// order, shapes and dtypes are used. Without it they follow from the family. Fields that
  /// config.json lacks, and sizes that do not divide, are errors with the parameter. `family`
  /// outlives the plan.
  static StatusOr<Plan> Make(const Family& family, const HfConfig& config,
                             const ParallelConfig& parallel, const Layout* listing = nullptr);

  const Family& family() const { return *family_; }
  const ParallelConfig& parallel() const { return parallel_; }
  const Layout& layout() const { return *layout_; }
  std::span<const PlannedParam> planned() const { return planned_; }
  std::span<const TensorView> views() const { return views_; }
  /// Returns the HF tensors that no parameter forms and that stay as they are in the checkpoint.
  const std::vector<std::string>& not_trained() const { return not_trained_; }

  /// Returns the plan's deviations from config.json, for people to read.
  const std::vector<std::string>& notes() const { return notes_; }

  /// Returns the same plan for tensors with the trainer's values: nothing is added to them on the
  /// way to HF, nor subtracted on the way back.
  Plan WithTrainersValues() const;

  /// Proves that the programs of all ranks write every byte exactly once.
  PlanFindings Check() const;

  std::vector<ShardParam> Rank(uint32_t rank) const;
  /// Returns the rank whose copy of shard `t` is exported.
  uint32_t Writer(const PlannedParam& planned, uint32_t t) const;
  /// Returns how many bytes of HF tensors each rank writes, by rank.
  std::vector<uint64_t> BytesPerRank() const;

  /// Returns the shard's boxes, or those of the rows `only`. Set `split` if the rank uses the other
  /// spelling's split, and `filled` to have also those that are copied from HF alone.
  std::vector<Box> Boxes(const ShardParam& shard, std::optional<Split> split = std::nullopt,
                         RowRange only = {}, bool filled = false) const;
  /// Returns a parameter's names on its ranks: the name under this config, then other spellings.
  std::vector<std::string> LocalNames(const PlannedParam& planned) const;
  ParamCut CutAs(const PlannedParam& planned, Split split) const;
  std::vector<uint64_t> LocalShape(const PlannedParam& planned, Split split) const;

 private:
  friend class Planner;
  Plan() = default;
  uint32_t World(const PlannedParam& planned, Split split) const;

  const Family* family_ = nullptr;
  ParallelConfig parallel_;
  std::shared_ptr<const Layout> layout_;
  std::vector<PlannedParam> planned_;
  std::vector<TensorView> views_;
  std::vector<std::vector<uint32_t>> by_chunk_;  // indexes into planned_, by pipeline chunk
  std::vector<std::string> not_trained_;
  std::vector<std::string> misshapen_, unlisted_;  // found while planning, for Check
  std::vector<std::string> notes_;
  uint32_t experts_ = 0;
};

/// Returns `name` without wrappers' prefixes ("module.", "_orig_mod.", the family's own).
std::string_view StripWrappers(const Family& family, std::string_view name);

}  // namespace deltawire::mcore
