#include "cli/raw_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>

namespace deltawire::cli {
namespace {

Status Broken(const std::filesystem::path& file, std::string_view why) {
  return Errorf(StatusCode::kDataLoss, "{}: {}", file.string(), why);
}

}  // namespace

StatusOr<RawModelFile> RawModelFile::Open(const std::filesystem::path& file) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoError("open " + file.string());
  struct stat info {};
  void* base = MAP_FAILED;
  if (fstat(fd, &info) == 0 && info.st_size > 8) {
    base = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
  }
  close(fd);
  if (base == MAP_FAILED) return Broken(file, "cannot be mapped");
  RawModelFile model;
  model.map_ = {static_cast<const std::byte*>(base), static_cast<size_t>(info.st_size)};
  DW_RETURN_IF_ERROR(model.ReadHeader(file));
  return model;
}

RawModelFile::RawModelFile(RawModelFile&& other) noexcept
    : map_(std::exchange(other.map_, {})), tensors_(std::move(other.tensors_)) {}

RawModelFile::~RawModelFile() {
  if (!map_.empty()) munmap(const_cast<std::byte*>(map_.data()), map_.size());
}

Status RawModelFile::ReadHeader(const std::filesystem::path& file) {
  uint64_t length = 0;
  std::memcpy(&length, map_.data(), 8);
  if (length > map_.size() - 8) return Broken(file, "the header is longer than the file");
  const char* text = reinterpret_cast<const char*>(map_.data()) + 8;
  const auto header = nlohmann::json::parse(text, text + length, nullptr, false);
  if (!header.is_object()) return Broken(file, "the header is no JSON object");
  const std::span<const std::byte> data = map_.subspan(8 + length);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    try {
      const auto offsets = entry.at("data_offsets").get<std::vector<uint64_t>>();
      if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data.size()) {
        return Broken(file, name + ": data_offsets lie outside the file");
      }
      tensors_[name] = {entry.at("dtype").get<std::string>(),
                        entry.at("shape").get<std::vector<uint64_t>>(),
                        data.subspan(offsets[0], offsets[1] - offsets[0])};
    } catch (const nlohmann::json::exception& e) {
      return Broken(file, name + ": " + e.what());
    }
  }
  return absl::OkStatus();
}

Status CheckEqual(const RawModelFile& file, const std::vector<WantedTensor>& wanted,
                  ThreadPool& pool) {
  if (file.tensors().size() != wanted.size()) {
    return Errorf(StatusCode::kDataLoss, "{} tensors where {} are wanted", file.tensors().size(),
                  wanted.size());
  }
  const auto wrong = [&](const WantedTensor& w) -> const char* {
    const auto found = file.tensors().find(w.name);
    if (found == file.tensors().end()) return "missing";
    const RawModelFile::Tensor& t = found->second;
    if (t.dtype != w.dtype || t.shape != w.shape) return "another dtype or shape";
    if (t.bytes.size() != w.bytes.size()) return "another size";
    return std::memcmp(t.bytes.data(), w.bytes.data(), t.bytes.size()) == 0 ? nullptr
                                                                            : "other bytes";
  };
  std::vector<const char*> found(wanted.size(), nullptr);
  pool.ParallelFor(wanted.size(), [&](size_t i) { found[i] = wrong(wanted[i]); });
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (found[i] != nullptr) {
      return Errorf(StatusCode::kDataLoss, "tensor {}: {}", wanted[i].name, found[i]);
    }
  }
  return absl::OkStatus();
}

}  // namespace deltawire::cli
