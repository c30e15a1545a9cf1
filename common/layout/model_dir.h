// A HuggingFace model directory, read-only: safetensors shards mapped or read, side files listed.
// Owns its files; spans handed out live as long as the ModelDir. Immutable, so thread-safe.
// Reads model.safetensors.index.json when there is one, else every *.safetensors in the directory.
// Errors name the file and the tensor. Cost: maps or opens, does not read the data.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/layout/layout.h"
#include "common/layout/safetensors.h"

namespace deltawire {

/// config.json, tokenizer files and other small files that make the directory a model directory.
struct SideFile {
  std::string name;  ///< a plain file name, no directory part
  std::string content;
};

inline constexpr uint64_t kMaxSideFileBytes = 64ull << 20;
inline constexpr uint64_t kMaxSideFilesTotal = 96ull << 20;

/// True when `name` may be written into a model directory: plain, not hidden, at most 240 bytes of
/// UTF-8 without '/' or control characters, not a weight or index file (*.safetensors, *.bin, *.pt,
/// *.pth, *.gguf, *.safetensors.index.json).
bool IsSideFileName(std::string_view name);

/// Every small regular file of a directory that is not a weight file, with or without weights
/// beside them. Fails beyond the limits above.
StatusOr<std::vector<SideFile>> SideFilesOf(const std::filesystem::path& dir);

/// Names a set of side files: XXH3-64 over each file's two lengths (8 bytes, little-endian), name
/// and content, in the order given.
uint64_t SideFilesHash(const std::vector<SideFile>& files);

class ModelDir {
 public:
  /// kMap: tensors as memory; files must be replaced, not rewritten, or access gives SIGBUS.
  /// kRead: tensors by Read, and Unchanged says whether they were of one state of the files.
  enum class Access : uint8_t { kMap, kRead };

  /// Tensors are ordered by shard file name, then by offset in the file. The index file, when
  /// present, must agree with the shards (a tensor missing from its shard is an error).
  /// kAborted, with kRead: a file has been written to within the last milliseconds, and still is
  /// after a second.
  static StatusOr<ModelDir> Open(const std::filesystem::path& dir, Access access = Access::kMap);

  const Layout& layout() const { return *layout_; }
  /// Bytes of tensor `i` of layout(). REQUIRES: kMap.
  Bytes data(size_t i) const { return data_[i]; }
  /// Reads tensor `i` into `to`, which has its size. A file that has become shorter is an error.
  /// REQUIRES: kRead.
  Status Read(size_t i, MutableBytes to) const;
  /// Whether every weight file and the index still are what was opened, by inode, size and times:
  /// then all that was read before is of one state. kFailedPrecondition names a file that is not.
  /// Writes through a mapping are seen only where the file system notes their time (tmpfs does
  /// not). REQUIRES: kRead.
  Status Unchanged() const;
  const std::filesystem::path& path() const { return path_; }

  /// SideFilesOf its directory.
  StatusOr<std::vector<SideFile>> ReadSideFiles() const;

 private:
  ModelDir() = default;
  struct Mapping;
  struct Opened;
  struct Place {
    const Opened* file = nullptr;
    uint64_t offset = 0;
  };
  Status AddShard(const std::filesystem::path& path, Access access,
                  std::vector<StoredTensor>* tensors);

  std::filesystem::path path_;
  std::shared_ptr<const Layout> layout_;
  std::vector<std::shared_ptr<const Mapping>> mappings_;
  std::vector<Bytes> data_;
  std::vector<std::shared_ptr<const Opened>> opened_;  // kRead: shards and the index
  std::vector<Place> places_;                          // kRead, by tensor
};

}  // namespace deltawire
