// A directory of Megatron shards, one safetensors file per rank, and the way to and from HF
// (docs/shard_format.md).
// Immutable once open; files are mapped, not read. Threads: the pool's.
// Errors name the file and the parameter; nothing is written before everything has been checked.
// Cost: of ExportTo and Write one pass over the bytes, and one more for digests.
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

/// HF tensors of which some value is another one after the way to shards and back.
struct Rounding {
  std::vector<std::string> narrowed;  ///< held by the trainer in fewer bits than by the checkpoint
  std::vector<std::string>
      shifted;  ///< held by the trainer as the value less one, which is rounded
};
/// Tries it on every value that is converted at all. `hf` has plan.layout() as its layout.
Rounding RoundingOf(const mcore::Plan& plan, const ModelDir& hf, ThreadPool& pool);

class ShardDir {
 public:
  static bool Is(const std::filesystem::path& dir);
  /// `unmarked`: files that do not say which rank they are count as what they are called.
  static StatusOr<ShardDir> Open(const std::filesystem::path& dir, bool unmarked = false);

  const std::filesystem::path& path() const { return path_; }
  const mcore::ParallelConfig& parallel() const { return parallel_; }
  /// What tensors_meta.json says, if it is there.
  const std::optional<Layout>& layout() const { return layout_; }

  /// Takes every parameter of every rank to its HF place. `tensor(i)` is memory of plan.layout()'s
  /// tensor i. Nothing is written when a rank's parameters do not fit the plan.
  Status ExportTo(const mcore::Plan& plan, const mcore::Transfer::TensorMemory& tensor,
                  ThreadPool& pool) const;

  /// Makes `dir` from an HF model, and reads back what it has written. What the plan pads is zero.
  /// `hf` has plan.layout() as its layout. Values are rounded where RoundingOf says so.
  static Status Write(const std::filesystem::path& dir, const mcore::Plan& plan, const ModelDir& hf,
                      ThreadPool& pool);

 private:
  ShardDir() = default;
  /// That each file is the rank's that it is called after, of this layout, family and model.
  Status CheckMarks(const mcore::Plan& plan, const std::vector<RankFile>& files,
                    ThreadPool& pool) const;

  std::filesystem::path path_;
  bool unmarked_ = false;
  mcore::ParallelConfig parallel_;
  std::optional<Layout> layout_;
};

}  // namespace deltawire
