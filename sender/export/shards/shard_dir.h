// A directory of Megatron shards, one safetensors file per rank, and the conversion to and from HF
// (docs/shard_format.md). Files are mapped, not read; ExportTo and Write make one pass over the
// bytes, and one for digests. Nothing is written before everything has been checked. Errors name
// the file and the parameter.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/layout/model_dir.h"
#include "sender/export/mcore/plan.h"
#include "sender/export/mcore/transfer.h"
#include "sender/export/shards/rank_file.h"

namespace deltawire {

inline constexpr const char* kParallelFile = "parallel.json";
inline constexpr const char* kTensorsMetaFile = "tensors_meta.json";

/// HF tensors with some value that the round trip to shards changes.
struct Rounding {
  /// The trainer holds these in fewer bits than the checkpoint does.
  std::vector<std::string> narrowed;
  /// The trainer holds the value minus one, rounded.
  std::vector<std::string> shifted;
};
/// Tries the conversion on every converted value. Values that cannot be converted count as
/// narrowed. Fails if `hf` is of another model than the plan (see ShardDir::Write).
StatusOr<Rounding> RoundingOf(const mcore::Plan& plan, const ModelDir& hf, ThreadPool& pool);

class ShardDir {
 public:
  static bool Is(const std::filesystem::path& dir);
  /// With `unmarked`, accepts files without marks, and uses the rank in their name.
  static StatusOr<ShardDir> Open(const std::filesystem::path& dir, bool unmarked = false);

  const std::filesystem::path& path() const { return path_; }
  const mcore::ParallelConfig& parallel() const { return parallel_; }
  /// The layout in tensors_meta.json, or nullopt if there is no such file.
  const std::optional<Layout>& layout() const { return layout_; }

  /// Copies every parameter of every rank to its HF place. `tensor(i)` returns memory of
  /// plan.layout()'s tensor i. Nothing is written if a rank's parameters do not fit the plan.
  /// Returns the names of HF tensors from which the trainer's values cannot be recovered: those
  /// that hold the value plus one, rounded.
  StatusOr<std::vector<std::string>> ExportTo(const mcore::Plan& plan,
                                              const mcore::Transfer::TensorMemory& tensor,
                                              ThreadPool& pool) const;

  /// Makes `dir` from an HF model, and reads back the written files. Padding of the plan is zero.
  /// Values are rounded where RoundingOf says so. `hf` may have the tensors of plan.layout() in
  /// another order, and may lack the untrained ones; kFailedPrecondition, before anything is
  /// written, names other differences.
  static Status Write(const std::filesystem::path& dir, const mcore::Plan& plan, const ModelDir& hf,
                      ThreadPool& pool);

 private:
  ShardDir() = default;
  /// Checks that each file is of the rank in its name, and of this layout, family and model.
  Status CheckMarks(const mcore::Plan& plan, const std::vector<RankFile>& files,
                    ThreadPool& pool) const;

  std::filesystem::path path_;
  bool unmarked_ = false;
  mcore::ParallelConfig parallel_;
  std::optional<Layout> layout_;
};

}  // namespace deltawire
