#include "common/layout/model_dir.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "common/layout/names.h"
#include "common/layout/safetensors.h"
#include "common/layout/weight_index.h"

namespace deltawire {
namespace fs = std::filesystem;
namespace {

class File {
 public:
  static StatusOr<File> Open(const fs::path& path) {
    // Non-blocking, so that a FIFO of this name cannot hang us before it is refused.
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

 private:
  explicit File(int fd) : fd_(fd) {}
  int fd_;
  struct stat stat_ {};
};

/// Follows symbolic links, since download caches are made of them. Broken ones and loops are
/// errors.
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

/// Names in `dir` that are not hidden, sorted.
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

StatusOr<std::string> ReadSideFile(const fs::path& path) {
  DW_ASSIGN_OR_RETURN(File file, File::Open(path));
  if (file.size() > kMaxSideFileBytes) {
    return Errorf(StatusCode::kResourceExhausted,
                  "{} has {} bytes, more than the {} that may go beside the weights: move it away",
                  path.string(), file.size(), kMaxSideFileBytes);
  }
  std::string content(file.size(), '\0');
  size_t have = 0;
  while (have < content.size()) {
    const ssize_t n = ::read(file.fd(), content.data() + have, content.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError("read " + path.string());
    if (n == 0) {
      return Errorf(StatusCode::kAborted, "{} became shorter while it was read", path.string());
    }
    have += static_cast<size_t>(n);
  }
  return content;
}

/// The index must name exactly the tensors that the shards hold, each in its own shard.
Status CheckShard(const WeightIndex& index, const std::string& shard, const fs::path& path,
                  const SafetensorsHeader& header) {
  for (const StoredTensor& t : header.tensors) {
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

/// A whole file, mapped read-only at the size it had when it was opened. A file that is cut short
/// later gives SIGBUS on access, as any mapping does: model files are replaced, not rewritten.
struct ModelDir::Mapping {
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (size > 0) ::munmap(data, size);
  }

  static StatusOr<std::shared_ptr<const Mapping>> Open(const fs::path& path) {
    DW_ASSIGN_OR_RETURN(const File file, File::Open(path));
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

bool IsSideFileName(std::string_view name) {
  if (name.empty() || name.size() > 255 || name.front() == '.' || !IsUtf8(name)) return false;
  for (const char c : name) {
    if (c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  }
  for (const std::string_view suffix :
       {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".safetensors.index.json"}) {
    if (name.ends_with(suffix)) return false;
  }
  return true;
}

namespace {

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

StatusOr<Shards> ShardsOfDirectory(const fs::path& dir, std::vector<std::string> names) {
  Shards shards{.dir = dir};
  for (std::string& name : names) {
    if (name.ends_with(".safetensors")) shards.names.push_back(std::move(name));
  }
  if (shards.names.empty()) {
    return Errorf(StatusCode::kNotFound,
                  "{} holds neither {} nor any *.safetensors file: it is not a HuggingFace model "
                  "directory, or its weights are in another format",
                  dir.string(), kWeightIndexName);
  }
  return shards;
}

}  // namespace

StatusOr<ModelDir> ModelDir::Open(const std::filesystem::path& dir) {
  DW_ASSIGN_OR_RETURN(const fs::file_status status, StatusOf(dir));
  Shards shards;
  if (!fs::is_directory(status)) {
    DW_ASSIGN_OR_RETURN(shards, SingleFile(dir));
  } else {
    DW_ASSIGN_OR_RETURN(std::vector<std::string> names, VisibleNames(dir));
    if (std::binary_search(names.begin(), names.end(), kWeightIndexName)) {
      DW_ASSIGN_OR_RETURN(const auto index, Mapping::Open(dir / kWeightIndexName));
      DW_ASSIGN_OR_RETURN(shards, ShardsOfIndex(dir, AsChars(index->bytes())));
    } else {
      DW_ASSIGN_OR_RETURN(shards, ShardsOfDirectory(dir, std::move(names)));
    }
  }

  ModelDir model;
  model.path_ = dir;
  std::vector<TensorMeta> tensors;
  std::unordered_map<std::string, size_t> shard_of;
  for (size_t s = 0; s < shards.names.size(); ++s) {
    const fs::path path = shards.dir / shards.names[s];
    DW_RETURN_IF_ERROR(StatusOf(path).status());
    DW_ASSIGN_OR_RETURN(auto mapping, Mapping::Open(path));
    const Bytes bytes = mapping->bytes();
    model.mappings_.push_back(std::move(mapping));
    DW_ASSIGN_OR_RETURN(SafetensorsHeader header,
                        ParseSafetensorsHeader(bytes, bytes.size(), path.string()));
    if (shards.index) {
      DW_RETURN_IF_ERROR(CheckShard(*shards.index, shards.names[s], path, header));
    }
    for (StoredTensor& t : header.tensors) {
      const auto [it, added] = shard_of.try_emplace(t.meta.name, s);
      if (!added) {
        return Errorf(StatusCode::kInvalidArgument,
                      "tensor {} is in both {} and {} of {}: remove the file that does not belong "
                      "to the model, or add {}",
                      Quoted(t.meta.name), Quoted(shards.names[it->second]),
                      Quoted(shards.names[s]), shards.dir.string(), kWeightIndexName);
      }
      model.data_.push_back(bytes.subspan(header.data_offset + t.begin, t.end - t.begin));
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

StatusOr<std::vector<SideFile>> ModelDir::ReadSideFiles() const {
  std::error_code error;
  if (fs::is_regular_file(path_, error)) return std::vector<SideFile>();  // one file has none
  return SideFilesOf(path_);
}

StatusOr<std::vector<SideFile>> SideFilesOf(const fs::path& dir) {
  std::vector<SideFile> files;
  DW_ASSIGN_OR_RETURN(const std::vector<std::string> names, VisibleNames(dir));
  uint64_t total = 0;
  for (const std::string& name : names) {
    if (!IsSideFileName(name)) continue;
    const fs::path path = dir / name;
    DW_ASSIGN_OR_RETURN(const fs::file_status status, StatusOf(path));
    if (!fs::is_regular_file(status)) continue;
    DW_ASSIGN_OR_RETURN(std::string content, ReadSideFile(path));
    total += content.size();
    if (total > kMaxSideFilesTotal) {
      return Errorf(StatusCode::kResourceExhausted,
                    "{}: the files beside the weights have more than {} bytes together (reached "
                    "at {}): move those that the model does not need away",
                    dir.string(), kMaxSideFilesTotal, Quoted(name));
    }
    files.push_back({name, std::move(content)});
  }
  return files;
}

}  // namespace deltawire
