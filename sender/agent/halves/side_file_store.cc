#include "sender/agent/halves/side_file_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "common/base/checksum.h"
#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/unique_fd.h"
#include "common/base/write_error.h"
#include "common/shm/mapped_file.h"

namespace deltawire::sender {
namespace fs = std::filesystem;
namespace {

constexpr const char* kUseNames[] = {"half-0", "half-1", "next"};
constexpr const char* kSideFirstLine = "deltawire side 1";
constexpr const char* kHidden = ".new";

/// Syncs the content, since a disk's file system may store a later rename before the bytes.
Status WriteFile(const fs::path& path, std::string_view content) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (fd.get() < 0) return ErrnoError(fmt::format("create {}", path.native()));
  while (!content.empty()) {
    const ssize_t n = ::write(fd.get(), content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return WriteError(path);
    content.remove_prefix(static_cast<size_t>(n));
  }
  if (::fsync(fd.get()) != 0) return ErrnoError(fmt::format("fsync {}", path.native()));
  return absl::OkStatus();
}

Status Rename(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return ErrnoError(fmt::format("rename {} to {}", from.native(), to.native()));
}

/// kNotFound only if there is no such file.
StatusOr<std::string> ReadFile(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoError(fmt::format("open {}", path.native()));
  std::string content;
  char piece[16384];
  while (true) {
    const ssize_t n = ::read(fd.get(), piece, sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError(fmt::format("read {}", path.native()));
    if (n == 0) return content;
    content.append(piece, static_cast<size_t>(n));
  }
}

std::string Hex(uint64_t hash) { return fmt::format("{:016x}", hash); }

std::string UseText(uint64_t hash) {
  std::string text = fmt::format("{}\n{}\n", kSideFirstLine, Hex(hash));
  return text + fmt::format("xxh3 {}\n", Hex(Xxh3(AsBytes(text))));
}

/// Returns the hash in the text of a use. kDataLoss if UseText did not make that text.
StatusOr<uint64_t> ParseUse(const fs::path& name, const std::string& text) {
  uint64_t hash = 0;
  const size_t at = std::string_view(kSideFirstLine).size() + 1;
  if (text.size() > at + 16) hash = std::strtoull(text.substr(at, 16).c_str(), nullptr, 16);
  if (text == UseText(hash)) return hash;
  return Errorf(StatusCode::kDataLoss, "{} does not match its checksum; register the model anew",
                name.native());
}

}  // namespace

fs::path SideFileStore::PathOf(uint64_t hash) const { return directory_ / Hex(hash); }

bool SideFileStore::IsOwnName(std::string_view name) {
  if (name.starts_with(kHidden)) name.remove_prefix(std::string_view(kHidden).size());
  if (std::find(std::begin(kUseNames), std::end(kUseNames), name) != std::end(kUseNames))
    return true;
  return name.size() == Hex(0).size() &&
         name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Status SideFileStore::Clear() {
  std::error_code ec;
  fs::remove_all(directory_, ec);
  return ec ? Errorf(StatusCode::kInternal, "remove {}: {}", directory_.native(), ec.message())
            : absl::OkStatus();
}

Status SideFileStore::Write(const SideFileSet& set) const {
  std::error_code ec;
  const fs::path to = PathOf(set.hash), hidden = directory_ / (kHidden + Hex(set.hash));
  if (fs::is_directory(to, ec)) return absl::OkStatus();  // it was whole when it got this name
  fs::remove_all(hidden, ec);
  fs::create_directories(hidden, ec);
  if (ec) return Errorf(StatusCode::kInternal, "create {}: {}", hidden.native(), ec.message());
  for (const SideFile& f : set.files) {
    DW_RETURN_IF_ERROR(WriteFile(hidden / f.name, f.content));
  }
  return Rename(hidden, to);
}

Status SideFileStore::Keep(Use use, const std::shared_ptr<const SideFileSet>& set) {
  {
    MutexLock lock(mu_);
    while (keeping_) cv_.wait(lock);
    keeping_ = true;
  }
  // If an exception passes (no memory), the next call still gets its turn.
  const absl::Cleanup kept = [this] {
    MutexLock lock(mu_);
    keeping_ = false;
    cv_.notify_all();
  };
  return Store(use, *set);
}

std::shared_ptr<const SideFileSet> SideFileStore::next() const {
  MutexLock lock(mu_);
  return next_;
}

Status SideFileStore::SetNext(std::shared_ptr<const SideFileSet> set) {
  DW_RETURN_IF_ERROR(Keep(Use::kNext, set));
  MutexLock lock(mu_);
  next_ = std::move(set);
  return absl::OkStatus();
}

Status SideFileStore::LoadNext() {
  DW_ASSIGN_OR_RETURN(auto set, Load(Use::kNext));
  MutexLock lock(mu_);
  next_ = std::move(set);
  return absl::OkStatus();
}

Status SideFileStore::Store(Use use, const SideFileSet& set) const {
  const fs::path name = directory_ / kUseNames[static_cast<size_t>(use)];
  const std::string text = UseText(set.hash);
  std::error_code ec;
  if (fs::is_directory(PathOf(set.hash), ec)) {
    // Most versions have the side files of the version before.
    if (auto now = ReadFile(name); now.ok() && *now == text) return absl::OkStatus();
  }
  DW_RETURN_IF_ERROR(Write(set));
  const fs::path hidden = directory_ / (std::string(kHidden) + kUseNames[static_cast<size_t>(use)]);
  DW_RETURN_IF_ERROR(WriteFile(hidden, text));
  DW_RETURN_IF_ERROR(Rename(hidden, name));
  const Status removed = RemoveUnused();
  if (!removed.ok()) {
    LogWarn("unused side files cannot be removed yet: {}", MessageOf(removed));
  }
  return absl::OkStatus();
}

Status SideFileStore::RemoveUnused() const {
  std::vector<std::string> used;
  for (const char* use : kUseNames) {
    used.emplace_back(use);
    const auto text = ReadFile(directory_ / use);
    if (absl::IsNotFound(text.status())) continue;  // nothing is kept for it
    if (!text.ok()) return text.status();
    DW_ASSIGN_OR_RETURN(const uint64_t hash, ParseUse(directory_ / use, *text));
    used.push_back(Hex(hash));
  }
  std::vector<fs::path> unused;
  std::error_code ec;
  for (fs::directory_iterator it(directory_, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (std::find(used.begin(), used.end(), name) == used.end()) unused.push_back(it->path());
  }
  for (fs::path path : unused) {
    // A directory with a set's name must be whole, so it is renamed before its first file goes.
    const std::string name = path.filename().string();
    if (!name.starts_with('.')) {
      const fs::path hidden = directory_ / (kHidden + name);
      fs::remove_all(hidden, ec);
      if (!Rename(path, hidden).ok()) continue;
      path = hidden;
    }
    fs::remove_all(path, ec);
  }
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<const SideFileSet>> SideFileStore::Load(Use use) const {
  const fs::path name = directory_ / kUseNames[static_cast<size_t>(use)];
  const auto text = ReadFile(name);
  if (absl::IsNotFound(text.status())) return MakeSideFileSet({});
  if (!text.ok()) return text.status();
  DW_ASSIGN_OR_RETURN(const uint64_t hash, ParseUse(name, *text));
  std::vector<SideFile> files;
  std::error_code ec;
  for (fs::directory_iterator it(PathOf(hash), ec), end; !ec && it != end; it.increment(ec)) {
    DW_ASSIGN_OR_RETURN(std::string content, ReadFile(it->path()));
    files.push_back({it->path().filename().string(), std::move(content)});
  }
  DW_ASSIGN_OR_RETURN(auto set, MakeSideFileSet(std::move(files)));
  if (set->hash == hash) return set;
  return Errorf(StatusCode::kDataLoss,
                "{} does not have the files that were written there; register the model anew",
                PathOf(hash).native());
}

}  // namespace deltawire::sender
