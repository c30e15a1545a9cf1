// A HuggingFace model directory, read-only: its safetensors shards (mapped or read) and side files.
// Spans live as long as the ModelDir. Immutable, so thread-safe. It uses
// model.safetensors.index.json if there is one, else model.safetensors, else the numbered files
// (X-00001-of-00003.safetensors), else every *.safetensors in the directory. Open reads no tensors.
// Errors name file and tensor.
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

/// A small file, such as config.json or a tokenizer's, that makes the directory a model directory.
struct SideFile {
  std::string name;  ///< a plain file name, without a directory
  std::string content;
};

inline constexpr uint64_t kMaxSideFileBytes = 64ull << 20;
inline constexpr uint64_t kMaxSideFilesTotal = 96ull << 20;

/// Returns true when `name` can be a side file's: not hidden, at most 240 bytes of UTF-8 without
/// '/' or control characters, and not a weight or index file (*.safetensors, *.bin, *.pt, *.pth,
/// *.gguf, *.safetensors.index.json).
bool IsSideFileName(std::string_view name);

/// Returns true when `name` is a weight file, or an index of weight files, in a format other than
/// safetensors. These are the names that transformers and its exporters write: *.msgpack (Flax),
/// *.h5 (TensorFlow), pytorch_model*.bin, *.ckpt, *.gguf, *.onnx, *.onnx_data, *.ot (Rust) or
/// *.tflite, or one of these with ".index.json" or ".index" after it.
bool IsForeignWeightFile(std::string_view name);

/// Returns whether an engine may execute the file: *.py, *.pyc, *.so.
bool IsCodeFile(const SideFile& file);
/// Returns kFailedPrecondition, with the name, if one of the files is code and `allowed` is false.
Status CheckCodeFiles(const std::vector<SideFile>& files, bool allowed);

/// Returns every regular file of a directory that IsSideFileName allows, except for weights in
/// other formats. Appends the names of those to `foreign` if it is not null. Files beyond the
/// limits above are an error.
StatusOr<std::vector<SideFile>> SideFilesOf(const std::filesystem::path& dir,
                                            std::vector<std::string>* foreign = nullptr);

/// Hashes a list of side files: XXH3-64 over, for each file in the given order, the lengths of name
/// and content (8 bytes each, little-endian), then name and content.
uint64_t SideFilesHash(const std::vector<SideFile>& files);

class ModelDir {
 public:
  /// kMap: data() gives the tensors as memory. Whoever updates the files must replace, not rewrite
  /// them, or access may give SIGBUS. kRead: Read copies the tensors, and Unchanged checks that all
  /// reads saw one state of the files.
  enum class Access : uint8_t { kMap, kRead };

  /// Orders tensors by shard file name, then by offset in the file. The index file, if present,
  /// must agree with the shards; a tensor missing from its shard is an error. With kRead, returns
  /// kAborted when a file is written to for about a second.
  static StatusOr<ModelDir> Open(const std::filesystem::path& dir, Access access = Access::kMap);

  const Layout& layout() const { return *layout_; }
  /// Returns the bytes of tensor `i` of layout(). REQUIRES: kMap.
  Bytes data(size_t i) const { return data_[i]; }
  /// Reads tensor `i` into `to`. A file that has become shorter is an error. REQUIRES: kRead; `to`
  /// has the tensor's size.
  Status Read(size_t i, MutableBytes to) const { return Read(i, 0, to); }
  /// Reads the bytes of the tensor from `offset` on. REQUIRES: kRead; they are in the tensor.
  Status Read(size_t i, uint64_t offset, MutableBytes to) const;
  /// Returns OK when every weight file and the index still have the inode, size and times they had
  /// at opening; then all reads so far belong to one state. Otherwise kFailedPrecondition names a
  /// changed file. Writes through a mapping go unnoticed if the file system does not record their
  /// time, as tmpfs. REQUIRES: kRead.
  Status Unchanged() const;
  const std::filesystem::path& path() const { return path_; }
  /// Returns the sorted names of *.safetensors files in the directory that are not part of the
  /// model.
  const std::vector<std::string>& unlisted() const { return unlisted_; }
  /// Returns the file that excludes them: the index, or without one "model.safetensors" or the
  /// first of the numbered files. Empty if no file is excluded.
  const std::string& decided_by() const { return decided_by_; }

  /// Returns SideFilesOf(path(), foreign); none if path() is a single file.
  StatusOr<std::vector<SideFile>> ReadSideFiles(std::vector<std::string>* foreign = nullptr) const;

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
  std::vector<std::string> unlisted_;
  std::string decided_by_;
  std::shared_ptr<const Layout> layout_;
  std::vector<std::shared_ptr<const Mapping>> mappings_;
  std::vector<Bytes> data_;
  std::vector<std::shared_ptr<const Opened>> opened_;  // kRead: shards and the index
  std::vector<Place> places_;                          // kRead, by tensor
};

}  // namespace deltawire
