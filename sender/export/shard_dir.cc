#include "sender/export/shard_dir.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/layout/safetensors.h"
#include "common/shm/buffer_file.h"

namespace deltawire {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kChunkPrefix = "chunk";

StatusOr<std::string> ReadText(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return Errorf(StatusCode::kNotFound, "{} cannot be read", path.string());
  return text.str();
}

Status WriteText(const fs::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  if (!out) return Errorf(StatusCode::kInternal, "{} cannot be written", path.string());
  return absl::OkStatus();
}

std::string LayoutJson(const Layout& layout) {
  Json list = Json::array();
  for (const TensorMeta& t : layout.tensors()) {
    list.push_back({{"name", t.name}, {"dtype", DTypeName(t.dtype)}, {"shape", t.shape}});
  }
  return list.dump();
}

StatusOr<Layout> ParseLayout(const std::string& text, const fs::path& path) {
  const auto bad = [&](std::string_view what) {
    return Errorf(StatusCode::kInvalidArgument, "{}: {}", path.string(), what);
  };
  const Json list = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) return bad("not a JSON list of name, dtype and shape");
  std::vector<TensorMeta> metas;
  for (const Json& item : list) {
    const auto name = item.find("name"), dtype = item.find("dtype"), shape = item.find("shape");
    if (!item.is_object() || name == item.end() || !name->is_string() || dtype == item.end() ||
        !dtype->is_string() || shape == item.end() || !shape->is_array()) {
      return bad("an entry without name, dtype or shape");
    }
    TensorMeta meta;
    meta.name = name->get<std::string>();
    DW_ASSIGN_OR_RETURN(meta.dtype, ParseDType(dtype->get_ref<const std::string&>()));
    for (const Json& n : *shape) {
      if (!n.is_number_unsigned()) return bad("a dimension is not a whole number");
      meta.shape.push_back(n.get<uint64_t>());
    }
    metas.push_back(std::move(meta));
  }
  return Layout::Create(std::move(metas));
}

/// "chunk1/decoder..." as chunk and name.
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

/// What a parameter is called in a rank's file.
std::string StoredName(const mcore::Plan& plan, const mcore::ShardParam& s) {
  // Trainers wrap the language part of a model that sees.
  const std::vector<std::string>& wrappers = plan.family().names.strip;
  const bool wrapped = plan.slots()[s.slot].param != nullptr && !wrappers.empty();
  return fmt::format("{}{}/{}{}", kChunkPrefix, s.chunk, wrapped ? wrappers.front() : "",
                     s.names.front());
}

/// The tensors of one rank's file. A copy beside the one that counts is written too.
StatusOr<Layout> RankLayout(const mcore::Plan& plan, const std::vector<mcore::ShardParam>& shards) {
  std::vector<TensorMeta> metas;
  std::unordered_map<std::string, size_t> seen;
  for (const mcore::ShardParam& s : shards) {
    if (s.shape.empty() || !s.made) continue;
    std::string name = StoredName(plan, s);
    // One parameter may make several tensors; it is still one parameter.
    if (!seen.try_emplace(name, metas.size()).second) continue;
    metas.push_back({std::move(name), s.dtype, s.shape});
  }
  return Layout::Create(std::move(metas));
}

Status WriteRank(const fs::path& path, const mcore::Plan& plan, uint32_t rank, const ModelDir& hf,
                 ThreadPool& pool) {
  const std::vector<mcore::ShardParam> shards = plan.Rank(rank);
  DW_ASSIGN_OR_RETURN(const Layout layout, RankLayout(plan, shards));
  DW_ASSIGN_OR_RETURN(BufferFile file,
                      BufferFile::Create(path, layout, {.huge_pages = false, .populate = false}));
  const MutableBytes data = file.data();
  mcore::Transfer transfer;
  for (const mcore::ShardParam& s : shards) {
    if (s.shape.empty() || !s.made) continue;
    const auto at = layout.Find(StoredName(plan, s));
    DW_ASSIGN_OR_RETURN(std::vector<mcore::Step> steps,
                        mcore::StepsOf(plan, s, s.dtype, plan.slots()[s.slot].cut.split,
                                       mcore::Direction::kFromHf));
    transfer.Add(std::move(steps), data.subspan(layout.offset(*at), layout.bytes(*at)));
  }
  transfer.Run(
      mcore::Direction::kFromHf,
      [&](uint32_t t) {
        const Bytes bytes = hf.data(t);
        // Read only in this direction.
        return MutableBytes(const_cast<std::byte*>(bytes.data()), bytes.size());
      },
      pool);
  return absl::OkStatus();
}

}  // namespace

std::string RankFileName(uint32_t rank) { return fmt::format("rank_{:05}.safetensors", rank); }

StatusOr<RankFile> RankFile::Open(const fs::path& path) {
  const ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoError("open " + path.string());
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return ErrnoError("fstat " + path.string());
  const auto size = static_cast<uint64_t>(info.st_size);
  RankFile file;
  if (size == 0) return Errorf(StatusCode::kInvalidArgument, "{} is empty", path.string());
  DW_ASSIGN_OR_RETURN(file.map_, Mapping::Map(fd.get(), size, /*writable=*/false, path));
  const Bytes all(file.map_.base(), size);
  DW_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                      ParseSafetensorsHeader(all, size, path.string()));
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

bool ShardDir::Is(const fs::path& dir) {
  std::error_code error;
  return fs::is_regular_file(dir / kParallelFile, error);
}

StatusOr<ShardDir> ShardDir::Open(const fs::path& dir) {
  ShardDir shards;
  shards.path_ = dir;
  DW_ASSIGN_OR_RETURN(shards.parallel_,
                      mcore::ParallelConfig::Open((dir / kParallelFile).string()));
  const fs::path meta = dir / kTensorsMetaFile;
  std::error_code error;
  if (fs::is_regular_file(meta, error)) {
    DW_ASSIGN_OR_RETURN(const std::string text, ReadText(meta));
    DW_ASSIGN_OR_RETURN(shards.layout_, ParseLayout(text, meta));
  }
  return shards;
}

Status ShardDir::ExportTo(const mcore::Plan& plan, const mcore::Transfer::TensorMemory& tensor,
                          ThreadPool& pool) const {
  std::vector<RankFile> files;
  mcore::Transfer transfer;
  for (uint32_t rank = 0; rank < parallel_.world(); ++rank) {
    const fs::path path = path_ / RankFileName(rank);
    DW_ASSIGN_OR_RETURN(RankFile file, RankFile::Open(path));
    StatusOr<std::vector<mcore::Match>> matches = MatchRank(plan, rank, file.params());
    if (!matches.ok()) return Annotate(matches.status(), path.string());
    for (const mcore::Match& match : *matches) {
      if (!match.shard.writes) continue;
      StatusOr<std::vector<mcore::Step>> steps = mcore::StepsOf(
          plan, match.shard, file.params()[match.live].dtype, match.split, mcore::Direction::kToHf);
      if (!steps.ok()) return Annotate(steps.status(), path.string());
      const Bytes bytes = file.data(match.live);
      // Read only in this direction.
      transfer.Add(std::move(*steps), {const_cast<std::byte*>(bytes.data()), bytes.size()});
    }
    files.push_back(std::move(file));
  }
  transfer.Run(mcore::Direction::kToHf, tensor, pool);
  return absl::OkStatus();
}

Status ShardDir::Write(const fs::path& dir, const mcore::Plan& plan, const ModelDir& hf,
                       ThreadPool& pool) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) {
    return Errorf(StatusCode::kInternal, "{} cannot be made: {}", dir.string(), error.message());
  }
  for (uint32_t rank = 0; rank < plan.parallel().world(); ++rank) {
    DW_RETURN_IF_ERROR(WriteRank(dir / RankFileName(rank), plan, rank, hf, pool));
  }
  DW_ASSIGN_OR_RETURN(const std::vector<SideFile> side_files, hf.ReadSideFiles());
  for (const SideFile& file : side_files) {
    DW_RETURN_IF_ERROR(WriteText(dir / file.name, file.content));
  }
  DW_RETURN_IF_ERROR(WriteText(dir / kTensorsMetaFile, LayoutJson(plan.layout())));
  // Last: a directory without it is no directory of shards.
  return WriteText(dir / kParallelFile, plan.parallel().ToJson() + "\n");
}

}  // namespace deltawire
