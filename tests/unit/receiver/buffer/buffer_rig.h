// A receiver's buffer with real files in a directory of its own, and helpers that look at the
// files. Owner: one test case. A chunk's content follows from its index and the version.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/layout/root.h"
#include "receiver/buffer/buffer.h"
#include "receiver/buffer/recovery.h"
#include "tests/support/temp_dir.h"

namespace deltawire::receiver {

namespace fs = std::filesystem;

inline constexpr uint64_t kSeed = 5;
inline constexpr uint32_t kChunks = 3;
inline const Hash128 kLineage{11, 22};

inline Layout MakeLayout() {
  return *Layout::Create(
      {{"a", DType::kU8, {5000}}, {"b", DType::kBF16, {3000}}, {"c", DType::kF32, {2}}});
}

/// The bytes of chunk `i` in a version. A chunk keeps its bytes for i + 1 versions in a row.
inline void Content(uint32_t i, uint64_t version, MutableBytes to) {
  std::mt19937_64 rng(version / (i + 1) * 1000 + i);
  for (std::byte& b : to) b = static_cast<std::byte>(rng());
}

/// A directory with a buffer, and methods that write versions into it.
struct BufferRig {
  explicit BufferRig(Buffer::Options o) : options(o) {
    buffer = *CreateBuffer(dir.path(), Lock(), MakeLayout(), kSeed, options);
  }
  std::shared_ptr<DirLock> Lock() {
    if (lock == nullptr) lock = std::make_shared<DirLock>(*DirLock::Acquire(dir.path()));
    return lock;
  }
  void Restart() {
    buffer.reset();
    auto taken = RecoverBuffer(dir.path(), Lock(), options);
    REQUIRE(taken.status() == absl::OkStatus());
    buffer = std::move(*taken);
  }
  static Identity At(const Buffer& b, uint64_t version) {
    Identity id{.lineage = kLineage, .id = {1, version}};
    for (uint32_t i = 0; i < kChunks; ++i) id.root += RootTerm(i, DigestOf(b, i, version));
    return id;
  }
  static uint64_t DigestOf(const Buffer& b, uint32_t i, uint64_t version) {
    std::vector<std::byte> bytes(b.chunks()[i].bytes);
    Content(i, version, bytes);
    return kernels::Best().digest(b.key(), bytes);
  }
  /// Brings chunk `i` whole, unless the buffer has its bytes already.
  static void Bring(Buffer& b, uint32_t i, uint64_t version) {
    if (b.bases().known(i) && b.bases().digest(i) == DigestOf(b, i, version)) return;
    b.bases().MarkUnknown(i);
    Content(i, version, b.bases().chunk(i));
    b.bases().Set(i, version, DigestOf(b, i, version));
  }
  static Status Update(Buffer& b, uint64_t version, const std::vector<SideFile>& side = {}) {
    DW_ASSIGN_OR_RETURN(const bool begun, b.update().Begin());
    if (!begun) return absl::UnavailableError(b.update().Readers());
    for (uint32_t i = 0; i < kChunks; ++i) Bring(b, i, version);
    return b.update().Commit(At(b, version), side);
  }
  Status Update(uint64_t version, const std::vector<SideFile>& side = {}) {
    return Update(*buffer, version, side);
  }
  fs::path weights() const { return dir.path() / "model.safetensors"; }

  TempDir dir;
  Buffer::Options options;
  std::shared_ptr<DirLock> lock;
  std::unique_ptr<Buffer> buffer;
};

/// Empty when the file is wholly one version, whose number is then in `*version`.
inline std::string Torn(const fs::path& path, const Layout& layout, const ChunkTable& chunks,
                        uint64_t* version) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return "no file";
  const std::string file(std::istreambuf_iterator<char>(in), {});
  if (file.size() < layout.total_bytes()) return "short";
  const std::string data = file.substr(file.size() - layout.total_bytes());
  for (*version = 1; *version < 5000; ++*version) {
    bool all = true;
    for (uint32_t i = kChunks; all && i-- > 0;) {
      std::string want(chunks[i].bytes, '\0');
      Content(i, *version, {reinterpret_cast<std::byte*>(want.data()), want.size()});
      all = data.compare(chunks[i].offset, chunks[i].bytes, want) == 0;
    }
    if (all) return "";
  }
  return "no version";
}

/// Maps the weights, and closes the descriptor if `close_it`.
inline std::function<bool(int)> Maps(bool close_it) {
  return [close_it](int fd) {
    const void* map = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (close_it) ::close(fd);
    return map != MAP_FAILED;
  };
}

inline std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline uint64_t InodeOf(const fs::path& path) {
  struct stat file;
  return ::stat(path.c_str(), &file) == 0 ? file.st_ino : 0;
}

/// A reader's open descriptor, which no renaming takes away, and the bytes at that time.
class Opened {
 public:
  explicit Opened(const fs::path& path) : fd_(::open(path.c_str(), O_RDONLY)) {
    REQUIRE(fd_ >= 0);
    first_ = bytes();
  }
  ~Opened() { ::close(fd_); }
  std::string bytes() const {
    struct stat file;
    REQUIRE(::fstat(fd_, &file) == 0);
    std::string text(static_cast<size_t>(file.st_size), '\0');
    REQUIRE(::pread(fd_, text.data(), text.size(), 0) == file.st_size);
    return text;
  }
  bool changed() const { return bytes() != first_; }

 private:
  const int fd_;
  std::string first_;
};

}  // namespace deltawire::receiver
