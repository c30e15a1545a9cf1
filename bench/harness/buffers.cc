#include "bench/harness/buffers.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

namespace deltawire::bench {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;

// Blocks until every copy of the other end is closed, then removes the directory.
[[noreturn]] void RunJanitor(int fd, const fs::path& dir) {
  setsid();  // Ctrl-C at the terminal is not for this process
  char byte;
  while (read(fd, &byte, 1) < 0 && errno == EINTR) {
  }
  std::error_code ec;
  // Daemons that are being killed may still create a file or two.
  for (int i = 0; i < 50 && fs::exists(dir, ec); ++i) {
    fs::remove_all(dir, ec);
    usleep(10'000);
  }
  _exit(0);
}

uint64_t NumberAt(uint64_t place) {
  return ((place + 1) * 0x9e3779b97f4a7c15 & 0x81ff81ff81ff81ff) | 0x3c003c003c003c00;
}

}  // namespace

uint64_t HugeBuffer::resident() const { return (bytes_ + kHugePage - 1) / kHugePage * kHugePage; }

StatusOr<HugeBuffer> HugeBuffer::Create(uint64_t bytes) {
  HugeBuffer out;
  out.bytes_ = bytes;
  out.base_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, out.resident())));
  if (out.base_ == nullptr) {
    return Errorf(StatusCode::kResourceExhausted, "no memory for a buffer of {} bytes", bytes);
  }
  // Only a request; HugePageShare reports the result.
  madvise(out.base_.get(), out.resident(), MADV_HUGEPAGE);
  std::memset(out.base_.get(), 0, out.resident());
  return out;
}

StatusOr<std::unique_ptr<ScratchDir>> ScratchDir::Create() {
  std::error_code ec;
  const fs::path root = fs::is_directory("/dev/shm", ec) ? "/dev/shm" : fs::temp_directory_path();
  auto dir = std::unique_ptr<ScratchDir>(new ScratchDir);
  static std::atomic<int> made = 0;
  dir->path_ = root / fmt::format("deltawire-bench-{}-{}", getpid(), made++);
  if (!fs::create_directory(dir->path_, ec)) {
    return Errorf(StatusCode::kAlreadyExists, "cannot create {}: {}", dir->path_.string(),
                  ec ? ec.message() : "it is there already; remove it");
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoError("pipe");
  dir->alive_ = UniqueFd(ends[1]);
  dir->janitor_ = fork();
  if (dir->janitor_ < 0) return ErrnoError("fork");
  if (dir->janitor_ == 0) {
    close(ends[1]);
    RunJanitor(ends[0], dir->path_);
  }
  close(ends[0]);
  return dir;
}

ScratchDir::~ScratchDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  alive_ = UniqueFd();
  if (janitor_ > 0) waitpid(janitor_, nullptr, 0);
}

StatusOr<Mapping> MapNewFile(const fs::path& path, uint64_t bytes) {
  DW_ASSIGN_OR_RETURN(FileBuilder file, FileBuilder::Start(path, bytes));
  DW_RETURN_IF_ERROR(file.Allocate());
  DW_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(file.fd(), bytes, true, path));
  DW_RETURN_IF_ERROR(file.Publish());
  std::memset(mapping.base(), 0, bytes);
  return mapping;
}

void FillByPlace(MutableBytes to) {
  for (size_t i = 0; i + 8 <= to.size(); i += 8) StoreLe<uint64_t>(&to[i], NumberAt(i));
}

bool FilledByPlace(Bytes data) {
  for (size_t i = 0; i + 8 <= data.size(); i += 8) {
    if (LoadLe<uint64_t>(&data[i]) != NumberAt(i)) return false;
  }
  return true;
}

}  // namespace deltawire::bench
