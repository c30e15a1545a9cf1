// Whether anybody else has a file open or mapped, by the kernel's word: a write lease (fcntl
// F_SETLEASE) is granted only to the sole opener, mappings whose descriptor is closed included.
// Owner: whoever has the descriptor, which must be the only one of its process and outlive this.
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
    kAlone,        ///< held now: whoever opens the file waits for Release (or lease-break-time)
    kInUse,        ///< somebody else has it open or mapped, or is just opening it
    kUnsupported,  ///< not to be had: nothing is known about others
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

  /// Asks for the lease; kAlone again while it is held. Breaking it sends SIGURG, which is ignored
  /// unless somebody asks for it.
  Answer Try();
  /// Idempotent. Those who wait to open the file go on.
  void Release();
  bool held() const { return held_; }
  /// It is held, and somebody waits for Release to open the file.
  bool wanted() const;
  /// Why the last Try was kUnsupported.
  const std::string& reason() const { return reason_; }

 private:
  int fd_;
  bool held_ = false;
  std::string reason_;
};

/// Empty where leases in `dir` tell of openers and of mappings alike, else why not. Tries it with a
/// file of its own.
std::string LeaseProblem(const std::filesystem::path& dir);

struct FileHolder {
  pid_t pid = 0;
  std::string name;  ///< of the process, as in /proc/PID/comm
};

/// Who has the file of `fd` open or mapped, `fd` itself and this process's own mappings left out.
/// Best effort: what /proc shows of other users and of other containers depends on the machine.
std::vector<FileHolder> WhoHas(int fd);
/// "process 12 (python), process 77 (vllm)", or that /proc does not show who.
std::string DescribeHolders(const std::vector<FileHolder>& holders);

}  // namespace deltawire
