// A safetensors file that is written once: room for all of it is taken first, it is filled through
// a mapping, and Seal brings it to the disk and reads it back.
// Owner: one command; a file that is not sealed may hold anything. Threads: the mapping is plain
// memory. Cost: one pass for Digest, one of reading for Seal.
// Errors: no space is kResourceExhausted at Create; what is read back otherwise is kDataLoss.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/layout/layout.h"
#include "common/shm/mapped_file.h"

namespace deltawire {

class WeightFile {
 public:
  /// What a safetensors header has under "__metadata__".
  using Metadata = std::map<std::string, std::string>;

  static StatusOr<WeightFile> Create(const std::filesystem::path& path, Layout layout,
                                     const Metadata& metadata);

  const std::filesystem::path& path() const { return path_; }
  const Layout& layout() const { return layout_; }
  MutableBytes tensor(size_t i) {
    return {map_.base() + header_bytes_ + layout_.offset(i), layout_.bytes(i)};
  }
  /// XXH3-64 of the data section as it is now.
  uint64_t Digest() const;
  /// Other values for the keys that it was made with, as long as those.
  Status Mark(const Metadata& metadata);
  /// `digest`: Digest() when it was filled. Nothing is written through the mapping any more.
  Status Seal(uint64_t digest);

 private:
  WeightFile(std::filesystem::path path, Layout layout)
      : path_(std::move(path)), layout_(std::move(layout)) {}

  std::filesystem::path path_;
  Layout layout_;
  UniqueFd fd_;
  Mapping map_;
  uint64_t header_bytes_ = 0;
};

}  // namespace deltawire
