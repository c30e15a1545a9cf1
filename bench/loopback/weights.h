// The trainer's weights and their changes: random +-1 at a given density, or recorded AdamW steps
// of a synthetic trace. It owns one copy of the model on tmpfs, and the steps as deltas. One thread
// changes; many may read in between. Too little memory is kResourceExhausted.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/delta/delta_log.h"
#include "common/layout/layout.h"
#include "common/layout/model_dir.h"
#include "common/shm/mapped_file.h"

namespace deltawire::bench {

/// A model to publish: a synthetic one or the user's own directory.
struct ModelSource {
  std::string name;
  Layout layout;
  std::vector<SideFile> side_files;
  std::optional<ModelDir> directory;  ///< none: synthetic

  static StatusOr<ModelSource> Synthetic(const std::string& size);
  static StatusOr<ModelSource> Directory(const std::filesystem::path& dir);
};

class Weights {
 public:
  /// Records `adam_steps` first, before other memory is taken. When the model is the user's, or
  /// there is too little memory for the trace, it records none, and why_no_adam() gives the reason.
  static StatusOr<std::unique_ptr<Weights>> Create(const ModelSource& source,
                                                   const std::filesystem::path& file, uint64_t seed,
                                                   size_t adam_steps, ThreadPool& pool);

  Bytes content() const { return {mapping_.base(), layout_->total_bytes()}; }
  /// Adds or subtracts 1 (mod 2^(8 width)) at a random `fraction` of all elements.
  void Flip(double fraction);
  /// REQUIRES: adam_steps_left() > 0.
  Status AdamStep(ThreadPool& pool);
  size_t adam_steps_left() const { return steps_.size() - next_step_; }
  const std::string& why_no_adam() const { return why_no_adam_; }

 private:
  Weights() = default;
  Status Record(const ModelSource& source, size_t steps, ThreadPool& pool);
  void FillRandom(ThreadPool& pool);
  MutableBytes writable() { return {mapping_.base(), layout_->total_bytes()}; }

  const Layout* layout_ = nullptr;
  Mapping mapping_;
  std::mt19937_64 random_;
  uint64_t seed_ = 0;
  LogView steps_;
  size_t next_step_ = 0;
  std::string why_no_adam_;
};

}  // namespace deltawire::bench
