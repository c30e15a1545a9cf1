// A simulated process: a name, its fibers, and what the kernel would take back from it. Its files
// are real ones; kernel_calls.cc notes every descriptor and mapping that its fibers open.
// Owner: by shared_ptr, its fibers and the world. Threads: one.
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
  /// As SIGKILL: its fibers stop where they are, its descriptors are closed (locks and leases go
  /// with them), its mappings go; memory stays allocated. When the caller is one of its fibers it
  /// does not return.
  void Kill();
  /// Killed at its n-th point from now on; 0: not.
  void KillAfter(uint64_t points) { points_left_ = points; }
  /// True when this point is that one.
  bool Due() { return points_left_ != 0 && --points_left_ == 0; }
  /// As fs.leases-enable: none is granted from now on.
  void DenyLeases() { leases_ = false; }
  bool leases() const { return leases_; }
  /// Called when it has been killed.
  void OnDeath(std::function<void()> then) { on_death_.push_back(std::move(then)); }

  /// The mapping of a file, or null.
  const Mapping* Find(ino_t inode) const;
  /// `at` lies in a file that it has mapped.
  bool Maps(const void* at) const;

  // Of kernel_calls.cc.
  void Opened(int fd) { fds_.insert(fd); }
  void Closed(int fd) { fds_.erase(fd); }
  void Mapped(const Mapping& mapping) { mappings_.push_back(mapping); }
  void Unmapped(const void* base);

 private:
  void ReleaseAll();

  const std::string name_;
  bool leases_ = true;
  bool alive_ = true;
  uint64_t points_left_ = 0;
  std::set<int> fds_;
  std::vector<Mapping> mappings_;
  std::vector<std::function<void()>> on_death_;
};

/// The process of the fiber that runs; null outside.
Process* ThisProcess();

}  // namespace deltawire::simulation
