#include "cli/checkpoints.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>

#include "common/layout/model_dir.h"

namespace deltawire::cli {
namespace {

namespace fs = std::filesystem;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Names, sizes and times of the files in `dir`; empty when it has no weights.
std::string Signature(const fs::path& dir) {
  std::vector<std::string> lines;
  bool weights = false;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    struct stat info {};
    if (stat(it->path().c_str(), &info) != 0) continue;
    weights |= it->path().extension() == ".safetensors";
    lines.push_back(fmt::format("{} {} {} {}.{} {}.{}\n", it->path().filename().string(),
                                info.st_ino, info.st_size, info.st_mtim.tv_sec,
                                info.st_mtim.tv_nsec, info.st_ctim.tv_sec, info.st_ctim.tv_nsec));
  }
  if (error || !weights) return "";
  std::sort(lines.begin(), lines.end());
  std::string all;
  for (const std::string& line : lines) all += line;
  return all;
}

// The number of shards that a file's name states: 4 for "model-00002-of-00004.safetensors".
uint64_t ShardsPromised(const std::string& stem) {
  const size_t of = stem.rfind("-of-");
  if (of == std::string::npos) return 0;
  return VersionFromName(stem.substr(of)).value_or(0);
}

bool AllShardsThere(const fs::path& dir) {
  uint64_t there = 0, promised = 0;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() != ".safetensors") continue;
    ++there;
    promised = std::max(promised, ShardsPromised(it->path().stem().string()));
  }
  return there >= promised;
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

CheckpointScanner::CheckpointScanner(fs::path parent, fs::path inside)
    : parent_(std::move(parent)), inside_(std::move(inside)) {}

StatusOr<CheckpointScanner::Found> CheckpointScanner::Scan() {
  Found found;
  std::map<std::string, std::string> now;
  std::error_code error;
  fs::directory_iterator it(parent_, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (IsTemporaryName(name) || done_.contains(name) || !it->is_directory(ignored)) continue;
    const fs::path dir = inside_.empty() ? it->path() : it->path() / inside_;
    std::string signature = Signature(dir);
    if (signature.empty()) continue;
    const auto version = VersionFromName(name);
    if (!version) {
      done_.insert(name);
      found.unnamed.push_back(name);
      continue;
    }
    const auto before = signatures_.find(name);
    const bool stable = before != signatures_.end() && before->second == signature;
    now[name] = signature;
    if (!stable || !AllShardsThere(dir) || !ModelDir::Open(dir, ModelDir::Access::kRead).ok()) {
      continue;
    }
    done_.insert(name);
    reported_[*version] = {name, std::move(signature)};
    found.complete.push_back({dir, *version});
  }
  if (error) {
    return Errorf(StatusCode::kNotFound, "{}: {}", parent_.string(), error.message());
  }
  signatures_ = std::move(now);
  std::sort(found.complete.begin(), found.complete.end(),
            [](const Checkpoint& a, const Checkpoint& b) { return a.version < b.version; });
  return found;
}

bool CheckpointScanner::ChangedSince(const Checkpoint& reported) {
  const auto& [name, signature] = reported_.at(reported.version);
  if (Signature(reported.path) == signature) return false;
  done_.erase(name);
  return true;
}

}  // namespace deltawire::cli
