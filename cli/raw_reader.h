// A second reader of safetensors files: its own mmap, its own reading of the header. It shares no
// code with common/layout on purpose, so that what the demo calls verified was read independently.
// Owner: the caller; owns its mapping. Immutable, so thread-safe. Errors name the file.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"

namespace deltawire::cli {

class RawModelFile {
 public:
  struct Tensor {
    std::string dtype;
    std::vector<uint64_t> shape;
    std::span<const std::byte> bytes;
  };

  static StatusOr<RawModelFile> Open(const std::filesystem::path& file);
  ~RawModelFile();
  RawModelFile(RawModelFile&& other) noexcept;
  RawModelFile& operator=(RawModelFile&&) = delete;

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

 private:
  RawModelFile() = default;
  Status ReadHeader(const std::filesystem::path& file);
  std::span<const std::byte> map_;
  std::map<std::string, Tensor> tensors_;
};

/// What a tensor must be.
struct WantedTensor {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;
};

/// Ok when `file` holds exactly these tensors, bit for bit; else names the first that is not so.
Status CheckEqual(const RawModelFile& file, const std::vector<WantedTensor>& wanted,
                  ThreadPool& pool);

}  // namespace deltawire::cli
