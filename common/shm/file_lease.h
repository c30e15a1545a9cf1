// Asks the kernel whether anybody else has a file open or mapped: a write lease (fcntl F_SETLEASE)
// is refused while another descriptor, or a mapping of one that is closed by now, exists.
// Owner: whoever owns the descriptor, which must be its process's only one and outlive the lease.
// Threads: one at a time. Cost: one system call, about 2 us; WhoHas reads /proc, milliseconds.
// Errors: a kernel or filesystem without leases is kUnsupported, with reason().
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace deltawire {

class FileLease {
 public:
  enum class Answer : uint8_t {
    kAlone,        ///< held; an opener of the file now waits for Release (or lease-break-time)
    kInUse,        ///< somebody else has the file open or mapped, or is just opening it
    kUnsupported,  ///< no lease is available, so nothing is known about other users
  };

  explicit FileLease(int fd = -1) : fd_(fd) {}
  FileLease(FileLease&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), held_(std::exchange(other.held_, false)) {}
  FileLease& operator=(FileLease&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(held_, other.held_);
    std::swap(reason_, other.reason_);
    return *this;
  }
  ~FileLease() { Release(); }

  /// Asks for the lease; kAlone again while it is held. When somebody else opens the file, the
  /// kernel sends SIGURG to this process, which ignores it unless it has a handler.
  Answer Try();
  /// Gives the lease back; processes that wait to open the file go on. Idempotent.
  void Release();
  bool held() const { return held_; }
  /// True when the lease is held and somebody waits for Release to open the file.
  bool wanted() const;
  /// Why Try last returned kUnsupported.
  const std::string& reason() const { return reason_; }

 private:
  int fd_;
  bool held_ = false;
  std::string reason_;
};

/// Tests, with a file of its own, whether leases in `dir` reveal openers as well as mappings.
/// Returns "" if they do, else the reason.
std::string LeaseProblem(const std::filesystem::path& dir);

struct FileHolder {
  pid_t pid = 0;
  std::string name;  ///< the process's, as in /proc/PID/comm
};

/// The processes (at most 8) that have the file of `fd` open or mapped; `fd` itself and this
/// process's mappings do not count. Best effort: it depends on the machine whether /proc shows
/// processes of other users and containers.
std::vector<FileHolder> WhoHas(int fd);
/// "process 12 (python), process 77 (vllm)", or "a process that /proc does not show".
std::string DescribeHolders(const std::vector<FileHolder>& holders);

}  // namespace deltawire
