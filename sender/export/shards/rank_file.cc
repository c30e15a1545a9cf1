#include "sender/export/shards/rank_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <charconv>

#include "common/base/checksum.h"
#include "common/layout/safetensors.h"

namespace deltawire {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kChunkPrefix = "chunk";
constexpr const char* kVersionKey = "deltawire_shard";
constexpr const char* kVersion = "1";

/// Splits "chunk1/decoder..." into chunk and name.
Status SplitName(std::string_view stored, mcore::LiveParam* param) {
  const size_t slash = stored.find('/');
  if (stored.starts_with(kChunkPrefix) && slash != std::string_view::npos) {
    const char* begin = stored.data() + kChunkPrefix.size();
    const auto [end, error] = std::from_chars(begin, stored.data() + slash, param->chunk);
    if (error == std::errc{} && end == stored.data() + slash) {
      param->name = std::string(stored.substr(slash + 1));
      return absl::OkStatus();
    }
  }
  return Errorf(StatusCode::kInvalidArgument,
                "tensor \"{}\": wanted chunk<v>/<parameter>, v the virtual pipeline chunk", stored);
}

template <typename T>
bool ReadNumber(const std::string& text, int base, T* to) {
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *to, base);
  return error == std::errc{} && at == end && !text.empty();
}

}  // namespace

std::string RankFileName(uint32_t rank) { return fmt::format("rank_{:05}.safetensors", rank); }

WeightFile::Metadata RankMarks::ToMetadata() const {
  return {{"format", "pt"},
          {kVersionKey, kVersion},
          {"rank", std::to_string(rank)},
          {"world", std::to_string(world)},
          {"family", family},
          {"parallel", parallel},
          {"model", model},
          {"digest", fmt::format("{:016x}", digest)}};
}

StatusOr<std::optional<RankMarks>> RankMarks::From(const WeightFile::Metadata& metadata) {
  const auto version = metadata.find(kVersionKey);
  if (version == metadata.end()) return std::optional<RankMarks>();
  if (version->second != kVersion) {
    return Errorf(StatusCode::kInvalidArgument,
                  "it is of shard format {}; this program knows format {}", version->second,
                  kVersion);
  }
  RankMarks marks;
  const auto get = [&](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string() : found->second;
  };
  marks.family = get("family");
  marks.parallel = get("parallel");
  marks.model = get("model");
  if (!ReadNumber(get("rank"), 10, &marks.rank) || !ReadNumber(get("world"), 10, &marks.world) ||
      !ReadNumber(get("digest"), 16, &marks.digest) || marks.family.empty() ||
      marks.parallel.empty() || marks.model.empty()) {
    return Errorf(StatusCode::kInvalidArgument,
                  "its metadata lacks one of rank, world, family, parallel, model and digest");
  }
  return std::optional(std::move(marks));
}

StatusOr<RankFile> RankFile::Open(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoError("open " + path.string());
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoError("fstat " + path.string());
  const auto size = static_cast<uint64_t>(info.st_size);
  RankFile file;
  file.path_ = path;
  if (size == 0) return Errorf(StatusCode::kInvalidArgument, "{} is empty", path.string());
  DW_ASSIGN_OR_RETURN(file.map_, Mapping::Map(fd.get(), size, /*writable=*/false, path));
  const Bytes all(file.map_.base(), size);
  DW_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                      ParseSafetensorsHeader(all, size, path.string()));
  file.data_offset_ = header.data_offset;
  auto marks = RankMarks::From(header.metadata);
  if (!marks.ok()) return Annotate(marks.status(), path.string());
  file.marks_ = *std::move(marks);
  for (const StoredTensor& t : header.tensors) {
    mcore::LiveParam param;
    const Status name = SplitName(t.meta.name, &param);
    if (!name.ok()) return Annotate(name, path.string());
    param.dtype = t.meta.dtype;
    param.shape = t.meta.shape;
    file.params_.push_back(std::move(param));
    file.data_.push_back(all.subspan(header.data_offset + t.begin, t.end - t.begin));
  }
  return file;
}

Status RankFile::CheckDigest() const {
  const Bytes all(map_.base(), map_.bytes());
  if (Xxh3(all.subspan(data_offset_)) == marks_->digest) return absl::OkStatus();
  return Errorf(StatusCode::kDataLoss,
                "{}: its data do not match the digest in its header, so it was changed or damaged "
                "after it was written; write it again",
                path_.string());
}

}  // namespace deltawire
