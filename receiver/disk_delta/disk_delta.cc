#include "receiver/disk_delta/disk_delta.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/trace.h"
#include "common/base/trusted_place.h"
#include "common/base/unique_fd.h"
#include "common/base/write_error.h"
#include "receiver/disk_delta/payload.h"

namespace deltawire::receiver {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr const char* kMark = "deltawire.json";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kLatest = "latest";
constexpr const char* kLock = ".deltawire.lock";
constexpr std::string_view kEncodings[] = {"xor", "overwrite"};
static_assert(std::size(kEncodings) == static_cast<size_t>(DiskDeltaEncoding::kOverwrite) + 1);

// The bytes of tensors that are encoded between two calls of `stop`.
constexpr uint64_t kBatchBytes = 256 << 20;
// A file of a version is ended when it has so many payload bytes.
constexpr uint64_t kFileBytes = 1 << 30;

constexpr std::string_view kVersionPrefix = "weight_v";
std::string VersionName(uint64_t version) {
  return fmt::format("{}{:06}", kVersionPrefix, version);
}
std::string HiddenName(uint64_t version) {
  return fmt::format(".{}.partial", VersionName(version));
}
/// Numbers of another lineage or epoch mean other bytes, and a chain only goes forwards.
std::string RunName(const Identity& id) {
  return fmt::format("{}-{}", id.lineage.Hex(), id.id.epoch);
}

std::optional<uint64_t> ParseNumber(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// The version whose directory has exactly this name. Others beside it, such as a copy that
/// somebody made, are not ours, whatever is in them.
std::optional<uint64_t> VersionOf(const std::string& name) {
  if (!name.starts_with(kVersionPrefix)) return std::nullopt;
  const auto version = ParseNumber(std::string_view(name).substr(kVersionPrefix.size()));
  return version && VersionName(*version) == name ? version : std::nullopt;
}

bool IsPartial(const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == 0 || dot == std::string::npos) return false;
  const auto version = VersionOf(name.substr(1, dot - 1));
  return version && HiddenName(*version) == name;
}

bool IsRun(const std::string& name) {
  constexpr size_t kDigits = 32;
  if (name.size() <= kDigits || name[kDigits] != '-') return false;
  const auto lineage = Hash128::FromHex(name.substr(0, kDigits));
  const auto epoch = ParseNumber(std::string_view(name).substr(kDigits + 1));
  if (!lineage || !epoch) return false;
  return RunName({.lineage = *lineage, .id = {.epoch = *epoch}}) == name;
}

/// Returns the names in a directory, or none if it cannot be read.
std::vector<fs::directory_entry> Entries(const fs::path& directory) {
  std::vector<fs::directory_entry> all;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    all.push_back(*it);
  }
  return all;
}

Status Cancelled() { return absl::CancelledError("it was not written within its time limit"); }

/// Makes a new file that nobody but its owner may write. `mode`: of a directory beside it, whose
/// bits for reading it gets, whatever the umask is.
StatusOr<UniqueFd> NewFile(const fs::path& path, mode_t mode) {
  // An existing file is never reused: its name may be another process's link.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoError(fmt::format("remove {}", path.native()));
  }
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (fd.get() < 0 || ::fchmod(fd.get(), 0600 | (mode & 0044)) != 0) {
    return ErrnoError(fmt::format("create {}", path.native()));
  }
  return fd;
}

/// The same for a directory. One that is there stays as it is; a link is an error.
Status NewDirectory(const fs::path& path, mode_t mode) {
  const bool made = ::mkdir(path.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) return ErrnoError(fmt::format("make {}", path.native()));
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat now {};
  if (fd.get() < 0 || ::fstat(fd.get(), &now) != 0 ||
      (made && ::fchmod(fd.get(), 0700 | (mode & 0055) | (now.st_mode & S_ISGID)) != 0)) {
    return ErrnoError(fmt::format("make {}", path.native()));
  }
  return absl::OkStatus();
}

/// The mode of the directory that versions are written to, which is made for this user alone. An
/// error if somebody else could put something into it.
StatusOr<mode_t> OwnDirectory(const fs::path& named) {
  // Behind a slash its parent would be the directory itself.
  const fs::path path = named.has_filename() ? named : named.parent_path();
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  if (error) return ErrnoError(fmt::format("make {}", path.native()), error.value());
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoError(fmt::format("make {}", path.native()));
  }
  struct stat now {};
  if (::stat(path.c_str(), &now) != 0) return ErrnoError(fmt::format("stat {}", path.native()));
  const bool foreign = !IsOwnersOrRoots(path, now.st_uid);
  if (foreign || (now.st_mode & 0022) != 0) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "{} {}: whoever may write there could lead this receiver to files elsewhere; {}",
                  path.native(),
                  foreign
                      ? fmt::format("belongs to user {}", now.st_uid)
                      : fmt::format("may be written by others (mode {:04o})", now.st_mode & 07777),
                  foreign ? "name a directory of the receiver's user"
                          : "take that right away (chmod go-w), or name another directory");
  }
  return now.st_mode;
}

/// Makes the file, or replaces it, and syncs it: a rename may else be stored before the bytes.
Status WriteFile(const fs::path& path, const std::vector<Bytes>& parts, mode_t mode) {
  DW_ASSIGN_OR_RETURN(const UniqueFd fd, NewFile(path, mode));
  for (Bytes part : parts) {
    while (!part.empty()) {
      const ssize_t n = ::write(fd.get(), part.data(), part.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return WriteError(path);
      part = part.subspan(static_cast<size_t>(n));
    }
  }
  if (::fsync(fd.get()) != 0) return ErrnoError(fmt::format("fsync {}", path.native()));
  return absl::OkStatus();
}

Status WriteText(const fs::path& path, const std::string& text, mode_t mode) {
  return WriteFile(path, {AsBytes(text)}, mode);
}

Status SyncDirectory(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || ::fsync(fd.get()) != 0) {
    return ErrnoError(fmt::format("fsync {}", path.native()));
  }
  return absl::OkStatus();
}

Status Rename(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return ErrnoError(fmt::format("rename {} to {}", from.native(), to.native()));
}

/// Returns the content of a version's kMark, or nullopt if there is no such version of ours.
struct Mark {
  std::string kind;
  Identity id;
};

std::optional<Mark> ReadMark(const fs::path& version) try {
  std::ifstream in(version / kMark);
  const json mark = json::parse(in);
  if (mark.at("format") != 1) return std::nullopt;
  const std::optional<Hash128> lineage = Hash128::FromHex(mark.at("lineage").get<std::string>());
  if (!lineage) return std::nullopt;
  Mark read{mark.at("kind"), {}};
  read.id.lineage = *lineage;
  read.id.id = {mark.at("epoch"), mark.at("version")};
  read.id.root = std::stoull(mark.at("root").get<std::string>(), nullptr, 16);
  return read;
} catch (const std::exception&) {
  return std::nullopt;
}

struct Payload {
  std::string name;
  std::vector<std::byte> bytes;
  std::string checksum;  // of the whole tensor, as it is after the delta
};

/// Returns the entry, but for its name, that turns the bytes `was` of a tensor into `is`. It has no
/// bytes if they are equal.
StatusOr<Payload> PayloadOf(const std::string& name, Bytes was, Bytes is,
                            DiskDeltaEncoding encoding) {
  Payload payload;
  if (is.empty() || std::memcmp(was.data(), is.data(), is.size()) == 0) return payload;
  const bool positions = encoding == DiskDeltaEncoding::kOverwrite;
  if (positions && is.size() > uint64_t{UINT32_MAX} + 1) {
    return Errorf(
        StatusCode::kInvalidArgument,
        "tensor {} has {} bytes, and positions of \"overwrite\" have 32 bits: use \"xor\"", name,
        is.size());
  }
  try {
    DW_ASSIGN_OR_RETURN(payload.bytes, positions ? EncodeOverwrite(was, is) : EncodeXor(was, is));
    payload.checksum = Xxh3_128(is).Hex();
  } catch (const std::bad_alloc&) {  // which must not leave the pool's thread
    return absl::ResourceExhaustedError("no memory for the delta's payloads");
  }
  return payload;
}

/// A safetensors file of payloads: each a U8 tensor under its tensor's name.
Status WritePayloads(const fs::path& path, const std::vector<Payload>& payloads, mode_t mode) {
  json header = json::object();
  json& metadata = header["__metadata__"] = json::object();
  std::vector<Bytes> parts(2);
  uint64_t at = 0;
  for (const Payload& p : payloads) {
    metadata[p.name] = p.checksum;
    header[p.name] = {
        {"dtype", "U8"}, {"shape", {p.bytes.size()}}, {"data_offsets", {at, at + p.bytes.size()}}};
    at += p.bytes.size();
    parts.emplace_back(p.bytes);
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::byte length[8];
  StoreLe(length, uint64_t{text.size()});
  parts[0] = length;
  parts[1] = AsBytes(text);
  return WriteFile(path, parts, mode);
}

}  // namespace

std::string_view ToString(DiskDeltaEncoding encoding) {
  return kEncodings[static_cast<size_t>(encoding)];
}

/// Built under a hidden name, which Publish renames and the destructor otherwise removes.
class DiskDelta::Part {
 public:
  static StatusOr<Part> Start(const fs::path& run, uint64_t version, mode_t mode) {
    Part part;
    part.mode_ = mode;
    part.final_ = run / VersionName(version);
    part.hidden_ = run / HiddenName(version);
    std::error_code error;
    fs::remove_all(part.hidden_, error);
    DW_RETURN_IF_ERROR(NewDirectory(part.hidden_, mode));
    return part;
  }
  Part(Part&& other) noexcept
      : hidden_(std::exchange(other.hidden_, {})),
        final_(std::move(other.final_)),
        mode_(other.mode_) {}
  ~Part() {
    std::error_code ignored;
    if (!hidden_.empty()) fs::remove_all(hidden_, ignored);
  }
  const fs::path& path() const { return hidden_; }

  Status WriteIndex(uint64_t version, DiskDeltaEncoding encoding,
                    const std::map<std::string, std::string>& files) {
    const json index = {{"metadata",
                         {{"version", fmt::format("{:06}", version)},
                          {"base_version", fmt::format("{:06}", version - 1)},
                          {"delta_encoding", ToString(encoding)},
                          {"compression_format", "zstd"},
                          {"checksum_format", "xxh3-128"}}},
                        {"weight_map", files}};
    return WriteText(hidden_ / kIndex, index.dump(1) + "\n", mode_);
  }

  Status Publish(std::string_view kind, const Identity& id) {
    const json mark = {{"format", 1},
                       {"kind", kind},
                       {"lineage", id.lineage.Hex()},
                       {"epoch", id.id.epoch},
                       {"version", id.id.version},
                       {"root", fmt::format("{:016x}", id.root)}};
    DW_RETURN_IF_ERROR(WriteText(hidden_ / kMark, mark.dump(1) + "\n", mode_));
    DW_RETURN_IF_ERROR(SyncDirectory(hidden_));
    DW_RETURN_IF_ERROR(Rename(hidden_, final_));
    hidden_.clear();
    return SyncDirectory(final_.parent_path());
  }

 private:
  Part() = default;
  fs::path hidden_;  // empty once published
  fs::path final_;
  mode_t mode_ = 0;
};

DiskDelta::DiskDelta(const DiskDeltaOptions& options) : options_(options), pool_(options.threads) {}

DiskDelta::~DiskDelta() {
  if (old_ != nullptr) ::munmap(old_, old_bytes_);
}

Status DiskDelta::Write(const fs::path& model, const Identity& id,
                        const std::function<bool()>& stop) {
  DW_RETURN_IF_ERROR(Own());
  DW_ASSIGN_OR_RETURN(const ModelDir opened, ModelDir::Open(model));
  // Only now is it certain that what was opened is the version `id`: a call that comes late opens
  // a newer one, against which later deltas would be made.
  if (stop()) return Cancelled();
  const fs::path run = options_.directory / RunName(id);
  DW_RETURN_IF_ERROR(NewDirectory(run, mode_));
  DW_ASSIGN_OR_RETURN(const bool there, LiesThere(run, id));
  if (there) {
    all_changed_ = true;
  } else if (Follows(id, opened)) {
    for (uint64_t v = held_.id.version + 1; v < id.id.version; ++v) {
      Identity gap = held_;
      gap.id.version = v;
      DW_RETURN_IF_ERROR(WriteGap(run, gap));
    }
    DW_RETURN_IF_ERROR(WriteDelta(run, opened, id, stop));
  } else {
    DW_RETURN_IF_ERROR(WriteWhole(run, opened, id, stop));
  }
  DW_RETURN_IF_ERROR(Keep(opened, id));
  // After the time limit the receiver may have changed the model meanwhile. The kept bytes may then
  // be of two versions, so the next version is written whole.
  if (stop()) held_ = {};
  const fs::path latest = options_.directory / kLatest;
  const fs::path hidden = options_.directory / ".latest.partial";
  DW_RETURN_IF_ERROR(
      WriteText(hidden, RunName(id) + "/" + VersionName(id.id.version) + "\n", mode_));
  DW_RETURN_IF_ERROR(Rename(hidden, latest));
  Tidy(run, id.id.version);
  return absl::OkStatus();
}

Status DiskDelta::Own() {
  if (lock_.get() >= 0) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(mode_, OwnDirectory(options_.directory));
  const fs::path path = options_.directory / kLock;
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (fd.get() < 0) return ErrnoError(fmt::format("create {}", path.native()));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoError(fmt::format("lock {}", path.native()));
    return Errorf(StatusCode::kAlreadyExists,
                  "{} is written to by another receiver or for another model: name a directory of "
                  "this one's own",
                  options_.directory.native());
  }
  lock_ = std::move(fd);
  // A killed writer's unfinished versions have up to the model's size each.
  std::error_code error;
  for (const fs::directory_entry& run : Entries(options_.directory)) {
    if (!IsRun(run.path().filename().native())) continue;
    for (const fs::directory_entry& entry : Entries(run.path())) {
      if (IsPartial(entry.path().filename().native())) fs::remove_all(entry.path(), error);
    }
  }
  return absl::OkStatus();
}

bool DiskDelta::Follows(const Identity& id, const ModelDir& model) const {
  if (held_.empty() || held_.lineage != id.lineage || held_.id.epoch != id.id.epoch) return false;
  if (layout_ != model.layout().fingerprint() || id.id.version <= held_.id.version) return false;
  const fs::path run = options_.directory / RunName(id);
  // After an older version was taken, newer ones may lie between it and this one.
  if (id.id.version - held_.id.version > options_.keep) return false;
  for (uint64_t v = held_.id.version + 1; v < id.id.version; ++v) {
    std::error_code ignored;
    const std::optional<Mark> mark = ReadMark(run / VersionName(v));
    if (mark ? mark->kind != "gap" : fs::exists(run / VersionName(v), ignored)) return false;
  }
  // Looks for the newest whole version that the chain would begin with.
  for (uint64_t v = held_.id.version; id.id.version - v <= options_.keep; --v) {
    const std::optional<Mark> mark = ReadMark(run / VersionName(v));
    if (!mark) return false;
    if (mark->kind == "whole") return true;
    if (v == 0) return false;
  }
  return false;
}

StatusOr<bool> DiskDelta::LiesThere(const fs::path& run, const Identity& id) const {
  const fs::path version = run / VersionName(id.id.version);
  std::error_code ignored;
  if (!fs::exists(version, ignored)) return false;
  const std::optional<Mark> mark = ReadMark(version);
  if (mark && mark->kind != "gap" && mark->id == id) return true;
  return Errorf(StatusCode::kAlreadyExists,
                "{} does not hold {}: remove it, or name another directory", version.native(),
                DescribeFully(id));
}

Status DiskDelta::WriteWhole(const fs::path& run, const ModelDir& model, const Identity& id,
                             const std::function<bool()>& stop) {
  DW_ASSIGN_OR_RETURN(Part part, Part::Start(run, id.id.version, mode_));
  const std::string header = BuildSafetensorsHeader(model.layout(), {{"format", "pt"}});
  const fs::path path = part.path() / "model.safetensors";
  {
    DW_ASSIGN_OR_RETURN(const UniqueFd fd, NewFile(path, mode_));
    std::vector<Bytes> parts = {AsBytes(header)};
    for (size_t t = 0; t < model.layout().size(); ++t) parts.push_back(model.data(t));
    for (Bytes bytes : parts) {
      while (!bytes.empty()) {
        if (stop()) return Cancelled();
        const ssize_t n = ::write(fd.get(), bytes.data(), std::min(bytes.size(), kBatchBytes));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return WriteError(path);
        bytes = bytes.subspan(static_cast<size_t>(n));
      }
    }
    if (::fsync(fd.get()) != 0) return ErrnoError(fmt::format("fsync {}", path.native()));
  }
  DW_ASSIGN_OR_RETURN(const std::vector<SideFile> side, model.ReadSideFiles());
  for (const SideFile& file : side) {
    DW_RETURN_IF_ERROR(WriteText(part.path() / file.name, file.content, mode_));
  }
  all_changed_ = true;
  LogInfo("disk delta: {} written whole to {} {}", ToString(id), run.native(),
          ToString(TraceOf(id)));
  // From here on who changes the directory may have gone on without this writer.
  if (stop()) return Cancelled();
  return part.Publish("whole", id);
}

Status DiskDelta::WriteGap(const fs::path& run, const Identity& id) {
  // An earlier attempt, which was discarded, may have written it.
  const std::optional<Mark> mark = ReadMark(run / VersionName(id.id.version));
  if (mark && mark->kind == "gap") return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(Part part, Part::Start(run, id.id.version, mode_));
  DW_RETURN_IF_ERROR(part.WriteIndex(id.id.version, options_.encoding, {}));
  return part.Publish("gap", id);
}

Status DiskDelta::WriteDelta(const fs::path& run, const ModelDir& model, const Identity& id,
                             const std::function<bool()>& stop) {
  const Layout& layout = model.layout();
  const auto was = [&](size_t t) { return Bytes(old_ + layout.offset(t), layout.bytes(t)); };
  DW_ASSIGN_OR_RETURN(Part part, Part::Start(run, id.id.version, mode_));
  changed_.clear();
  all_changed_ = false;
  std::vector<Payload> ready;
  std::map<std::string, std::string> files;  // by tensor
  uint64_t ready_bytes = 0, written = 0;
  size_t file_count = 0;
  const auto write = [&]() -> Status {
    if (ready.empty()) return absl::OkStatus();
    const std::string name = fmt::format("model-{:05}.safetensors", ++file_count);
    DW_RETURN_IF_ERROR(WritePayloads(part.path() / name, ready, mode_));
    for (const Payload& p : ready) files[p.name] = name;
    written += ready_bytes;
    ready.clear();
    ready_bytes = 0;
    return absl::OkStatus();
  };
  for (size_t first = 0; first < layout.size();) {
    if (stop()) return Cancelled();
    size_t last = first;
    for (uint64_t bytes = 0; last < layout.size() && bytes < kBatchBytes; ++last) {
      bytes += layout.bytes(last);
    }
    std::vector<StatusOr<Payload>> encoded(last - first);
    pool_.ParallelFor(last - first, [&](size_t i) {
      const size_t t = first + i;
      encoded[i] = PayloadOf(layout.tensor(t).name, was(t), model.data(t), options_.encoding);
    });
    for (size_t i = 0; i < encoded.size(); ++i) {
      DW_RETURN_IF_ERROR(encoded[i].status());
      if (encoded[i]->bytes.empty()) continue;
      changed_.push_back(static_cast<uint32_t>(first + i));
      ready_bytes += encoded[i]->bytes.size();
      encoded[i]->name = layout.tensor(first + i).name;
      ready.push_back(std::move(*encoded[i]));
    }
    if (ready_bytes >= kFileBytes) DW_RETURN_IF_ERROR(write());
    first = last;
  }
  DW_RETURN_IF_ERROR(write());
  DW_RETURN_IF_ERROR(part.WriteIndex(id.id.version, options_.encoding, files));
  LogInfo("disk delta: {} written to {}: {} in {} of {} tensors {}", ToString(id), run.native(),
          HumanBytes(written), changed_.size(), layout.size(), ToString(TraceOf(id)));
  if (stop()) return Cancelled();
  return part.Publish("delta", id);
}

Status DiskDelta::Keep(const ModelDir& model, const Identity& id) {
  const Layout& layout = model.layout();
  held_ = {};
  if (old_bytes_ != layout.total_bytes()) {
    if (old_ != nullptr) ::munmap(std::exchange(old_, nullptr), std::exchange(old_bytes_, 0));
    if (layout.total_bytes() > 0) {
      void* at = ::mmap(nullptr, layout.total_bytes(), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (at == MAP_FAILED) return ErrnoError("memory for a copy of the model");
      old_ = static_cast<std::byte*>(at);
      old_bytes_ = layout.total_bytes();
    }
    all_changed_ = true;
  }
  if (all_changed_) {
    changed_.resize(layout.size());
    for (size_t t = 0; t < layout.size(); ++t) changed_[t] = static_cast<uint32_t>(t);
  }
  pool_.ParallelFor(changed_.size(), [&](size_t i) {
    const Bytes now = model.data(changed_[i]);
    if (!now.empty()) std::memcpy(old_ + layout.offset(changed_[i]), now.data(), now.size());
  });
  layout_ = layout.fingerprint();
  held_ = id;
  return absl::OkStatus();
}

void DiskDelta::Tidy(const fs::path& run, uint64_t newest) {
  // Sorted by version. A whole version may follow numbers that were never committed.
  std::map<uint64_t, bool> whole;
  for (const fs::directory_entry& entry : Entries(run)) {
    const auto version = VersionOf(entry.path().filename().native());
    const std::optional<Mark> mark = version ? ReadMark(entry.path()) : std::nullopt;
    if (mark && mark->id.id.version == *version) whole[*version] = mark->kind == "whole";
  }
  // The chain of the newest whole version stays, and the one before, which a slow reader may be in.
  std::error_code error;
  int chains = 0;
  for (auto it = whole.rbegin(); it != whole.rend(); ++it) {
    if (chains == 2) fs::remove_all(run / VersionName(it->first), error);
    if (it->first <= newest && it->second) chains = std::min(chains + 1, 2);
  }
  // The last run that has ended stays for slow readers.
  std::vector<std::pair<fs::file_time_type, fs::path>> ended;
  for (const fs::directory_entry& entry : Entries(options_.directory)) {
    if (!IsRun(entry.path().filename().native()) || entry.path() == run) continue;
    ended.emplace_back(entry.last_write_time(error), entry);
  }
  std::sort(ended.begin(), ended.end());
  for (size_t i = 0; i + 1 < ended.size(); ++i) fs::remove_all(ended[i].second, error);
}

}  // namespace deltawire::receiver
