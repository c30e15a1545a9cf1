// The side files (config.json, tokenizer) of the version that a directory's weights are: staged
// before the commit, put in place with it, removed when a later version has them no more, and put
// back when somebody changes them. Kept, by content, in a hidden directory of their own, which also
// marks the directory as a receiver's. Owner: a Buffer. Threads: one at a time. Cost: their size
// twice on the filesystem, once in memory. Byte table and order of steps: docs/lifecycle.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/layout/model_dir.h"

namespace deltawire::receiver {

class SideFileStore {
 public:
  explicit SideFileStore(std::filesystem::path dir);

  /// `dir` has been a receiver's before.
  static bool Marks(const std::filesystem::path& dir);
  /// Makes the hidden directory.
  Status Prepare();

  /// Reads what an earlier process left. A change that was staged for `whole` is finished, one for
  /// another state dropped. kDataLoss when a content is gone: all are to be staged anew.
  Status Recover(const Identity& whole);
  /// Keeps `files` beside what is in place; a crash later than this and a commit of `whole` ends in
  /// Recover finishing it. Nothing is written where nothing changes.
  Status Stage(const std::vector<SideFile>& files, const Identity& whole);
  /// Puts in place what is staged and removes what is ours and no longer belongs: a rename or an
  /// unlink for each file that differs.
  Status Install();
  /// After the weights have their name: what was staged is what is there.
  Status Finish();

  /// Names of files that were not as installed, and have been put back.
  StatusOr<std::vector<std::string>> PutBack();

 private:
  struct Entry {
    std::string name;
    uint64_t hash = 0;  // XXH3-64 of the content
    uint64_t bytes = 0;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  struct Manifest {
    Identity whole;
    std::vector<Entry> files;  // by name
  };
  /// As a file was when it was put in place.
  struct Seen {
    uint64_t inode = 0;
    int64_t seconds = 0, nanos = 0, bytes = 0;
    friend bool operator==(const Seen&, const Seen&) = default;
  };

  std::filesystem::path ContentPath(const Entry& entry) const;
  StatusOr<std::string> ReadContent(const Entry& entry) const;
  StatusOr<Manifest> ReadManifest(const char* name) const;
  Status WriteManifest(const char* name, const Manifest& manifest) const;
  /// What it looked like just before it had its name: who changes it after that is found out.
  StatusOr<Seen> Put(const Entry& entry);
  void RemoveUnused() const;
  static Seen Look(const std::filesystem::path& path);

  const std::filesystem::path dir_;
  const std::filesystem::path kept_;
  Manifest installed_;
  std::vector<Seen> seen_;  // of installed_.files
  bool staged_ = false;
  Manifest next_;
  std::vector<Seen> next_seen_;
};

}  // namespace deltawire::receiver
