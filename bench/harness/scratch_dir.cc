#include "bench/harness/scratch_dir.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

namespace deltawire::bench {
namespace fs = std::filesystem;
namespace {

// Blocks until every copy of the other end is closed, then removes the directory.
[[noreturn]] void RunJanitor(int fd, const fs::path& dir) {
  setsid();  // a Ctrl-C at the terminal is for the others
  char byte;
  while (read(fd, &byte, 1) < 0 && errno == EINTR) {
  }
  std::error_code ec;
  // Daemons that are just being killed may still create a file or two.
  for (int i = 0; i < 50 && fs::exists(dir, ec); ++i) {
    fs::remove_all(dir, ec);
    usleep(10'000);
  }
  _exit(0);
}

}  // namespace

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
  const pid_t pid = fork();
  if (pid < 0) return ErrnoError("fork");
  if (pid == 0) {
    close(ends[1]);
    RunJanitor(ends[0], dir->path_);
  }
  close(ends[0]);
  dir->janitor_ = pid;
  return dir;
}

ScratchDir::~ScratchDir() {
  if (janitor_ < 0) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  alive_ = UniqueFd();
  waitpid(janitor_, nullptr, 0);
}

StatusOr<Mapping> MapNewFile(const fs::path& path, uint64_t bytes) {
  DW_ASSIGN_OR_RETURN(FileBuilder file, FileBuilder::Start(path, bytes));
  DW_RETURN_IF_ERROR(file.Allocate());
  DW_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(file.fd(), bytes, true, path));
  DW_RETURN_IF_ERROR(file.Publish());
  std::memset(mapping.base(), 0, bytes);
  return mapping;
}

}  // namespace deltawire::bench
