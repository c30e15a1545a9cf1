// A second reader of safetensors files, with its own mmap and header parser. It deliberately shares
// no code with common/layout, so that the demo's verification is independent. It is immutable, and
// any thread may read. Errors name the file.
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

struct WantedTensor {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;
};

/// Returns OK if `file` has exactly these tensors, bit for bit; else names the first difference.
Status CheckEqual(const RawModelFile& file, const std::vector<WantedTensor>& wanted,
                  ThreadPool& pool);

}  // namespace deltawire::cli
