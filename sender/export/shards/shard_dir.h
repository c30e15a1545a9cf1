// A directory of Megatron shards, one safetensors file per rank, and the conversion to and from HF
// (docs/shard_format.md). Owner: one command; immutable once open; files are mapped, not read.
// Threads: the pool's. Cost: ExportTo and Write make one pass over the bytes, and one for digests.
// Errors name the file and the parameter; nothing is written before everything has been checked.
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

/// HF tensors that have some value which the way to shards and back changes.
struct Rounding {
  /// The trainer holds these in fewer bits than the checkpoint does.
  std::vector<std::string> narrowed;
  /// The trainer holds the value minus one, which is rounded.
  std::vector<std::string> shifted;
};
/// Tries the conversion on every value that is converted at all. Values that cannot be converted
/// count as narrowed. Errors: `hf` is of another model than the plan (see ShardDir::Write).
StatusOr<Rounding> RoundingOf(const mcore::Plan& plan, const ModelDir& hf, ThreadPool& pool);

class ShardDir {
 public:
  static bool Is(const std::filesystem::path& dir);
  /// `unmarked`: accept files without marks, and take their rank from their name.
  static StatusOr<ShardDir> Open(const std::filesystem::path& dir, bool unmarked = false);

  const std::filesystem::path& path() const { return path_; }
  const mcore::ParallelConfig& parallel() const { return parallel_; }
  /// The layout in tensors_meta.json; nullopt if there is no such file.
  const std::optional<Layout>& layout() const { return layout_; }

  /// Copies every parameter of every rank to its HF place. `tensor(i)` returns memory of
  /// plan.layout()'s tensor i. Nothing is written when a rank's parameters do not fit the plan.
  /// Returns the names of HF tensors from which the trainer's values do not come back: those that
  /// hold the value plus one, rounded.
  StatusOr<std::vector<std::string>> ExportTo(const mcore::Plan& plan,
                                              const mcore::Transfer::TensorMemory& tensor,
                                              ThreadPool& pool) const;

  /// Makes `dir` from an HF model, and reads back the written files. Padding of the plan is zero.
  /// Values are rounded where RoundingOf says so. `hf` may have the tensors of plan.layout() in
  /// another order, and may lack those that are not trained; kFailedPrecondition, before anything
  /// is written, names other differences.
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
