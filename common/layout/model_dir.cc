#include "common/layout/model_dir.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <ctime>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#include "common/base/checksum.h"
#include "common/layout/names.h"
#include "common/layout/safetensors.h"
#include "common/layout/weight_index.h"

namespace deltawire {
namespace fs = std::filesystem;
namespace {

class File {
 public:
  static StatusOr<File> Open(const fs::path& path) {
    // Non-blocking, so that the open of a FIFO returns and the check below can reject it.
    File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.fd_ < 0) return ErrnoError("open " + path.string());
    if (::fstat(file.fd_, &file.stat_) != 0) return ErrnoError("stat " + path.string());
    if (!S_ISREG(file.stat_.st_mode)) {
      return Errorf(StatusCode::kInvalidArgument, "{} is not a regular file", path.string());
    }
    return file;
  }
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)), stat_(other.stat_) {}
  File& operator=(File&&) = delete;
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }

  int fd() const { return fd_; }
  uint64_t size() const { return static_cast<uint64_t>(stat_.st_size); }
  const struct stat& stat() const { return stat_; }

  Status Read(const fs::path& path, uint64_t offset, MutableBytes to) const {
    while (!to.empty()) {
      const ssize_t n = ::pread(fd_, to.data(), to.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoError("read " + path.string());
      if (n == 0) {
        return Errorf(StatusCode::kFailedPrecondition, "{} became shorter while it was read",
                      path.string());
      }
      to = to.subspan(static_cast<size_t>(n));
      offset += static_cast<uint64_t>(n);
    }
    return absl::OkStatus();
  }

 private:
  explicit File(int fd) : fd_(fd) {}
  int fd_;
  struct stat stat_ {};
};

bool SameTime(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/// Describes how the file of `now` differs from `was`; null if it does not.
const char* Difference(const struct stat& was, const struct stat& now) {
  if (was.st_ino != now.st_ino || was.st_dev != now.st_dev) return "was replaced";
  if (was.st_size != now.st_size) return "has another size";
  // A program can set mtime back, but that itself changes ctime, which no program can set.
  if (!SameTime(was.st_mtim, now.st_mtim) || !SameTime(was.st_ctim, now.st_ctim)) {
    return "was written to";
  }
  return nullptr;
}

/// Returns true for a file written within the last clock step. The kernel's file times move in such
/// steps, so a further write could leave them unchanged and go unnoticed.
bool JustWritten(const struct stat& file) {
  constexpr int64_t kSteps = 20'000'000;  // in nanoseconds: two steps at 100 Hz
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const int64_t age =
      (now.tv_sec - file.st_ctim.tv_sec) * 1'000'000'000 + (now.tv_nsec - file.st_ctim.tv_nsec);
  return age >= 0 && age < kSteps;
}

/// Follows symbolic links, which download caches consist of. Broken links and loops are errors.
StatusOr<fs::file_status> StatusOf(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status)) return status;
  const int code = error ? error.value() : ENOENT;
  std::error_code ignored;
  if (fs::is_symlink(path, ignored)) {
    return ErrnoError(fmt::format("follow symbolic link {}", path.string()), code);
  }
  return ErrnoError("open " + path.string(), code);
}

StatusOr<std::vector<std::string>> VisibleNames(const fs::path& dir) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(dir, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::string name = it->path().filename().string();
    if (!name.starts_with('.')) names.push_back(std::move(name));
  }
  if (error) return ErrnoError("list " + dir.string(), error.value());
  std::sort(names.begin(), names.end());
  return names;
}

StatusOr<std::string> ReadWhole(const fs::path& path) {
  DW_ASSIGN_OR_RETURN(const File file, File::Open(path));
  std::string content(file.size(), '\0');
  DW_RETURN_IF_ERROR(
      file.Read(path, 0, {reinterpret_cast<std::byte*>(content.data()), content.size()}));
  return content;
}

StatusOr<std::string> ReadSideFile(const fs::path& path) {
  DW_ASSIGN_OR_RETURN(const File file, File::Open(path));
  if (file.size() > kMaxSideFileBytes) {
    return Errorf(StatusCode::kResourceExhausted,
                  "{} has {} bytes, more than the {} that may go beside the weights: move it away",
                  path.string(), file.size(), kMaxSideFileBytes);
  }
  return ReadWhole(path);
}

/// Checks that the index names exactly the tensors that the shards hold, each in its own shard.
Status CheckShard(const WeightIndex& index, const std::string& shard, const fs::path& path,
                  const std::vector<StoredTensor>& tensors) {
  for (const StoredTensor& t : tensors) {
    const auto it = index.find(t.meta.name);
    if (it == index.end()) {
      return Errorf(StatusCode::kInvalidArgument,
                    "{} holds tensor {}, which {} does not list: index and shards are not of one "
                    "model",
                    path.string(), Quoted(t.meta.name), kWeightIndexName);
    }
    if (it->second != shard) {
      return Errorf(StatusCode::kInvalidArgument,
                    "{} holds tensor {}, which {} says is in {}: index and shards are not of one "
                    "model",
                    path.string(), Quoted(t.meta.name), kWeightIndexName, Quoted(it->second));
    }
  }
  return absl::OkStatus();
}

Status CheckIndexIsCovered(const WeightIndex& index, const Layout& layout, const fs::path& dir) {
  if (index.size() == layout.size()) return absl::OkStatus();
  // Ordered, so that the same directory always gives the same message.
  std::set<std::string> missing;
  for (const auto& [name, shard] : index) {
    if (!layout.Find(name)) missing.insert(name);
  }
  const std::string& name = *missing.begin();
  return Errorf(StatusCode::kInvalidArgument,
                "{}: tensor {} is listed in {} but absent from its shard {} ({} such): fetch the "
                "shards again",
                dir.string(), Quoted(name), kWeightIndexName, Quoted(index.at(name)),
                missing.size());
}

}  // namespace

/// A whole file, mapped read-only at its size at opening. If the file is truncated later, access
/// gives SIGBUS, so model files must be replaced, not rewritten.
struct ModelDir::Mapping {
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (size > 0) ::munmap(data, size);
  }

  static StatusOr<std::shared_ptr<const Mapping>> Of(const File& file, const fs::path& path) {
    auto mapping = std::make_shared<Mapping>();
    if (file.size() > 0) {
      void* data = ::mmap(nullptr, file.size(), PROT_READ, MAP_SHARED, file.fd(), 0);
      if (data == MAP_FAILED) return ErrnoError("map " + path.string());
      mapping->data = data;
      mapping->size = file.size();
    }
    return std::shared_ptr<const Mapping>(std::move(mapping));
  }

  Bytes bytes() const { return {static_cast<const std::byte*>(data), size}; }

  void* data = nullptr;
  size_t size = 0;
};

/// A file that is kept open, with its inode, size and times at opening.
struct ModelDir::Opened {
  File file;
  fs::path path;

  static StatusOr<std::shared_ptr<const Opened>> Open(const fs::path& path) {
    constexpr int kLooks = 50;
    for (int look = 0; look < kLooks; ++look) {
      DW_ASSIGN_OR_RETURN(File file, File::Open(path));
      if (!JustWritten(file.stat())) {
        return std::make_shared<const Opened>(Opened{std::move(file), path});
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return Errorf(StatusCode::kAborted, "{} is being written; try again when it is whole",
                  path.string());
  }
};

// Shorter than the kernel's 255, so that ".NAME.new" fits too.
constexpr size_t kMaxSideFileName = 240;

bool IsSideFileName(std::string_view name) {
  if (name.empty() || name.size() > kMaxSideFileName || name.front() == '.' || !IsUtf8(name))
    return false;
  for (const char c : name) {
    if (c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  }
  for (const std::string_view suffix :
       {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".safetensors.index.json"}) {
    if (name.ends_with(suffix)) return false;
  }
  return true;
}

bool IsForeignWeightFile(std::string_view name) {
  for (const std::string_view index : {".index.json", ".index"}) {
    if (name.ends_with(index)) name.remove_suffix(index.size());
  }
  if (name.ends_with(".bin")) return name.starts_with("pytorch_model");
  for (const std::string_view suffix :
       {".msgpack", ".h5", ".ckpt", ".gguf", ".onnx", ".onnx_data", ".ot", ".tflite"}) {
    if (name.ends_with(suffix)) return true;
  }
  return false;
}

namespace {

constexpr std::string_view kWeightSuffix = ".safetensors";

struct Shards {
  fs::path dir;
  std::vector<std::string> names;  // sorted
  std::optional<WeightIndex> index;
};

StatusOr<Shards> SingleFile(const fs::path& file) {
  if (file.extension() != ".safetensors") {
    return Errorf(StatusCode::kInvalidArgument,
                  "{} is neither a directory nor a *.safetensors file", file.string());
  }
  return Shards{.dir = file.parent_path(), .names = {file.filename().string()}, .index = {}};
}

StatusOr<Shards> ShardsOfIndex(const fs::path& dir, std::string_view json) {
  Shards shards{.dir = dir};
  const std::string file = (dir / kWeightIndexName).string();
  DW_ASSIGN_OR_RETURN(shards.index, ParseWeightIndex(json, file));
  std::set<std::string> names;
  for (const auto& [tensor, shard] : *shards.index) names.insert(shard);
  shards.names.assign(names.begin(), names.end());
  for (const std::string& name : shards.names) {
    std::error_code ignored;
    if (fs::symlink_status(dir / name, ignored).type() == fs::file_type::not_found) {
      return Errorf(StatusCode::kNotFound,
                    "{} lists shard {}, which is not in the directory: fetch it or wait for its "
                    "download",
                    file, Quoted(name));
    }
  }
  return shards;
}

/// A file of a numbered set: "model-00002-of-00004.safetensors" is file 2 of 4 of "model-".
struct Numbered {
  std::string set;  // the name without its own number
  uint64_t number = 0, of = 0;
};

std::optional<uint64_t> ParseNumber(std::string_view digits) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), number);
  if (digits.empty() || error != std::errc() || end != digits.end()) return std::nullopt;
  return number;
}

std::optional<Numbered> ParseNumbered(std::string_view name) {
  std::string_view stem = name.substr(0, name.size() - kWeightSuffix.size());
  const size_t of = stem.rfind("-of-");
  if (of == std::string_view::npos) return std::nullopt;
  const size_t dash = stem.substr(0, of).rfind('-');
  const size_t begin = dash == std::string_view::npos ? 0 : dash + 1;
  const auto number = ParseNumber(stem.substr(begin, of - begin));
  const auto total = ParseNumber(stem.substr(of + 4));
  if (!number || !total) return std::nullopt;
  return Numbered{fmt::format("{}*{}", stem.substr(0, begin), stem.substr(of)), *number, *total};
}

/// Checks that a numbered set is whole. Without an index, only the file names can tell.
Status CheckWhole(const fs::path& dir, const std::vector<std::string>& names) {
  std::map<std::string, std::pair<std::set<uint64_t>, uint64_t>> sets;
  for (const std::string& name : names) {
    const auto file = ParseNumbered(name);
    if (!file) continue;
    auto& [numbers, of] = sets[file->set];
    numbers.insert(file->number);
    of = file->of;
  }
  for (const auto& [set, found] : sets) {
    const auto& [numbers, of] = found;
    if (numbers.size() >= of) continue;
    return Errorf(StatusCode::kFailedPrecondition,
                  "{} has {} of the {} files {}{}, and no {}: it is still being saved or fetched, "
                  "or a save was cut off",
                  dir.string(), numbers.size(), of, set, kWeightSuffix, kWeightIndexName);
  }
  return absl::OkStatus();
}

StatusOr<Shards> ShardsOfDirectory(const fs::path& dir, const std::vector<std::string>& names) {
  constexpr std::string_view kOnly = "model.safetensors";
  Shards shards{.dir = dir};
  const auto keep = [&](const auto& wanted) {
    if (!shards.names.empty()) return;
    std::copy_if(names.begin(), names.end(), std::back_inserter(shards.names),
                 [&](const std::string& n) { return n.ends_with(kWeightSuffix) && wanted(n); });
  };
  // Other weight files beside it are another form of the model (consolidated.safetensors) or an
  // adapter.
  keep([&](const std::string& name) { return name == kOnly; });
  keep([](const std::string& name) {
    return name.starts_with("model-") && ParseNumbered(name).has_value();
  });
  keep([](const std::string& name) { return ParseNumbered(name).has_value(); });
  keep([](const std::string&) { return true; });
  if (shards.names.empty()) {
    return Errorf(StatusCode::kNotFound,
                  "{} holds neither {} nor any *.safetensors file: it is not a HuggingFace model "
                  "directory, or its weights are in another format",
                  dir.string(), kWeightIndexName);
  }
  DW_RETURN_IF_ERROR(CheckWhole(dir, shards.names));
  return shards;
}

}  // namespace

namespace {

StatusOr<SafetensorsHeader> ReadHeader(const File& file, const fs::path& path) {
  constexpr uint64_t kLength = 8;
  std::vector<std::byte> prefix(std::min(file.size(), kLength));
  DW_RETURN_IF_ERROR(file.Read(path, 0, prefix));
  if (prefix.size() == kLength) {
    // A header length beyond `most` is capped here; the parser then rejects it and names its value.
    const uint64_t most = std::min(file.size() - kLength, kMaxSafetensorsHeader);
    prefix.resize(kLength + std::min(LoadLe<uint64_t>(prefix.data()), most));
    DW_RETURN_IF_ERROR(file.Read(path, kLength, MutableBytes(prefix).subspan(kLength)));
  }
  return ParseSafetensorsHeader(prefix, file.size(), path.string());
}

}  // namespace

Status ModelDir::AddShard(const fs::path& path, Access access, std::vector<StoredTensor>* tensors) {
  DW_RETURN_IF_ERROR(StatusOf(path).status());
  std::optional<File> mapped;
  const File* file = nullptr;
  if (access == Access::kRead) {
    DW_ASSIGN_OR_RETURN(auto opened, Opened::Open(path));
    opened_.push_back(std::move(opened));
    file = &opened_.back()->file;
  } else {
    DW_ASSIGN_OR_RETURN(File opened, File::Open(path));
    mapped.emplace(std::move(opened));
    file = &*mapped;
  }
  DW_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadHeader(*file, path));
  if (access == Access::kMap) {
    DW_ASSIGN_OR_RETURN(auto mapping, Mapping::Of(*file, path));
    mappings_.push_back(std::move(mapping));
  }
  for (const StoredTensor& t : header.tensors) {
    if (access == Access::kRead) {
      places_.push_back({opened_.back().get(), header.data_offset + t.begin});
    } else {
      data_.push_back(
          mappings_.back()->bytes().subspan(header.data_offset + t.begin, t.end - t.begin));
    }
  }
  *tensors = std::move(header.tensors);
  return absl::OkStatus();
}

StatusOr<ModelDir> ModelDir::Open(const std::filesystem::path& dir, Access access) {
  DW_ASSIGN_OR_RETURN(const fs::file_status status, StatusOf(dir));
  ModelDir model;
  model.path_ = dir;
  Shards shards;
  if (!fs::is_directory(status)) {
    DW_ASSIGN_OR_RETURN(shards, SingleFile(dir));
  } else {
    DW_ASSIGN_OR_RETURN(std::vector<std::string> names, VisibleNames(dir));
    if (std::binary_search(names.begin(), names.end(), kWeightIndexName)) {
      const fs::path path = dir / kWeightIndexName;
      if (access == Access::kRead) {
        DW_ASSIGN_OR_RETURN(auto opened, Opened::Open(path));
        model.opened_.push_back(std::move(opened));
      }
      DW_ASSIGN_OR_RETURN(const std::string index, ReadWhole(path));
      DW_ASSIGN_OR_RETURN(shards, ShardsOfIndex(dir, index));
    } else {
      DW_ASSIGN_OR_RETURN(shards, ShardsOfDirectory(dir, names));
    }
    std::copy_if(names.begin(), names.end(), std::back_inserter(model.unlisted_),
                 [&](const std::string& name) {
                   return name.ends_with(kWeightSuffix) &&
                          !std::binary_search(shards.names.begin(), shards.names.end(), name);
                 });
    if (!model.unlisted_.empty()) {
      model.decided_by_ = shards.index ? std::string(kWeightIndexName) : shards.names.front();
    }
  }

  std::vector<TensorMeta> tensors;
  std::unordered_map<std::string, size_t> shard_of;
  for (size_t s = 0; s < shards.names.size(); ++s) {
    const fs::path path = shards.dir / shards.names[s];
    std::vector<StoredTensor> stored;
    DW_RETURN_IF_ERROR(model.AddShard(path, access, &stored));
    if (shards.index) {
      DW_RETURN_IF_ERROR(CheckShard(*shards.index, shards.names[s], path, stored));
    }
    for (StoredTensor& t : stored) {
      const auto [it, added] = shard_of.try_emplace(t.meta.name, s);
      if (!added) {
        return Errorf(StatusCode::kInvalidArgument,
                      "tensor {} is in both {} and {} of {}: remove the file that does not belong "
                      "to the model, or add {}",
                      Quoted(t.meta.name), Quoted(shards.names[it->second]),
                      Quoted(shards.names[s]), shards.dir.string(), kWeightIndexName);
      }
      tensors.push_back(std::move(t.meta));
    }
  }
  DW_ASSIGN_OR_RETURN(Layout layout, Layout::Create(std::move(tensors)));
  if (shards.index) DW_RETURN_IF_ERROR(CheckIndexIsCovered(*shards.index, layout, dir));
  if (layout.size() == 0) {
    return Errorf(StatusCode::kInvalidArgument, "{} holds no tensors", dir.string());
  }
  model.layout_ = std::make_shared<const Layout>(std::move(layout));
  return model;
}

Status ModelDir::Read(size_t i, uint64_t offset, MutableBytes to) const {
  const Place& place = places_[i];
  return place.file->file.Read(place.file->path, place.offset + offset, to);
}

Status ModelDir::Unchanged() const {
  for (const auto& opened : opened_) {
    const char* why = nullptr;
    struct stat now {};
    if (::stat(opened->path.c_str(), &now) != 0) {
      why = errno == ENOENT ? "was removed" : "cannot be looked at any more";
    } else {
      why = Difference(opened->file.stat(), now);
    }
    if (why == nullptr) continue;
    return Errorf(StatusCode::kFailedPrecondition,
                  "{} {} while it was read: what was read may be of two states; try again when "
                  "nobody writes to it",
                  opened->path.string(), why);
  }
  return absl::OkStatus();
}

StatusOr<std::vector<SideFile>> ModelDir::ReadSideFiles(std::vector<std::string>* foreign) const {
  std::error_code error;
  if (fs::is_regular_file(path_, error)) return std::vector<SideFile>();  // a lone weight file
  return SideFilesOf(path_, foreign);
}

uint64_t SideFilesHash(const std::vector<SideFile>& files) {
  Xxh3Stream hash;
  for (const SideFile& f : files) {
    const uint64_t sizes[2] = {f.name.size(), f.content.size()};  // this machine is little-endian
    hash.Update({reinterpret_cast<const std::byte*>(sizes), sizeof sizes});
    hash.Update(AsBytes(f.name));
    hash.Update(AsBytes(f.content));
  }
  return hash.Digest();
}

bool IsCodeFile(const SideFile& file) {
  return file.name.ends_with(".py") || file.name.ends_with(".pyc") || file.name.ends_with(".so");
}

Status CheckCodeFiles(const std::vector<SideFile>& files, bool allowed) {
  const auto code = std::find_if(files.begin(), files.end(), IsCodeFile);
  if (allowed || code == files.end()) return {};
  return Errorf(StatusCode::kFailedPrecondition,
                "side file {} is code that an engine may execute: start the daemon with "
                "--allow-code-files, or publish without it (deltawire publish --skip-code-files)",
                code->name);
}

StatusOr<std::vector<SideFile>> SideFilesOf(const fs::path& dir,
                                            std::vector<std::string>* foreign) {
  std::vector<SideFile> files;
  DW_ASSIGN_OR_RETURN(const std::vector<std::string> names, VisibleNames(dir));
  uint64_t total = 0;
  for (const std::string& name : names) {
    if (IsForeignWeightFile(name)) {
      if (foreign != nullptr) foreign->push_back(name);
      continue;
    }
    if (!IsSideFileName(name)) continue;
    const fs::path path = dir / name;
    DW_ASSIGN_OR_RETURN(const fs::file_status status, StatusOf(path));
    if (!fs::is_regular_file(status)) continue;
    DW_ASSIGN_OR_RETURN(std::string content, ReadSideFile(path));
    total += content.size();
    if (total > kMaxSideFilesTotal) {
      return Errorf(StatusCode::kResourceExhausted,
                    "{}: the files beside the weights have more than {} bytes together (reached "
                    "at {}); move away those that the model does not need",
                    dir.string(), kMaxSideFilesTotal, Quoted(name));
    }
    files.push_back({name, std::move(content)});
  }
  return files;
}

}  // namespace deltawire
