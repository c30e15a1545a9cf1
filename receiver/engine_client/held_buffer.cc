#include "receiver/engine_client/held_buffer.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "common/layout/safetensors.h"

namespace deltawire::engine {
namespace {

/// Each try has met a commit in its middle.
constexpr int kTries = 100;

}  // namespace

StatusOr<HeldBuffer> HeldBuffer::Open(const std::filesystem::path& directory,
                                      const StateReader& state) {
  const std::filesystem::path path = directory / kFileName;
  for (int i = 0; i < kTries; ++i) {
    HeldBuffer held;
    held.state_ = &state;
    held.path_ = path;
    held.fd_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (held.fd_.get() < 0) {
      if (errno != ENOENT) return ErrnoError(fmt::format("open {}", path.native()));
      return Errorf(StatusCode::kUnavailable, "{}: no version is committed now",
                    directory.native());
    }
    struct stat file;
    if (::fstat(held.fd_.get(), &file) != 0) {
      return ErrnoError(fmt::format("look at {}", path.native()));
    }
    for (held.index_ = 0; held.index_ < state.shape().slots; ++held.index_) {
      held.slot_ = state.slot(held.index_);
      if (held.slot_.inode == file.st_ino) break;
    }
    // The name says which version is committed, and the state file's active slot follows it.
    if (held.index_ == state.shape().slots || !held.StillHolds()) continue;
    const auto bytes = static_cast<uint64_t>(file.st_size);
    DW_ASSIGN_OR_RETURN(held.map_, Mapping::Map(held.fd_.get(), bytes, false, path));
    if (bytes < 8) return Errorf(StatusCode::kDataLoss, "{} is no buffer", path.native());
    held.data_offset_ = 8 + LoadLe<uint64_t>(held.map_.base());
    if (held.data_offset_ > bytes) {
      return Errorf(StatusCode::kDataLoss, "{} has no data section", path.native());
    }
    return held;
  }
  return Errorf(StatusCode::kUnavailable, "{}: the weights are of no committed version",
                directory.native());
}

StatusOr<Layout> HeldBuffer::ReadLayout() const {
  DW_ASSIGN_OR_RETURN(
      SafetensorsHeader header,
      ParseSafetensorsHeader({map_.base(), data_offset_}, map_.bytes(), path_.native()));
  std::vector<TensorMeta> tensors;
  for (StoredTensor& stored : header.tensors) tensors.push_back(std::move(stored.meta));
  return Layout::Create(std::move(tensors));
}

}  // namespace deltawire::engine
