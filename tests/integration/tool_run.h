// Runs of the command line tool, and checkpoints for it, in tests. Owner: the test case. Threads:
// one. Cost: a process a run.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/layout/model_dir.h"
#include "tests/support/daemons.h"
#include "tests/support/forked.h"
#include "tests/support/layout_files.h"

namespace deltawire::testing {

inline bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// One run of the tool.
class Tool {
 public:
  Tool(const std::filesystem::path& root, const std::vector<std::string>& args)
      : log_(root / fmt::format("tool-{}.log", runs_++)), child_(Spawn("deltawire", args, log_)) {}
  int Wait() { return child_->Wait(std::chrono::seconds(120)); }
  std::string Said() const { return ReadText(log_); }
  cli::ChildProcess& child() { return *child_; }

 private:
  static inline int runs_ = 0;
  const std::filesystem::path log_;
  std::unique_ptr<cli::ChildProcess> child_;
};

/// A checkpoint of one file whose bytes are all `fill`.
struct Checkpoint {
  Checkpoint(const std::filesystem::path& where, size_t tensors, size_t tensor_bytes,
             char fill = 'a')
      : dir(where), file(dir / "model.safetensors") {
    std::filesystem::create_directories(dir);
    std::vector<TensorMeta> metas;
    for (size_t t = 0; t < tensors; ++t) {
      metas.push_back({fmt::format("t{}", t), DType::kU8, {tensor_bytes}});
    }
    const Layout layout = *Layout::Create(std::move(metas));
    const std::string header = BuildSafetensorsHeader(layout);
    data = header.size();
    bytes = layout.total_bytes();
    WriteFile(file, header + std::string(bytes, fill));
  }
  /// Another process overwrites the data in place, from the last byte to the first. Returns its
  /// exit status.
  int Overwrite(char fill) const {
    Forked writer([this, fill] {
      const int fd = open(file.c_str(), O_WRONLY | O_CLOEXEC);
      static char block[1 << 16];
      std::memset(block, fill, sizeof block);
      bool good = fd >= 0;
      for (size_t at = bytes; good && at > 0;) {
        const size_t n = std::min(at, sizeof block);
        at -= n;
        good = pwrite(fd, block, n, static_cast<off_t>(data + at)) == static_cast<ssize_t>(n);
      }
      if (!good) _exit(1);
    });
    return writer.Wait();
  }
  std::filesystem::path dir, file;
  size_t data = 0, bytes = 0;
};

/// The values that occur in the directory's tensors, one character each, or why it cannot be
/// opened. One character alone: the bytes are of one fill, not of two mixed.
inline std::string Fills(const std::filesystem::path& dir) {
  const auto model = ModelDir::Open(dir);
  if (!model.ok()) return std::string(MessageOf(model.status()));
  std::set<std::byte> seen;
  for (size_t t = 0; t < model->layout().size(); ++t) {
    for (const std::byte b : model->data(t)) seen.insert(b);
  }
  std::string text;
  for (const std::byte b : seen) text += static_cast<char>(b);
  return text;
}

}  // namespace deltawire::testing
