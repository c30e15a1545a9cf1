// A simulated process: a name, its fibers, and the descriptors and mappings that a kernel would
// release at its death (kernel_calls.cc records them; the files are real). Owner: its fibers and
// the world, by shared_ptr. Threads: one. Cost: small. Errors: none.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace deltawire::simulation {

class Process {
 public:
  explicit Process(std::string name) : name_(std::move(name)) {}
  ~Process();
  Process(const Process&) = delete;

  struct Mapping {
    std::byte* base = nullptr;
    size_t bytes = 0;
    ino_t inode = 0;
    bool writable = false;
  };

  const std::string& name() const { return name_; }
  bool alive() const { return alive_; }
  /// Like SIGKILL: its fibers stop where they are, its descriptors are closed (locks and leases go
  /// with them), its mappings are unmapped; its memory stays allocated. Does not return if called
  /// from one of its own fibers.
  void Kill();
  /// Kills the process at its n-th point from now on; 0: does not.
  void KillAfter(uint64_t points) { points_left_ = points; }
  /// Counts a point; true when the process is to be killed there.
  bool Due() { return points_left_ != 0 && --points_left_ == 0; }
  /// Like fs.leases-enable = 0: no lease is granted from now on.
  void DenyLeases() { leases_ = false; }
  bool leases() const { return leases_; }
  /// The share of calls that need room on the file system and find none; a write may be short.
  void SetFileFaults(double share) { file_faults_ = share; }
  double file_faults() const { return file_faults_; }
  /// The file system knows no RENAME_EXCHANGE from now on.
  void DenyExchange() { exchange_ = false; }
  bool exchange() const { return exchange_; }
  /// The number of its machine's start.
  void SetBoot(uint64_t boot) { boot_ = boot; }
  uint64_t boot() const { return boot_; }
  /// Adds a function that is called after the process was killed.
  void OnDeath(std::function<void()> then) { on_death_.push_back(std::move(then)); }

  /// The mapping of a file, or null.
  const Mapping* Find(ino_t inode) const;
  const std::vector<Mapping>& mappings() const { return mappings_; }
  /// Whether `at` lies in a file that the process has mapped.
  bool Maps(const void* at) const;

  // For kernel_calls.cc.
  void Opened(int fd) { fds_.insert(fd); }
  void Closed(int fd) { fds_.erase(fd); }
  void Mapped(const Mapping& mapping) { mappings_.push_back(mapping); }
  void Unmapped(const void* base);

 private:
  void ReleaseAll();

  const std::string name_;
  bool leases_ = true;
  double file_faults_ = 0;
  bool exchange_ = true;
  uint64_t boot_ = 0;
  bool alive_ = true;
  uint64_t points_left_ = 0;
  std::set<int> fds_;
  std::vector<Mapping> mappings_;
  std::vector<std::function<void()>> on_death_;
};

/// The process of the running fiber; null outside of fibers.
Process* ThisProcess();

}  // namespace deltawire::simulation
