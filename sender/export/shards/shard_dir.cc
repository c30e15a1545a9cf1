#include "sender/export/shards/shard_dir.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <sstream>
#include <unordered_map>

#include "common/base/checksum.h"
#include "common/layout/safetensors.h"

namespace deltawire {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

StatusOr<std::string> ReadText(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return Errorf(StatusCode::kNotFound, "{} cannot be read", path.string());
  return text.str();
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

std::string StoredName(const mcore::Plan& plan, const mcore::ShardParam& s) {
  // Trainers of vision-language models wrap the language part.
  const std::vector<std::string>& wrappers = plan.family().names.strip;
  const mcore::Param* param = plan.planned()[s.planned].param;
  const bool wrapped =
      param != nullptr && param->scope != mcore::ParamScope::kTower && !wrappers.empty();
  return fmt::format("chunk{}/{}{}", s.chunk, wrapped ? wrappers.front() : "", s.names.front());
}

/// Returns the tensors of one rank's file, including copies that are not exported.
StatusOr<Layout> RankLayout(const mcore::Plan& plan, const std::vector<mcore::ShardParam>& shards) {
  std::vector<TensorMeta> metas;
  std::unordered_map<std::string, size_t> seen;
  for (const mcore::ShardParam& s : shards) {
    if (s.shape.empty() || !s.made) continue;
    std::string name = StoredName(plan, s);
    // One parameter may form several tensors but is stored once.
    if (!seen.try_emplace(name, metas.size()).second) continue;
    metas.push_back({std::move(name), s.dtype, s.shape});
  }
  return Layout::Create(std::move(metas));
}

std::string OneLine(const std::string& json) { return Json::parse(json).dump(); }

/// Returns a name for an HF model's weights: XXH3-64 over each tensor's, in layout order.
std::string NameOf(const ModelDir& hf, ThreadPool& pool) {
  std::vector<uint64_t> digests(hf.layout().size());
  pool.ParallelFor(digests.size(), [&](size_t i) { digests[i] = Xxh3(hf.data(i)); });
  return fmt::format("{:016x}", Xxh3(std::as_bytes(std::span(digests))));
}

/// Returns the bytes of the plan's tensors, by the plan's numbers. The plan may have been made for
/// another checkpoint of the model, with the tensors in another order. Bytes of an untrained tensor
/// may be missing, because no shard holds a part of it.
StatusOr<std::vector<Bytes>> TensorsFor(const mcore::Plan& plan, const ModelDir& hf) {
  const Layout& wanted = plan.layout();
  std::vector<Bytes> tensors(wanted.size());
  std::vector<bool> optional(wanted.size());
  for (const std::string& name : plan.not_trained()) optional[*wanted.Find(name)] = true;
  size_t found = 0;
  bool same = true;
  for (size_t t = 0; t < wanted.size(); ++t) {
    const auto at = hf.layout().Find(wanted.tensor(t).name);
    found += at ? 1 : 0;
    same = same && (at ? hf.layout().tensor(*at) == wanted.tensor(t) : optional[t]);
    if (at) tensors[t] = hf.data(*at);
  }
  if (same && found == hf.layout().size()) return tensors;
  return Errorf(StatusCode::kFailedPrecondition,
                "{} does not have the tensors of the checkpoint that the shards are planned for: "
                "{}; name one with --hf that has the same tensors, or none",
                hf.path().string(), DescribeDifference(wanted, hf.layout()));
}

bool IsCopy(const mcore::Plan& plan, const mcore::ShardParam& s) {
  const mcore::Param* const param = plan.planned()[s.planned].param;
  return param != nullptr && param->copy;
}

StatusOr<std::vector<mcore::Step>> StepsFromHf(const mcore::Plan& plan,
                                               const mcore::ShardParam& s) {
  return mcore::StepsOf(plan, s, s.dtype, plan.planned()[s.planned].cut.split,
                        mcore::Direction::kFromHf);
}

/// Fails with kFailedPrecondition if a tensor that is listed as another's copy has other bytes: the
/// trainer has one parameter for both.
Status CheckCopies(const mcore::Plan& plan, std::span<const Bytes> tensors) {
  std::set<std::pair<uint32_t, uint32_t>> compared;
  for (uint32_t rank = 0; rank < plan.parallel().world(); ++rank) {
    const std::vector<mcore::ShardParam> shards = plan.Rank(rank);
    std::multimap<std::string, const mcore::ShardParam*> copies;
    for (const mcore::ShardParam& s : shards) {
      if (s.made && IsCopy(plan, s)) copies.emplace(StoredName(plan, s), &s);
    }
    if (copies.empty()) continue;
    for (const mcore::ShardParam& s : shards) {
      if (!s.made || IsCopy(plan, s)) continue;
      const auto [begin, end] = copies.equal_range(StoredName(plan, s));
      for (auto copy = begin; copy != end; ++copy) {
        DW_ASSIGN_OR_RETURN(const std::vector<mcore::Step> own, StepsFromHf(plan, s));
        DW_ASSIGN_OR_RETURN(const std::vector<mcore::Step> other, StepsFromHf(plan, *copy->second));
        if (own.empty() || other.empty()) continue;
        const uint32_t a = own.front().tensor, b = other.front().tensor;
        if (!compared.emplace(a, b).second || std::ranges::equal(tensors[a], tensors[b])) continue;
        return Errorf(StatusCode::kFailedPrecondition,
                      "{} and {} are one parameter of the trainer's, and the checkpoint has "
                      "different values for them; make them equal, or change config.json "
                      "(such as tie_word_embeddings)",
                      plan.layout().tensor(a).name, plan.layout().tensor(b).name);
      }
    }
  }
  return absl::OkStatus();
}

Status WriteRank(const fs::path& path, const mcore::Plan& plan, RankMarks marks,
                 std::span<const Bytes> tensors, ThreadPool& pool) {
  const std::vector<mcore::ShardParam> shards = plan.Rank(marks.rank);
  DW_ASSIGN_OR_RETURN(Layout layout, RankLayout(plan, shards));
  DW_ASSIGN_OR_RETURN(WeightFile file,
                      WeightFile::Create(path, std::move(layout), marks.ToMetadata()));
  mcore::Transfer transfer;
  for (const mcore::ShardParam& s : shards) {
    if (s.shape.empty() || !s.made || IsCopy(plan, s)) continue;
    const auto at = file.layout().Find(StoredName(plan, s));
    DW_ASSIGN_OR_RETURN(std::vector<mcore::Step> steps, StepsFromHf(plan, s));
    transfer.Add(std::move(steps), file.tensor(*at));
  }
  transfer.Run(
      mcore::Direction::kFromHf,
      [&](uint32_t t) {
        const Bytes bytes = tensors[t];
        // The const_cast is safe: this direction only reads.
        return MutableBytes(const_cast<std::byte*>(bytes.data()), bytes.size());
      },
      pool);
  marks.digest = file.Digest();
  DW_RETURN_IF_ERROR(file.Mark(marks.ToMetadata()));
  return file.Seal(marks.digest);
}

/// Returns whether some value of type `own` changes on the round trip to `other`, where `add` is
/// added to it. Values that cannot be converted count as changed.
bool ChangesOnTheWay(Bytes values, DType own, DType other, int8_t add) {
  constexpr size_t kBlock = size_t{1} << 14;
  const kernels::Element outer = mcore::ElementOf(own), inner = mcore::ElementOf(other);
  if (outer == kernels::Element::kBytes || inner == kernels::Element::kBytes) return true;
  const size_t width = DTypeBytes(own);
  std::vector<std::byte> there(kBlock * DTypeBytes(other)), back(kBlock * width);
  for (size_t at = 0; at < values.size(); at += kBlock * width) {
    const Bytes block = values.subspan(at, std::min(kBlock * width, values.size() - at));
    const size_t n = block.size() / width;
    const MutableBytes away = MutableBytes(there).first(n * DTypeBytes(other));
    const MutableBytes again = MutableBytes(back).first(block.size());
    kernels::StridedCopy all;
    all.run_bytes = away.size();
    kernels::Best().place_convert(all, {outer, inner, add}, block, away);
    all.run_bytes = again.size();
    kernels::Best().place_convert(all, {inner, outer, static_cast<int8_t>(-add)}, away, again);
    if (std::memcmp(again.data(), block.data(), block.size()) != 0) return true;
  }
  return false;
}

/// Returns whether every HF tensor of the parameter represents the values `bytes` exactly.
bool HfHolds(const mcore::Plan& plan, const mcore::PlannedParam& planned, Bytes bytes,
             DType dtype) {
  return std::ranges::all_of(planned.cut.parts, [&](const mcore::RowPart& part) {
    const DType hf = plan.layout().tensor(part.tensor).dtype;
    return DTypeBytes(hf) >= DTypeBytes(dtype) || !ChangesOnTheWay(bytes, dtype, hf, planned.add);
  });
}

}  // namespace

StatusOr<Rounding> RoundingOf(const mcore::Plan& plan, const ModelDir& hf, ThreadPool& pool) {
  DW_ASSIGN_OR_RETURN(const std::vector<Bytes> tensors, TensorsFor(plan, hf));
  struct Way {
    DType trainer = DType::kBF16;
    int8_t add = 0;  // added on the way to HF
    bool narrows = false;
    bool changes = false;
  };
  std::map<uint32_t, Way> by_tensor;
  for (const mcore::PlannedParam& planned : plan.planned()) {
    for (const mcore::RowPart& part : planned.cut.parts) {
      if (!planned.exported) continue;
      const bool narrows =
          DTypeBytes(plan.layout().tensor(part.tensor).dtype) > DTypeBytes(planned.dtype);
      if (narrows || planned.add != 0) {
        by_tensor[part.tensor] = {planned.dtype, planned.add, narrows, false};
      }
    }
  }
  std::vector<std::pair<uint32_t, Way>> ways(by_tensor.begin(), by_tensor.end());
  pool.ParallelFor(ways.size(), [&](size_t i) {
    auto& [t, way] = ways[i];
    way.changes = ChangesOnTheWay(tensors[t], plan.layout().tensor(t).dtype, way.trainer,
                                  static_cast<int8_t>(-way.add));
  });
  Rounding rounding;
  for (const auto& [t, way] : ways) {
    if (!way.changes) continue;
    (way.narrows ? rounding.narrowed : rounding.shifted).push_back(plan.layout().tensor(t).name);
  }
  return rounding;
}

bool ShardDir::Is(const fs::path& dir) {
  std::error_code error;
  return fs::is_regular_file(dir / kParallelFile, error);
}

StatusOr<ShardDir> ShardDir::Open(const fs::path& dir, bool unmarked) {
  ShardDir shards;
  shards.path_ = dir;
  shards.unmarked_ = unmarked;
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

Status ShardDir::CheckMarks(const mcore::Plan& plan, const std::vector<RankFile>& files,
                            ThreadPool& pool) const {
  const std::string parallel = OneLine(parallel_.ToJson());
  const RankMarks* first_marks = nullptr;  // with --unmarked, rank 0 may have none
  for (uint32_t rank = 0; rank < files.size(); ++rank) {
    const std::string file = files[rank].path().string();
    if (!files[rank].marks()) {
      if (unmarked_) continue;
      return Errorf(StatusCode::kFailedPrecondition,
                    "{} does not say which rank it is, so `deltawire convert` has not written it; "
                    "say --unmarked to take such files for what they are called",
                    file);
    }
    const RankMarks& marks = *files[rank].marks();
    const auto otherwise = [&](std::string_view what, const auto& says, const auto& wanted) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "{} says that it is {} {}, and {} is wanted here; put every file where it was "
                    "written",
                    file, what, says, wanted);
    };
    if (marks.rank != rank) return otherwise("of rank", marks.rank, rank);
    if (marks.world != parallel_.world()) {
      return otherwise("of a world of", marks.world, parallel_.world());
    }
    if (marks.family != plan.family().name) {
      return otherwise("of the family", marks.family, plan.family().name);
    }
    DW_ASSIGN_OR_RETURN(const mcore::ParallelConfig theirs,
                        mcore::ParallelConfig::Parse(marks.parallel));
    if (OneLine(theirs.ToJson()) != parallel) {
      return otherwise("of the parallel config", marks.parallel,
                       fmt::format("that of {}, {},", kParallelFile, parallel));
    }
    if (first_marks == nullptr) first_marks = &marks;
    if (marks.model != first_marks->model) {
      return otherwise("cut from the weights", marks.model, first_marks->model);
    }
  }
  std::vector<Status> checked(files.size());
  pool.ParallelFor(files.size(), [&](size_t i) {
    if (files[i].marks()) checked[i] = files[i].CheckDigest();
  });
  for (const Status& status : checked) DW_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

StatusOr<std::vector<std::string>> ShardDir::ExportTo(const mcore::Plan& plan,
                                                      const mcore::Transfer::TensorMemory& tensor,
                                                      ThreadPool& pool) const {
  std::vector<RankFile> files;
  for (uint32_t rank = 0; rank < parallel_.world(); ++rank) {
    DW_ASSIGN_OR_RETURN(RankFile file, RankFile::Open(path_ / RankFileName(rank)));
    files.push_back(std::move(file));
  }
  DW_RETURN_IF_ERROR(CheckMarks(plan, files, pool));
  mcore::Transfer transfer;
  std::set<uint32_t> shifted;
  for (uint32_t rank = 0; rank < files.size(); ++rank) {
    const RankFile& file = files[rank];
    const fs::path& path = file.path();
    StatusOr<std::vector<mcore::Match>> matches = MatchRank(plan, rank, file.params());
    if (!matches.ok()) return Annotate(matches.status(), path.string());
    for (const mcore::Match& match : *matches) {
      if (!match.shard.writes) continue;
      const Bytes bytes = file.data(match.live);
      const mcore::PlannedParam& planned = plan.planned()[match.shard.planned];
      const DType dtype = file.params()[match.live].dtype;
      StatusOr<std::vector<mcore::Step>> steps =
          mcore::StepsOf(plan, match.shard, dtype, match.split, mcore::Direction::kToHf, {},
                         HfHolds(plan, planned, bytes, dtype));
      if (!steps.ok()) return Annotate(steps.status(), path.string());
      for (const mcore::Step& step : *steps) {
        // Only norms have an addend, so this is not worth the pool's threads.
        if (planned.add == 0 || shifted.contains(step.tensor)) continue;
        if (ChangesOnTheWay(bytes, file.params()[match.live].dtype,
                            plan.layout().tensor(step.tensor).dtype, planned.add)) {
          shifted.insert(step.tensor);
        }
      }
      // The const_cast is safe: this direction only reads.
      transfer.Add(std::move(*steps), {const_cast<std::byte*>(bytes.data()), bytes.size()});
    }
  }
  transfer.Run(mcore::Direction::kToHf, tensor, pool);
  std::vector<std::string> names;
  for (const uint32_t t : shifted) names.push_back(plan.layout().tensor(t).name);
  return names;
}

Status ShardDir::Write(const fs::path& dir, const mcore::Plan& plan, const ModelDir& hf,
                       ThreadPool& pool) {
  DW_ASSIGN_OR_RETURN(const std::vector<Bytes> tensors, TensorsFor(plan, hf));
  DW_RETURN_IF_ERROR(CheckCopies(plan, tensors));
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) {
    return Errorf(StatusCode::kInternal, "{} cannot be made: {}", dir.string(), error.message());
  }
  DW_ASSIGN_OR_RETURN(const std::vector<SideFile> side_files, hf.ReadSideFiles());
  RankMarks marks{.world = plan.parallel().world(),
                  .family = plan.family().name,
                  .parallel = OneLine(plan.parallel().ToJson()),
                  .model = NameOf(hf, pool)};
  for (; marks.rank < marks.world; ++marks.rank) {
    DW_RETURN_IF_ERROR(WriteRank(dir / RankFileName(marks.rank), plan, marks, tensors, pool));
  }
  for (const SideFile& file : side_files) {
    DW_RETURN_IF_ERROR(WriteSealed(dir / file.name, file.content));
  }
  DW_RETURN_IF_ERROR(WriteSealed(dir / kTensorsMetaFile, LayoutJson(plan.layout())));
  // Written last: without this file the directory does not count as a directory of shards.
  return WriteSealed(dir / kParallelFile, plan.parallel().ToJson() + "\n");
}

}  // namespace deltawire
