// An HF directory's weights as they are written: one model.safetensors, or several of at most so
// many bytes with model.safetensors.index.json, as `save_pretrained` names them.
// Owner: one command. Threads: the mappings are plain memory; Finish uses the pool.
// Errors: WeightFile's, naming the file. Cost: WeightFile's.
#pragma once

#include <filesystem>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "sender/export/shards/weight_file.h"

namespace deltawire {

class HfDir {
 public:
  /// Tensors in the layout's order, each whole in one file; one above `max_file_bytes` has a file
  /// of its own.
  static StatusOr<HfDir> Create(const std::filesystem::path& dir, const Layout& layout,
                                uint64_t max_file_bytes);

  /// Memory of the layout's tensor i.
  MutableBytes tensor(size_t i) { return files_[places_[i].file].tensor(places_[i].index); }
  size_t files() const { return files_.size(); }
  /// Brings all of it to the disk, reads it back, and writes the index.
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
