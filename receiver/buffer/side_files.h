// The side files (config.json, tokenizer) of the version that a directory's weights have: staged
// before the commit, put in place with it, removed when a later version lacks them, and put back
// when another process changes them. A hidden directory keeps their contents, and marks the model's
// directory as a receiver's. They take twice their size on the filesystem. A Buffer owns it; one
// thread at a time uses it. docs/lifecycle.md has the format and the order of steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/layout/model_dir.h"

namespace deltawire::receiver {

class InstalledSideFiles {
 public:
  explicit InstalledSideFiles(std::filesystem::path dir);

  /// True when `dir` has been a receiver's before.
  static bool Marks(const std::filesystem::path& dir);
  /// Makes the hidden directory.
  Status Prepare();

  /// Reads the files that an earlier process left. Finishes a change that was staged for `whole`,
  /// and discards one for another state. kDataLoss when a file's content is lost: all must be
  /// staged anew.
  Status Recover(const Identity& whole);
  /// Keeps `files` beside the installed ones. If `whole` is then committed and the process crashes,
  /// Recover finishes the change. If `files` are the installed ones, writes only contents that were
  /// lost. Undoes the files of an earlier call that a failed commit has installed in part.
  Status Stage(const std::vector<SideFile>& files, const Identity& whole);
  /// Puts the staged files in place and removes installed files that no longer belong: a rename or
  /// an unlink for each file that differs.
  Status Install();
  /// Records the staged files as installed, after the weights have their name. If that fails, they
  /// count as installed, and the next PutBack or Stage records them.
  Status Finish();

  /// The installed files. kDataLoss when a file's content is lost.
  StatusOr<std::vector<SideFile>> Read() const;

  /// Puts back files that are no longer as installed, and returns their names; records first what
  /// Finish could not. kDataLoss when a file's content is lost.
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
  /// Inode, time and size of a file when it was put in place.
  struct Seen {
    uint64_t inode = 0;
    int64_t seconds = 0, nanos = 0, bytes = 0;
    friend bool operator==(const Seen&, const Seen&) = default;
  };

  std::filesystem::path ContentPath(const Entry& entry) const;
  StatusOr<std::string> ReadContent(const Entry& entry) const;
  StatusOr<Manifest> ReadManifest(const char* name) const;
  Status WriteManifest(const char* name, const Manifest& manifest) const;
  /// Puts the file in place, and returns how it looked just before it got its name, so that any
  /// later change shows.
  StatusOr<Seen> Put(const Entry& entry);
  /// Writes the content, unless it lies there. A file that looks as it did when its content was
  /// last found right is not read again.
  Status KeepContent(const SideFile& file, const Entry& entry);
  Status KeepAll(const std::vector<SideFile>& files);
  Status Record();
  /// Makes the directory what it was before `next` was installed, in part or not at all.
  Status Discard(const Manifest& next);
  void RemoveUnused();
  static Seen Look(const std::filesystem::path& path);
  /// Whether the file is there and has the entry's content.
  static bool HasContent(const std::filesystem::path& path, const Entry& entry);

  const std::filesystem::path dir_;
  const std::filesystem::path kept_;
  Manifest installed_;
  std::vector<Seen> seen_;  // of installed_.files
  bool staged_ = false;
  bool recorded_ = true;  // the list of installed files is what installed_ is
  Manifest next_;
  std::vector<Seen> next_seen_;
  std::map<std::string, Seen> contents_seen_;  // by file name: when its content was found right
};

}  // namespace deltawire::receiver
