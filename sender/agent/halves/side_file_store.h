// A model's side files on disk, one directory per content, so that each version keeps its own set.
// After a crash at any point every set is whole (docs/lifecycle.md, "Side files"). The next
// version's set is in memory, too. Errors name the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/checked_mutex.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/serving/side_file_set.h"

namespace deltawire::sender {

class SideFileStore {
 public:
  /// The user of a set: one of the halves, or the next version.
  enum class Use : uint8_t { kHalf0 = 0, kHalf1 = 1, kNext = 2 };

  explicit SideFileStore(std::filesystem::path directory) : directory_(std::move(directory)) {}

  /// Whether a directory entry of this name is the store's own: a set or a use, perhaps while it is
  /// made or removed.
  static bool IsOwnName(std::string_view name);

  /// Removes everything.
  Status Clear();
  /// Keeps `set` for `use` from now on, and removes sets without a use. A crash leaves the old set
  /// or the new one. Waits for other calls, since each writes files.
  Status Keep(Use use, const std::shared_ptr<const SideFileSet>& set) ABSL_LOCKS_EXCLUDED(mu_);
  /// Loads the set that was kept for `use`, or an empty set if there is none. kDataLoss when its
  /// files do not have its hash.
  StatusOr<std::shared_ptr<const SideFileSet>> Load(Use use) const;

  /// The set of the next version. REQUIRES: SetNext or LoadNext.
  std::shared_ptr<const SideFileSet> next() const;
  /// Keeps the next version's set.
  Status SetNext(std::shared_ptr<const SideFileSet> set);
  /// Loads the next version's set.
  Status LoadNext();

 private:
  std::filesystem::path PathOf(uint64_t hash) const;
  Status Write(const SideFileSet& set) const;
  /// Removes sets without a use, unless a use cannot be read.
  Status RemoveUnused() const;

  Status Store(Use use, const SideFileSet& set) const;

  const std::filesystem::path directory_;
  mutable CheckedMutex mu_;
  CondVar cv_;  // a call of Keep has ended
  bool keeping_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<const SideFileSet> next_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire::sender
