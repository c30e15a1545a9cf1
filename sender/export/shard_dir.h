// A directory of Megatron shards: one safetensors file per rank, and the way to and from HF.
//   rank_00007.safetensors   tensors "chunk<v>/<parameter>", v the virtual pipeline chunk
//   parallel.json            the parallel config;  tensors_meta.json  the HF tensors, in order
//   config.json, tokenizer files: as in the HF directory
// Immutable once open; mapped, not read. Errors name the file and the parameter.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/layout/model_dir.h"
#include "common/shm/mapped_file.h"
#include "sender/export/mcore/plan.h"
#include "sender/export/mcore/transfer.h"

namespace deltawire {

inline constexpr const char* kParallelFile = "parallel.json";
inline constexpr const char* kTensorsMetaFile = "tensors_meta.json";

/// One rank's file, mapped.
class RankFile {
 public:
  static StatusOr<RankFile> Open(const std::filesystem::path& path);
  const std::vector<mcore::LiveParam>& params() const { return params_; }
  /// Bytes of params()[i]. Mapped for reading only.
  Bytes data(size_t i) const { return data_[i]; }

 private:
  RankFile() = default;
  Mapping map_;
  std::vector<mcore::LiveParam> params_;
  std::vector<Bytes> data_;
};

/// "rank_00007.safetensors".
std::string RankFileName(uint32_t rank);

class ShardDir {
 public:
  static bool Is(const std::filesystem::path& dir);
  static StatusOr<ShardDir> Open(const std::filesystem::path& dir);

  const std::filesystem::path& path() const { return path_; }
  const mcore::ParallelConfig& parallel() const { return parallel_; }
  /// What tensors_meta.json says, if it is there.
  const std::optional<Layout>& layout() const { return layout_; }

  /// Takes every parameter of every rank to its HF place. `tensor(i)` is memory of plan.layout()'s
  /// tensor i. Nothing is written when a rank's parameters do not fit the plan.
  Status ExportTo(const mcore::Plan& plan, const mcore::Transfer::TensorMemory& tensor,
                  ThreadPool& pool) const;

  /// Makes `dir` from an HF model. What the plan pads is zero. `hf` has plan.layout() as its
  /// layout.
  static Status Write(const std::filesystem::path& dir, const mcore::Plan& plan, const ModelDir& hf,
                      ThreadPool& pool);

 private:
  ShardDir() = default;
  std::filesystem::path path_;
  mcore::ParallelConfig parallel_;
  std::optional<Layout> layout_;
};

}  // namespace deltawire
