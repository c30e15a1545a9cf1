// A safetensors file that is written once: Create allocates all its space, the caller fills it
// through a mapping, Seal flushes it to disk and reads it back. An unsealed file may contain
// anything. Create fails with kResourceExhausted if space is short, Seal with kDataLoss if it reads
// other bytes back.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/layout/layout.h"
#include "common/shm/mapped_file.h"

namespace deltawire {

class WeightFile {
 public:
  /// The entries of a safetensors header under "__metadata__".
  using Metadata = std::map<std::string, std::string>;

  static StatusOr<WeightFile> Create(const std::filesystem::path& path, Layout layout,
                                     const Metadata& metadata);

  const std::filesystem::path& path() const { return path_; }
  const Layout& layout() const { return layout_; }
  MutableBytes tensor(size_t i) {
    return {map_.base() + header_bytes_ + layout_.offset(i), layout_.bytes(i)};
  }
  /// Returns XXH3-64 of the data section's present bytes.
  uint64_t Digest() const;
  /// Sets other values for the keys given to Create. REQUIRES: they are as long as the old ones.
  Status Mark(const Metadata& metadata);
  /// `digest` is Digest() of the complete file. REQUIRES: no more writes through the mapping.
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

/// Writes a small file, flushes it to disk and reads it back, as Seal does.
Status WriteSealed(const std::filesystem::path& path, std::string_view content);

}  // namespace deltawire
