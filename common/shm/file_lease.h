// A test for readers of a file: the kernel denies a write lease (fcntl F_SETLEASE) while another
// descriptor, or a mapping of one that is closed by now, exists. The descriptor must be its
// process's only one and outlive the lease. One thread at a time. A lease costs one system call,
// about 2 us; WhoHas reads /proc, which takes milliseconds.
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
    kInUse,        ///< another process has the file open or mapped, or is just opening it
    kUnsupported,  ///< no lease is available, so readers are unknown
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

  /// Requests the lease; returns kAlone again while it is held. When another process opens the
  /// file, the kernel sends SIGURG to this process, which ignores it unless it has a handler.
  Answer Try();
  /// Releases the lease, so that waiting openers of the file continue. Idempotent.
  void Release();
  bool held() const { return held_; }
  /// Returns true when the lease is held and a process waits for Release to open the file.
  bool wanted() const;
  /// The reason why Try last returned kUnsupported.
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

/// Returns at most 8 processes that have the file of `fd` open or mapped, apart from `fd` itself
/// and this process's mappings. Best effort: /proc may hide processes of other users and
/// containers.
std::vector<FileHolder> WhoHas(int fd);
/// Returns "process 12 (python), process 77 (vllm)", or "a process that /proc does not show".
std::string DescribeHolders(const std::vector<FileHolder>& holders);

}  // namespace deltawire
