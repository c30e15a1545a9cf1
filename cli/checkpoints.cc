#include "cli/checkpoints.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>

#include "common/layout/model_dir.h"
#include "common/layout/weight_index.h"

namespace deltawire::cli {
namespace {

namespace fs = std::filesystem;

// The limit on the unchanged scans that a checkpoint needs. Each change after its publish doubles
// the need.
constexpr int kMostNeeded = 32;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Returns the names, sizes and times of the files in `dir`, or "" if it has no weights. With
// `model`, only published files count, and the inode's change time is left out, because a new link
// or mode changes it, too.
std::string Signature(const fs::path& dir, bool model) {
  std::vector<std::string> lines;
  bool weights = false;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    struct stat info {};
    if (stat(it->path().c_str(), &info) != 0) continue;
    const std::string name = it->path().filename().string();
    const bool weight = name.ends_with(".safetensors");
    weights |= weight;
    const bool part =
        weight || name == kWeightIndexName || (IsSideFileName(name) && !IsForeignWeightFile(name));
    if (model && (!part || !S_ISREG(info.st_mode))) continue;
    lines.push_back(fmt::format("{} {} {} {}.{} {}.{}\n", name, info.st_ino, info.st_size,
                                info.st_mtim.tv_sec, info.st_mtim.tv_nsec,
                                model ? 0 : info.st_ctim.tv_sec, model ? 0 : info.st_ctim.tv_nsec));
  }
  if (error || !weights) return "";
  std::sort(lines.begin(), lines.end());
  std::string all;
  for (const std::string& line : lines) all += line;
  return all;
}

// Returns the number of shards that a file's name states: 4 for "model-00002-of-00004.safetensors".
uint64_t ShardsPromised(const std::string& stem) {
  const size_t of = stem.rfind("-of-");
  if (of == std::string::npos) return 0;
  return VersionFromName(stem.substr(of)).value_or(0);
}

struct Shards {
  uint64_t there = 0, promised = 0;
};

Shards CountShards(const fs::path& dir) {
  Shards shards;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() != ".safetensors") continue;
    ++shards.there;
    shards.promised = std::max(shards.promised, ShardsPromised(it->path().stem().string()));
  }
  return shards;
}

// Returns why a directory with unchanging files is incomplete, or nullopt if it is complete.
std::optional<PendingCheckpoint> WhyIncomplete(const std::string& name, const fs::path& dir) {
  using Reason = PendingCheckpoint::Reason;
  const Shards shards = CountShards(dir);
  if (shards.there < shards.promised) {
    return PendingCheckpoint{name, Reason::kShardsMissing,
                             fmt::format("{} of {} shards", shards.there, shards.promised)};
  }
  const Status opened = ModelDir::Open(dir, ModelDir::Access::kRead).status();
  if (opened.ok()) return std::nullopt;
  return PendingCheckpoint{name, Reason::kUnreadable, std::string(MessageOf(opened))};
}

// Trainers write under such names and rename the directory when they are done.
bool IsTemporaryName(std::string_view name) {
  return name.starts_with('.') || name.starts_with("tmp") || name.ends_with(".tmp");
}

}  // namespace

std::optional<uint64_t> VersionFromName(std::string_view name) {
  size_t begin = name.size();
  while (begin > 0 && IsDigit(name[begin - 1])) --begin;
  const std::string_view digits = name.substr(begin);
  uint64_t version = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), version);
  if (digits.empty() || error != std::errc() || version == 0) return std::nullopt;
  return version;
}

bool HoldsWeights(const fs::path& dir) { return CountShards(dir).there > 0; }

CheckpointScanner::CheckpointScanner(fs::path parent, fs::path inside)
    : parent_(std::move(parent)), inside_(std::move(inside)) {}

void CheckpointScanner::LookAgain(const std::string& name, const fs::path& dir, Seen& seen) {
  if (name != published_) return;
  const std::string content = Signature(dir, true);
  if (content == seen.content) return;
  published_.clear();
  if (content.empty()) return;  // it was removed
  // A writer paused for longer than the last wait, so the next wait is twice as long.
  seen = {.needed = std::min(2 * seen.needed, kMostNeeded), .old = seen.old, .again = true};
}

StatusOr<CheckpointScanner::Found> CheckpointScanner::Scan() {
  using Reason = PendingCheckpoint::Reason;
  Found found;
  std::set<std::string> there;
  std::error_code error;
  fs::directory_iterator it(parent_, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (IsTemporaryName(name) || unnamed_.contains(name) || !it->is_directory(ignored)) continue;
    const fs::path dir = inside_.empty() ? it->path() : it->path() / inside_;
    const auto version = VersionFromName(name);
    if (!version) {
      if (!HoldsWeights(dir)) continue;
      unnamed_.insert(name);
      found.unnamed.push_back(name);
      continue;
    }
    there.insert(name);
    const auto [place, fresh] = seen_.try_emplace(name);
    Seen& seen = place->second;
    if (fresh) seen.old = first_;
    if (seen.reported) LookAgain(name, dir, seen);
    if (seen.reported) continue;
    std::string files = Signature(dir, false);
    const bool weights = !files.empty();
    // The first look has nothing to compare with, and is not reported as a change.
    const bool looked = !fresh && !(seen.again && seen.files.empty());
    seen.quiet = looked && files == seen.files ? seen.quiet + 1 : 0;
    seen.files = std::move(files);
    if (!looked) continue;
    if (seen.quiet < seen.needed) {
      if (weights) found.pending.push_back({name, Reason::kBeingWritten, ""});
      continue;
    }
    if (!weights) {
      found.pending.push_back({name, Reason::kNoWeights, ""});
      continue;
    }
    if (auto pending = WhyIncomplete(name, dir)) {
      found.pending.push_back(*std::move(pending));
      continue;
    }
    seen.reported = true;
    seen.content = Signature(dir, true);
    names_[*version] = name;
    found.complete.push_back({dir, *version, seen.old, seen.again});
  }
  if (error) {
    return Errorf(StatusCode::kNotFound, "the watched directory {} cannot be read: {}",
                  parent_.string(), error.message());
  }
  first_ = false;
  std::erase_if(seen_, [&](const auto& entry) {
    return !entry.second.reported && !there.contains(entry.first);
  });
  std::sort(found.complete.begin(), found.complete.end(),
            [](const Checkpoint& a, const Checkpoint& b) { return a.version < b.version; });
  std::sort(found.pending.begin(), found.pending.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return found;
}

void CheckpointScanner::Published(const Checkpoint& reported) {
  published_ = names_.at(reported.version);
}

bool CheckpointScanner::ChangedSince(const Checkpoint& reported) {
  Seen& seen = seen_.at(names_.at(reported.version));
  if (Signature(reported.path, false) == seen.files) return false;
  seen = {.needed = seen.needed, .old = seen.old, .again = seen.again};
  return true;
}

}  // namespace deltawire::cli
