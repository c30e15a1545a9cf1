// The demo's trainer: weights that change like AdamW's, and their HF directory. One thread drives
// it, and many may read tensor bytes between steps. It uses 10 bytes of memory per parameter.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/publisher.h"
#include "cli/raw_reader.h"
#include "cli/synth/adam_trace.h"
#include "cli/synth/model_maker.h"
#include "common/base/thread_pool.h"
#include "common/layout/layout.h"
#include "common/layout/model_dir.h"

namespace deltawire::cli {

class DemoSource {
 public:
  /// Draws the weights and writes the directory. The trace is AdamW's with fp32 masters and lr
  /// 1e-6.
  static StatusOr<std::unique_ptr<DemoSource>> Create(const synth::ModelShape& shape, uint64_t seed,
                                                      std::filesystem::path directory,
                                                      ThreadPool& pool);
  void Step(ThreadPool& pool) { trace_->Step(pool); }
  Status WriteDirectory();
  /// Frees the trace and keeps the directory.
  void DropTrace() { trace_.reset(); }

  const Layout& layout() const { return layout_; }
  const std::filesystem::path& directory() const { return directory_; }
  Content content() const;
  std::vector<WantedTensor> wanted() const;

 private:
  DemoSource(std::filesystem::path directory, Layout layout, synth::AdamTrace trace);
  const std::filesystem::path directory_;
  const Layout layout_;
  std::vector<SideFile> side_files_;
  std::optional<synth::AdamTrace> trace_;
};

}  // namespace deltawire::cli
