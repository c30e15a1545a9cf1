#include "receiver/buffer/side_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <sstream>
#include <system_error>

#include "common/base/checksum.h"
#include "common/base/log.h"
#include "common/base/write_error.h"
#include "common/shm/dir_lock.h"
#include "common/shm/own_directory.h"

namespace deltawire::receiver {
namespace fs = std::filesystem;
namespace {

constexpr const char* kKept = kReceiverMark;
constexpr const char* kInstalled = "installed";
constexpr const char* kNext = "next";
constexpr const char* kFirstLine = "deltawire side files 1";

/// Writes a file atomically, replacing an existing one. `ready` is called with the path of the
/// temporary file just before it gets its name.
Status WriteFile(const fs::path& path, std::string_view content,
                 const std::function<void(const fs::path&)>& ready = nullptr) {
  const fs::path temporary = path.parent_path() / ("." + path.filename().native() + ".new");
  std::error_code ignored;
  fs::remove(temporary, ignored);
  {
    std::ofstream out(temporary, std::ios::binary);
    out << content;
    out.close();
    if (!out) return WriteError(temporary);
  }
  // Files in the hidden directory are for their owner only; all others get the weights' mode.
  if (::chmod(temporary.c_str(), FileModeIn(path.parent_path())) != 0) {
    return ErrnoError("set the mode of " + temporary.native());
  }
  if (ready) ready(temporary);
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    return ErrnoError(fmt::format("rename {} to {}", temporary.native(), path.native()));
  }
  return absl::OkStatus();
}

StatusOr<std::string> ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return ErrnoError("read " + path.native());
  return std::string(std::istreambuf_iterator<char>(in), {});
}

}  // namespace

InstalledSideFiles::InstalledSideFiles(fs::path dir) : dir_(std::move(dir)), kept_(dir_ / kKept) {}

bool InstalledSideFiles::Marks(const fs::path& dir) {
  std::error_code ec;
  return fs::is_directory(fs::symlink_status(dir / kKept, ec));
}

Status InstalledSideFiles::Prepare() { return MakeOwnDirectory(kept_, 0700); }

fs::path InstalledSideFiles::ContentPath(const Entry& entry) const {
  return kept_ / fmt::format("{:016x}", entry.hash);
}

StatusOr<std::string> InstalledSideFiles::ReadContent(const Entry& entry) const {
  DW_ASSIGN_OR_RETURN(std::string content, ReadFile(ContentPath(entry)));
  if (content.size() == entry.bytes && Xxh3(AsBytes(content)) == entry.hash) return content;
  return Errorf(StatusCode::kDataLoss, "{} is not the content of {} that was written there",
                ContentPath(entry).native(), entry.name);
}

StatusOr<InstalledSideFiles::Manifest> InstalledSideFiles::ReadManifest(const char* name) const {
  DW_ASSIGN_OR_RETURN(const std::string text, ReadFile(kept_ / name));
  const auto damaged = [&] {
    return Errorf(StatusCode::kDataLoss, "{} is corrupt", (kept_ / name).native());
  };
  const size_t last = text.rfind("xxh3 ");
  if (last == std::string::npos ||
      text.substr(last) != fmt::format("xxh3 {:016x}\n", Xxh3(AsBytes(text.substr(0, last))))) {
    return damaged();
  }
  std::istringstream in(text.substr(0, last));
  Manifest manifest;
  std::string line, word, lineage;
  if (!std::getline(in, line) || line != kFirstLine) return damaged();
  Identity& whole = manifest.whole;
  if (!(in >> word >> lineage >> std::dec >> whole.id.epoch >> whole.id.version >> std::hex >>
        whole.root) ||
      word != "of" || !Hash128::FromHex(lineage)) {
    return damaged();
  }
  whole.lineage = *Hash128::FromHex(lineage);
  for (Entry e; in >> word >> std::hex >> e.hash >> std::dec >> e.bytes && in.get() == ' ';) {
    if (word != "file" || !std::getline(in, e.name) || !IsSideFileName(e.name)) return damaged();
    manifest.files.push_back(e);
  }
  return manifest;
}

Status InstalledSideFiles::WriteManifest(const char* name, const Manifest& manifest) const {
  const Identity& w = manifest.whole;
  std::string text = fmt::format("{}\nof {} {} {} {:016x}\n", kFirstLine, w.lineage.Hex(),
                                 w.id.epoch, w.id.version, w.root);
  for (const Entry& e : manifest.files) {
    text += fmt::format("file {:016x} {} {}\n", e.hash, e.bytes, e.name);
  }
  text += fmt::format("xxh3 {:016x}\n", Xxh3(AsBytes(text)));
  return WriteFile(kept_ / name, text);
}

InstalledSideFiles::Seen InstalledSideFiles::Look(const fs::path& path) {
  struct stat file;
  if (::lstat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return {};
  return {file.st_ino, file.st_mtim.tv_sec, file.st_mtim.tv_nsec, file.st_size};
}

StatusOr<InstalledSideFiles::Seen> InstalledSideFiles::Put(const Entry& entry) {
  DW_ASSIGN_OR_RETURN(const std::string content, ReadContent(entry));
  Seen seen;
  DW_RETURN_IF_ERROR(
      WriteFile(dir_ / entry.name, content, [&](const fs::path& path) { seen = Look(path); }));
  return seen;
}

Status InstalledSideFiles::KeepContent(const SideFile& file, const Entry& entry) {
  const fs::path path = ContentPath(entry);
  Seen& seen = contents_seen_[path.filename().native()];
  const Seen now = Look(path);
  if (now.inode != 0 && now == seen) return absl::OkStatus();
  if (!ReadContent(entry).ok()) DW_RETURN_IF_ERROR(WriteFile(path, file.content));
  seen = Look(path);
  return absl::OkStatus();
}

Status InstalledSideFiles::KeepAll(const std::vector<SideFile>& files) {
  std::error_code ignored;
  if (!fs::exists(kept_, ignored)) recorded_ = false;  // another process has removed it
  DW_RETURN_IF_ERROR(Prepare());
  for (const SideFile& f : files) {
    DW_RETURN_IF_ERROR(KeepContent(f, {f.name, Xxh3(AsBytes(f.content)), f.content.size()}));
  }
  return Record();
}

StatusOr<std::vector<SideFile>> InstalledSideFiles::Read() const {
  std::vector<SideFile> files;
  for (const Entry& entry : installed_.files) {
    DW_ASSIGN_OR_RETURN(std::string content, ReadContent(entry));
    files.push_back({entry.name, std::move(content)});
  }
  return files;
}

Status InstalledSideFiles::Stage(const std::vector<SideFile>& files, const Identity& whole) {
  Manifest next{whole, {}};
  for (const SideFile& f : files) {
    // The sender checked the name too, but a name from the network must not become a path
    // unchecked.
    if (!IsSideFileName(f.name)) {
      return Errorf(StatusCode::kInvalidArgument, "side file \"{}\" has a name that is not allowed",
                    f.name);
    }
    next.files.push_back({f.name, Xxh3(AsBytes(f.content)), f.content.size()});
  }
  std::sort(next.files.begin(), next.files.end(),
            [](const Entry& a, const Entry& b) { return a.name < b.name; });
  DW_RETURN_IF_ERROR(Record());
  // An earlier commit staged its files and then failed. If they are these, they stay.
  if (staged_ && next.files != next_.files) {
    const Status dropped = Discard(next_);
    if (!dropped.ok() && !absl::IsDataLoss(dropped)) return dropped;
    staged_ = false;
  }
  const Status kept = KeepAll(files);
  if (next.files == installed_.files) {
    // They are in place. What was kept of them is for later: to put them back, and for a relay.
    if (!kept.ok()) LogWarn("{}: {}", dir_.native(), MessageOf(kept));
    return absl::OkStatus();
  }
  DW_RETURN_IF_ERROR(kept);
  DW_RETURN_IF_ERROR(WriteManifest(kNext, next));
  next_ = std::move(next);
  staged_ = true;
  return absl::OkStatus();
}

Status InstalledSideFiles::Install() {
  if (!staged_) return absl::OkStatus();
  next_seen_.clear();
  for (const Entry& e : next_.files) {
    const auto same = std::find(installed_.files.begin(), installed_.files.end(), e);
    const size_t i = static_cast<size_t>(same - installed_.files.begin());
    const Seen now = Look(dir_ / e.name);
    if (same != installed_.files.end() && now.inode != 0 && now == seen_[i]) {
      next_seen_.push_back(now);
      continue;
    }
    DW_ASSIGN_OR_RETURN(const Seen seen, Put(e));
    next_seen_.push_back(seen);
  }
  for (const Entry& e : installed_.files) {
    const bool stays = std::any_of(next_.files.begin(), next_.files.end(),
                                   [&](const Entry& n) { return n.name == e.name; });
    if (!stays) ::unlink((dir_ / e.name).c_str());
  }
  return absl::OkStatus();
}

Status InstalledSideFiles::Discard(const Manifest& next) {
  for (const Entry& e : next.files) {
    const bool stays = std::any_of(installed_.files.begin(), installed_.files.end(),
                                   [&](const Entry& i) { return i.name == e.name; });
    // A file of this name with other bytes is the user's: it was not replaced yet.
    if (!stays && HasContent(dir_ / e.name, e)) ::unlink((dir_ / e.name).c_str());
  }
  const Status put_back = PutBack().status();
  if (!put_back.ok() && !absl::IsDataLoss(put_back)) return put_back;
  // Last, so that a process that is killed before does all of it again.
  ::unlink((kept_ / kNext).c_str());
  return put_back;
}

Status InstalledSideFiles::Finish() {
  if (staged_) {
    installed_ = std::move(next_);
    seen_ = std::move(next_seen_);
    staged_ = recorded_ = false;
  }
  return Record();
}

Status InstalledSideFiles::Record() {
  if (recorded_) return absl::OkStatus();
  if (::rename((kept_ / kNext).c_str(), (kept_ / kInstalled).c_str()) != 0) {
    if (errno != ENOENT) return ErrnoError(fmt::format("rename {}", (kept_ / kNext).native()));
    DW_RETURN_IF_ERROR(WriteManifest(kInstalled, installed_));
  }
  recorded_ = true;
  RemoveUnused();
  return absl::OkStatus();
}

bool InstalledSideFiles::HasContent(const fs::path& path, const Entry& entry) {
  if (Look(path).inode == 0) return false;
  const auto there = ReadFile(path);
  return there.ok() && there->size() == entry.bytes && Xxh3(AsBytes(*there)) == entry.hash;
}

void InstalledSideFiles::RemoveUnused() {
  std::set<std::string> used = {kInstalled, kNext};
  for (const Entry& e : installed_.files) used.insert(ContentPath(e).filename().native());
  std::vector<fs::path> unused;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(kept_, ec)) {
    if (!used.contains(entry.path().filename().native())) unused.push_back(entry.path());
  }
  for (const fs::path& path : unused) fs::remove(path, ec);
  std::erase_if(contents_seen_, [&](const auto& seen) { return !used.contains(seen.first); });
}

Status InstalledSideFiles::Recover(const Identity& whole) {
  DW_RETURN_IF_ERROR(Prepare());
  auto installed = ReadManifest(kInstalled);
  if (installed.ok()) installed_ = std::move(*installed);
  // Empty entries equal no file's, so PutBack reads every file.
  seen_.assign(installed_.files.size(), Seen{});
  auto next = ReadManifest(kNext);
  if (next.ok() && next->whole == whole) {
    next_ = std::move(*next);
    staged_ = true;
    DW_RETURN_IF_ERROR(Install());
    return Finish();
  }
  const Status dropped = next.ok() ? Discard(*next) : PutBack().status();
  ::unlink((kept_ / kNext).c_str());
  if (!installed.ok() && !absl::IsNotFound(installed.status())) return installed.status();
  RemoveUnused();
  return dropped;
}

StatusOr<std::vector<std::string>> InstalledSideFiles::PutBack() {
  DW_RETURN_IF_ERROR(Record());
  std::vector<std::string> names;
  for (size_t i = 0; i < installed_.files.size(); ++i) {
    const Entry& e = installed_.files[i];
    const fs::path path = dir_ / e.name;
    const Seen now = Look(path);
    if (now.inode != 0 && now == seen_[i]) continue;
    if (now.inode != 0 && HasContent(path, e)) {
      seen_[i] = now;
      continue;
    }
    const auto put = Put(e);
    if (!put.ok() && !absl::IsDataLoss(put.status()) && !absl::IsNotFound(put.status())) {
      return put.status();  // e.g. no descriptor or no space: the next call tries again
    }
    if (!put.ok()) {
      // The content to restore is lost. Counting none as installed makes the next commit stage all.
      installed_.files.clear();
      seen_.clear();
      return Errorf(StatusCode::kDataLoss, "{}", MessageOf(put.status()));
    }
    seen_[i] = *put;
    names.push_back(e.name);
  }
  return names;
}

}  // namespace deltawire::receiver
