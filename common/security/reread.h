// A value read from files, and read again when one of them changes or Reload is called. If the new
// files cannot be read, the old value stays in use; the error is logged and the read retried.
// Thread-safe. Now() checks the files at most once a second.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/sync.h"

namespace deltawire::security {

template <typename T>
class Reread {
 public:
  struct Reading {
    std::shared_ptr<const T> value;
    std::vector<std::string> files;  ///< every file that the value depends on
  };
  using Read = std::function<StatusOr<Reading>()>;

  static StatusOr<std::unique_ptr<Reread>> Create(Read read) {
    auto reread = std::unique_ptr<Reread>(new Reread(std::move(read)));
    DW_RETURN_IF_ERROR(reread->Reload());
    return reread;
  }

  std::shared_ptr<const T> Now() {
    {
      std::lock_guard lock(mu_);
      const auto now = SteadyClock::now();
      if (now < next_look_) return value_;
      next_look_ = now + kLookEvery;
      if (StampsOf(files_) == stamps_ && now < again_at_) return value_;
    }
    const Status status = Reload();
    if (!status.ok()) LogWarn("{}; what was read before stays in use", MessageOf(status));
    std::lock_guard lock(mu_);
    return value_;
  }

  /// Reads the files now. After an error the value is the old one.
  Status Reload() {
    // Take the stamps before reading the files: a change in between is then noticed next time.
    std::vector<std::string> files;
    {
      std::lock_guard lock(mu_);
      files = files_;
    }
    std::vector<Stamp> before = StampsOf(files);
    auto reading = read_();
    std::lock_guard lock(mu_);
    stamps_ = std::move(before);
    // Retry after an error: a file that the broken ones name may appear without a change to any of
    // them.
    again_at_ = reading.ok() ? SteadyClock::time_point::max() : SteadyClock::now() + kRetryEvery;
    if (!reading.ok()) return reading.status();
    if (files_ != reading->files) {
      // These stamps may be newer than the content, so read everything once more.
      stamps_ = StampsOf(reading->files);
      again_at_ = SteadyClock::now() + kRetryEvery;
    }
    value_ = std::move(reading->value);
    files_ = std::move(reading->files);
    return {};
  }

 private:
  static constexpr std::chrono::seconds kLookEvery{1}, kRetryEvery{5};

  struct Stamp {
    ino_t inode = 0;
    off_t size = -1;
    timespec changed{};
    friend bool operator==(const Stamp& a, const Stamp& b) {
      return a.inode == b.inode && a.size == b.size && a.changed.tv_sec == b.changed.tv_sec &&
             a.changed.tv_nsec == b.changed.tv_nsec;
    }
  };

  explicit Reread(Read read) : read_(std::move(read)) {}

  static std::vector<Stamp> StampsOf(const std::vector<std::string>& files) {
    std::vector<Stamp> stamps;
    for (const std::string& file : files) {
      struct stat at {};
      Stamp& stamp = stamps.emplace_back();
      if (stat(file.c_str(), &at) == 0) stamp = {at.st_ino, at.st_size, at.st_ctim};
    }
    return stamps;
  }

  const Read read_;
  Mutex mu_;
  std::shared_ptr<const T> value_;
  std::vector<std::string> files_;
  std::vector<Stamp> stamps_;
  SteadyClock::time_point next_look_{};
  SteadyClock::time_point again_at_ = SteadyClock::time_point::max();  // whatever the stamps
};

}  // namespace deltawire::security
