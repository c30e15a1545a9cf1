// A HuggingFace model directory, read-only: safetensors shards mapped, small side files listed.
// Owns its mappings; spans handed out live as long as the ModelDir. Immutable, so thread-safe.
// Reads model.safetensors.index.json when there is one, else every *.safetensors in the directory.
// Errors name the file and the tensor. Cost: maps, does not read the data.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/layout/layout.h"

namespace deltawire {

/// config.json, tokenizer files and other small files that make the directory a model directory.
struct SideFile {
  std::string name;  ///< a plain file name, no directory part
  std::string content;
};

inline constexpr uint64_t kMaxSideFileBytes = 64ull << 20;
inline constexpr uint64_t kMaxSideFilesTotal = 96ull << 20;

/// True when `name` may be written into a model directory: plain, not hidden, no '/' or NUL, not a
/// weight or index file (*.safetensors, *.bin, *.pt, *.pth, *.gguf, *.safetensors.index.json).
bool IsSideFileName(std::string_view name);

/// Every small regular file of a directory that is not a weight file, with or without weights
/// beside them. Fails beyond the limits above.
StatusOr<std::vector<SideFile>> SideFilesOf(const std::filesystem::path& dir);

class ModelDir {
 public:
  /// Tensors are ordered by shard file name, then by offset in the file. The index file, when
  /// present, must agree with the shards (a tensor missing from its shard is an error).
  static StatusOr<ModelDir> Open(const std::filesystem::path& dir);

  const Layout& layout() const { return *layout_; }
  /// Bytes of tensor `i` of layout().
  Bytes data(size_t i) const { return data_[i]; }
  const std::filesystem::path& path() const { return path_; }

  /// SideFilesOf its directory.
  StatusOr<std::vector<SideFile>> ReadSideFiles() const;

 private:
  ModelDir() = default;
  struct Mapping;
  std::filesystem::path path_;
  std::shared_ptr<const Layout> layout_;
  std::vector<std::shared_ptr<const Mapping>> mappings_;
  std::vector<Bytes> data_;
};

}  // namespace deltawire
