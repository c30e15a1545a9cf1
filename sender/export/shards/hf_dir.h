// A writer of an HF directory's weights: one model.safetensors, or several files of limited size
// with model.safetensors.index.json, named as `save_pretrained` does.
#pragma once

#include <filesystem>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "sender/export/shards/weight_file.h"

namespace deltawire {

class HfDir {
 public:
  /// Puts the tensors into files in the layout's order, each whole in one file. A tensor above
  /// `max_file_bytes` gets a separate file.
  static StatusOr<HfDir> Create(const std::filesystem::path& dir, const Layout& layout,
                                uint64_t max_file_bytes);

  MutableBytes tensor(size_t i) { return files_[places_[i].file].tensor(places_[i].index); }
  size_t files() const { return files_.size(); }
  /// Writes the index, flushes all files to disk and reads them back.
  Status Finish(ThreadPool& pool);

 private:
  struct Place {
    size_t file = 0, index = 0;
  };
  HfDir() = default;
  std::filesystem::path dir_;
  std::vector<WeightFile> files_;
  std::vector<Place> places_;
};

}  // namespace deltawire
