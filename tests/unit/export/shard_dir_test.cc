// Shard directories and HF directories on disk: what files say of themselves is checked, and a file
// that is not what it says is not used.
#include "sender/export/shards/shard_dir.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "common/base/checksum.h"
#include "common/layout/safetensors.h"
#include "sender/export/mcore/hf_model.h"
#include "sender/export/shards/hf_dir.h"
#include "tests/support/bad_memory.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/export/mcore/plans.h"

namespace {
/// Where the disk's answers are wrong: it has lost the file's rest, or flipped a bit. -1: nowhere.
off_t g_lost_from = -1, g_flipped_at = -1;
}  // namespace

extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier): the linker's names (CMakeLists.txt)
ssize_t __real_pread(int fd, void* to, size_t bytes, off_t at);
ssize_t __wrap_pread(int fd, void* to, size_t bytes, off_t at) {
  if (g_lost_from >= 0 && at >= g_lost_from) return 0;
  if (g_lost_from >= 0) bytes = std::min(bytes, static_cast<size_t>(g_lost_from - at));
  const ssize_t n = __real_pread(fd, to, bytes, at);
  if (g_flipped_at >= at && g_flipped_at < at + n) {
    static_cast<std::byte*>(to)[g_flipped_at - at] ^= std::byte{0x10};
  }
  return n;
}
// NOLINTEND(bugprone-reserved-identifier)
}

namespace deltawire::shard_dir_test {
namespace {

namespace fs = std::filesystem;
using mcore::testing::Get;
using mcore::testing::TextOf;
using Weights = std::map<std::string, std::vector<std::byte>>;

constexpr const char* kConfig = R"({"model_type": "llama", "num_hidden_layers": 2,
  "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 12,
  "vocab_size": 24, "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";

/// A model with linear attention, behind which HF has a norm as the trainer's value plus one.
constexpr const char* kPlusOneConfig = R"({"model_type": "qwen3_5_text", "num_hidden_layers": 2,
  "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
  "intermediate_size": 12, "vocab_size": 24, "full_attention_interval": 2,
  "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4,
  "linear_value_head_dim": 6, "linear_conv_kernel_dim": 4, "torch_dtype": "bfloat16"})";
constexpr const char* kPlusOne = "model.layers.0.linear_attn.norm.weight";

/// A small model in a directory, with weights that follow from a seed and are no NaNs.
struct Model {
  explicit Model(const fs::path& to, uint32_t seed = 1, DType dtype = DType::kBF16,
                 const char* config = kConfig)
      : dir(to) {
    fs::create_directories(dir);
    std::ofstream(dir / "config.json") << config;
    const auto plan = mcore::testing::PlanOf(config, "");
    std::vector<TensorMeta> metas = plan.plan.layout().tensors();
    for (TensorMeta& meta : metas) meta.dtype = dtype;
    const Layout layout = Get(Layout::Create(std::move(metas)));
    HfDir made = Get(HfDir::Create(dir, layout, uint64_t{1} << 30));
    uint32_t state = seed;
    for (size_t i = 0; i < layout.size(); ++i) {
      for (std::byte& b : made.tensor(i))
        b = static_cast<std::byte>((state = state * 69069 + 1) >> 24 & 0xbf);
    }
    ThreadPool pool(2);
    REQUIRE(made.Finish(pool) == absl::OkStatus());
  }
  fs::path dir;
};

Weights Read(const fs::path& dir) {
  const ModelDir hf = Get(ModelDir::Open(dir));
  Weights all;
  for (size_t i = 0; i < hf.layout().size(); ++i) {
    all[hf.layout().tensor(i).name].assign(hf.data(i).begin(), hf.data(i).end());
  }
  return all;
}

struct Fixture {
  /// `trainers`: the tensors hold the trainer's values, so no one is taken from norms.
  void Shard(const fs::path& from, const fs::path& to, const std::string& parallel,
             bool trainers = false) {
    const auto model = Get(mcore::HfModel::Open(from, "", {}));
    const ModelDir weights = Get(ModelDir::Open(from));
    auto plan = Get(model.ProvenPlan(Get(mcore::ParallelConfig::Parse(parallel))));
    if (trainers) plan = plan.WithTrainersValues();
    REQUIRE(ShardDir::Write(to, plan, weights, pool) == absl::OkStatus());
  }
  Status Export(const fs::path& from, Weights* to, bool unmarked = false, bool trainers = false) {
    const auto model = Get(mcore::HfModel::Open(from, "", {}, /*weights=*/false));
    DW_ASSIGN_OR_RETURN(const ShardDir dir, ShardDir::Open(from, unmarked));
    auto plan = Get(model.ProvenPlan(dir.parallel(), &*dir.layout()));
    if (trainers) plan = plan.WithTrainersValues();
    to->clear();
    for (size_t i = 0; i < plan.layout().size(); ++i) {
      (*to)[plan.layout().tensor(i).name].resize(plan.layout().bytes(i));
    }
    DW_ASSIGN_OR_RETURN(
        shifted,
        dir.ExportTo(
            plan, [&](uint32_t t) { return MutableBytes((*to)[plan.layout().tensor(t).name]); },
            pool));
    return absl::OkStatus();
  }
  std::string WhyNot(const fs::path& from) {
    Weights out;
    const std::string why = TextOf(Export(from, &out));
    // Not one byte of a refused directory may be used.
    for (const auto& [name, bytes] : out) {
      for (const std::byte b : bytes) CHECK(b == std::byte{0});
    }
    return why;
  }
  /// Writes the file anew with `change` made to its header's metadata. Its data stay.
  static void Rewrite(const fs::path& file,
                      const std::function<void(std::map<std::string, std::string>&)>& change) {
    std::ifstream in(file, std::ios::binary);
    const std::string all(std::istreambuf_iterator<char>(in), {});
    SafetensorsHeader header = Get(ParseSafetensorsHeader(AsBytes(all), all.size(), file.string()));
    std::vector<TensorMeta> metas;
    for (const StoredTensor& t : header.tensors) metas.push_back(t.meta);
    change(header.metadata);
    std::ofstream(file, std::ios::binary)
        << BuildSafetensorsHeader(Get(Layout::Create(std::move(metas))), header.metadata)
        << all.substr(header.data_offset);
  }

  TempDir temp;
  ThreadPool pool{2};
  fs::path hf = temp.path() / "hf", shards = temp.path() / "shards";
  std::vector<std::string> shifted;  // by the last Export
};

TEST_CASE("shards: files say what they are and become the same weights again") {
  Fixture f;
  const Model model(f.hf);
  f.Shard(f.hf, f.shards, "tp=2,pp=2,vocab_divisor=16");
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const RankFile file = Get(RankFile::Open(f.shards / RankFileName(rank)));
    REQUIRE(file.marks());
    CHECK(file.marks()->rank == rank);
    CHECK(file.marks()->world == 4);
    CHECK(file.marks()->family == "llama");
    CHECK(Get(mcore::ParallelConfig::Parse(file.marks()->parallel)).tp == 2);
    CHECK(file.CheckDigest() == absl::OkStatus());
  }
  Weights out;
  CHECK(f.Export(f.shards, &out) == absl::OkStatus());
  CHECK(out == Read(f.hf));
}

TEST_CASE("shards: rank files that were swapped are refused though every shape fits") {
  Fixture f;
  const Model model(f.hf);
  f.Shard(f.hf, f.shards, "tp=2");
  fs::rename(f.shards / RankFileName(0), f.temp.path() / "zero");
  fs::rename(f.shards / RankFileName(1), f.shards / RankFileName(0));
  fs::rename(f.temp.path() / "zero", f.shards / RankFileName(1));
  CHECK(f.WhyNot(f.shards).find(
            "rank_00000.safetensors says that it is of rank 1, and 0 is wanted") !=
        std::string::npos);
}

TEST_CASE("shards: a file of other weights or of another cut is refused") {
  Fixture f;
  const Model model(f.hf), other(f.temp.path() / "other", 2);
  f.Shard(f.hf, f.shards, "tp=2");
  f.Shard(other.dir, f.temp.path() / "step2", "tp=2");
  f.Shard(f.hf, f.temp.path() / "cp", "tp=2,cp=2");
  const fs::path one = f.shards / RankFileName(1);
  const auto swap_in = [&](const char* from) {
    fs::copy_file(f.temp.path() / from / RankFileName(1), one,
                  fs::copy_options::overwrite_existing);
    return f.WhyNot(f.shards);
  };
  CHECK(swap_in("step2").find("says that it is cut from the weights") != std::string::npos);
  CHECK(swap_in("cp").find("says that it is of a world of 4, and 2 is wanted") !=
        std::string::npos);
  Fixture::Rewrite(one, [](auto& marks) { marks["world"] = "2"; });
  CHECK(f.WhyNot(f.shards).find("says that it is of the parallel config") != std::string::npos);
  Fixture::Rewrite(one, [](auto& marks) { marks["family"] = "qwen2"; });
  CHECK(f.WhyNot(f.shards).find("of the family qwen2, and llama is wanted") != std::string::npos);
  Fixture::Rewrite(one, [](auto& marks) { marks["deltawire_shard"] = "2"; });
  CHECK(f.WhyNot(f.shards).find("of shard format 2; this program knows format 1") !=
        std::string::npos);
  Fixture::Rewrite(one, [](auto& marks) { marks.erase("digest"), marks["deltawire_shard"] = "1"; });
  CHECK(f.WhyNot(f.shards).find("its metadata lacks one of") != std::string::npos);
}

TEST_CASE("shards: a file that was changed after it was written is refused") {
  Fixture f;
  const Model model(f.hf);
  f.Shard(f.hf, f.shards, "tp=2");
  const fs::path one = f.shards / RankFileName(1);
  testing::FlipByte(one, fs::file_size(one) - 1);
  const std::string why = f.WhyNot(f.shards);
  CHECK(why.find("rank_00001.safetensors") != std::string::npos);
  CHECK(why.find("its data do not match the digest in its header") != std::string::npos);
}

TEST_CASE("shards: files without marks are accepted by their names only with --unmarked") {
  Fixture f;
  const Model model(f.hf);
  f.Shard(f.hf, f.shards, "tp=2");
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Fixture::Rewrite(f.shards / RankFileName(rank), [](auto& marks) { marks.clear(); });
  }
  CHECK(f.WhyNot(f.shards).find("say --unmarked") != std::string::npos);
  Weights out;
  CHECK(f.Export(f.shards, &out, /*unmarked=*/true) == absl::OkStatus());
  CHECK(out == Read(f.hf));
}

TEST_CASE("shards: with --unmarked, the files that do have marks must be of the same weights") {
  Fixture f;
  const Model model(f.hf), other(f.temp.path() / "other", 2);
  f.Shard(f.hf, f.shards, "tp=2,pp=2");
  f.Shard(other.dir, f.temp.path() / "step2", "tp=2,pp=2");
  Fixture::Rewrite(f.shards / RankFileName(0), [](auto& marks) { marks.clear(); });
  Weights out;
  REQUIRE(f.Export(f.shards, &out, /*unmarked=*/true) == absl::OkStatus());
  CHECK(out == Read(f.hf));
  fs::copy_file(f.temp.path() / "step2" / RankFileName(2), f.shards / RankFileName(2),
                fs::copy_options::overwrite_existing);
  const std::string why = TextOf(f.Export(f.shards, &out, /*unmarked=*/true));
  CHECK(why.find("rank_00002.safetensors says that it is cut from the weights") !=
        std::string::npos);
}

TEST_CASE("shards: tensors whose values are rounded on the way to a trainer are named") {
  Fixture f;
  const Model wide(f.hf, 1, DType::kF32), same(f.temp.path() / "same");
  const auto rounding = [&](const fs::path& dir) {
    const auto model = Get(mcore::HfModel::Open(dir, "", {}));
    const auto plan = Get(model.ProvenPlan(Get(mcore::ParallelConfig::Parse("tp=2"))));
    return Get(RoundingOf(plan, *model.checkpoint(), f.pool));
  };
  const Rounding narrowed = rounding(f.hf);
  CHECK(narrowed.narrowed.size() == Read(f.hf).size());
  CHECK(narrowed.shifted.empty());
  CHECK(rounding(same.dir).narrowed.empty());
  // Numbers that are only stored in more bits are not rounded, so none is named.
  const ModelDir source = Get(ModelDir::Open(same.dir));
  const fs::path widened = f.temp.path() / "widened";
  const Model in_its_place(widened, 1, DType::kF32);
  HfDir to = Get(HfDir::Create(widened, Get(ModelDir::Open(widened)).layout(), uint64_t{1} << 30));
  for (size_t i = 0; i < source.layout().size(); ++i) {
    const Bytes from = source.data(i);
    for (size_t k = 0; k < from.size() / 2; ++k) {
      std::memset(to.tensor(i).data() + 4 * k, 0, 2);
      std::memcpy(to.tensor(i).data() + 4 * k + 2, from.data() + 2 * k, 2);
    }
  }
  REQUIRE(to.Finish(f.pool) == absl::OkStatus());
  CHECK(rounding(widened).narrowed.empty());
}

TEST_CASE("shards: values that cannot be converted are named, whatever they are") {
  Fixture f;
  std::string config = kConfig;
  // The embedding has 16,384 elements, more than are converted at a time.
  config.replace(config.find("\"vocab_size\": 24"), 16, "\"vocab_size\": 1024");
  const Model wide(f.hf, 1, DType::kF64, config.c_str());
  const auto model = Get(mcore::HfModel::Open(f.hf, "", {}));
  const auto plan = Get(model.ProvenPlan(Get(mcore::ParallelConfig::Parse("tp=1"))));
  // Zeros are the same in every dtype, so only the dtype can tell.
  for (const auto& [name, bytes] : Read(f.hf)) CHECK(bytes.size() % 8 == 0);
  HfDir zeros = Get(HfDir::Create(f.hf, model.checkpoint()->layout(), uint64_t{1} << 30));
  REQUIRE(zeros.Finish(f.pool) == absl::OkStatus());
  const ModelDir hf = Get(ModelDir::Open(f.hf));
  const Rounding rounding = Get(RoundingOf(plan, hf, f.pool));
  CHECK(rounding.narrowed.size() == hf.layout().size());
  CHECK(rounding.shifted.empty());
  CHECK(TextOf(ShardDir::Write(f.shards, plan, hf, f.pool)).find("would round its values") !=
        std::string::npos);
}

TEST_CASE("shards: norms that HF has plus one are named where rounding changes them") {
  Fixture f;
  const Model model(f.hf, 1, DType::kBF16, kPlusOneConfig);
  const auto rounding = [&](const fs::path& dir, bool trainers) {
    const auto hf = Get(mcore::HfModel::Open(dir, "", {}));
    auto plan = Get(hf.ProvenPlan(Get(mcore::ParallelConfig::Parse("tp=2"))));
    if (trainers) plan = plan.WithTrainersValues();
    return Get(RoundingOf(plan, *hf.checkpoint(), f.pool));
  };
  CHECK(rounding(f.hf, false).shifted == std::vector<std::string>{kPlusOne});
  CHECK(rounding(f.hf, false).narrowed.empty());
  CHECK(rounding(f.hf, true).shifted.empty());
  // The other direction: a trainer's small values plus one take more bits than bf16 has.
  f.Shard(f.hf, f.shards, "tp=2,pp=2", /*trainers=*/true);
  Weights out;
  REQUIRE(f.Export(f.shards, &out) == absl::OkStatus());
  CHECK(f.shifted == std::vector<std::string>{kPlusOne});
  Weights wanted = Read(f.hf);
  CHECK(out.at(kPlusOne) != wanted.at(kPlusOne));
  out.erase(kPlusOne), wanted.erase(kPlusOne);
  CHECK(out == wanted);
  // Between shards nothing is added, so nothing is rounded.
  REQUIRE(f.Export(f.shards, &out, false, /*trainers=*/true) == absl::OkStatus());
  CHECK(f.shifted.empty());
  CHECK(out == Read(f.hf));
  // Values whose sum with one needs no rounding come back, so they are not named.
  const Model ones(f.temp.path() / "ones", 1, DType::kBF16, kPlusOneConfig);
  HfDir exact = Get(HfDir::Create(ones.dir, Get(ModelDir::Open(ones.dir)).layout(), 1 << 30));
  for (size_t i = 0; i < Get(ModelDir::Open(ones.dir)).layout().size(); ++i) {
    const MutableBytes values = exact.tensor(i);
    // 1.5 and 0.75 in turns.
    for (size_t k = 0; k < values.size() / 2; ++k) {
      StoreLe<uint16_t>(values.data() + 2 * k, k % 2 == 0 ? 0x3fc0 : 0x3f40);
    }
  }
  REQUIRE(exact.Finish(f.pool) == absl::OkStatus());
  CHECK(rounding(ones.dir, false).shifted.empty());
  f.Shard(ones.dir, f.temp.path() / "cut", "tp=2");
  REQUIRE(f.Export(f.temp.path() / "cut", &out) == absl::OkStatus());
  CHECK(f.shifted.empty());
  CHECK(out == Read(ones.dir));
}

TEST_CASE("HF directories: weights are cut into files of a size and an index finds them") {
  Fixture f;
  const Model model(f.hf);
  const Weights whole = Read(f.hf);
  const ModelDir source = Get(ModelDir::Open(f.hf));
  uint64_t largest = 0;
  for (const auto& [name, bytes] : whole) largest = std::max<uint64_t>(largest, bytes.size());
  for (const uint64_t limit : {uint64_t{1}, largest, 3 * largest}) {
    CAPTURE(limit);
    const fs::path to = f.temp.path() / std::to_string(limit);
    fs::create_directories(to);
    HfDir made = Get(HfDir::Create(to, source.layout(), limit));
    for (size_t i = 0; i < source.layout().size(); ++i) {
      std::copy(source.data(i).begin(), source.data(i).end(), made.tensor(i).begin());
    }
    REQUIRE(made.Finish(f.pool) == absl::OkStatus());
    if (limit == 1) CHECK(made.files() == whole.size());
    CHECK(made.files() > 1);
    CHECK(fs::exists(to / "model.safetensors.index.json"));
    CHECK(fs::exists(to / fmt::format("model-00001-of-{:05}.safetensors", made.files())));
    CHECK(Read(to) == whole);
    CHECK(Get(ModelDir::Open(to)).layout().fingerprint() == source.layout().fingerprint());
  }
  CHECK_FALSE(fs::exists(f.hf / "model.safetensors.index.json"));
  std::ifstream in(f.hf / "model.safetensors", std::ios::binary);
  const std::string all(std::istreambuf_iterator<char>(in), {});
  CHECK(Get(ParseSafetensorsHeader(AsBytes(all), all.size(), "it")).metadata ==
        std::map<std::string, std::string>{{"format", "pt"}});
}

/// The text between the fences of the document's only block of a language.
std::string Block(const std::string& language) {
  std::ifstream file(DELTAWIRE_SHARDS_DOC);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string fence = "```" + language + "\n";
  const size_t begin = text.find(fence);
  REQUIRE(begin != std::string::npos);
  return text.substr(begin + fence.size(), text.find("```", begin + 3) - begin - fence.size());
}

TEST_CASE("shards: the document's worked example is a rank's file") {
  const TempDir temp;
  const fs::path path = temp.path() / RankFileName(1);
  const std::string header = Block("json");
  std::istringstream hex(Block("hex"));
  std::string data;
  for (unsigned byte = 0; hex >> std::hex >> byte;) data += static_cast<char>(byte);
  std::string length(8, '\0');
  StoreLe<uint64_t>(reinterpret_cast<std::byte*>(length.data()), header.size());
  std::ofstream(path, std::ios::binary) << length << header << data;
  const RankFile file = Get(RankFile::Open(path));
  REQUIRE(file.marks());
  CHECK(file.marks()->rank == 1);
  CHECK(file.marks()->world == 2);
  CHECK(Get(mcore::ParallelConfig::Parse(file.marks()->parallel)).pp == 2);
  CHECK(file.params()[0].name == "decoder.final_layernorm.weight");
  CHECK(file.CheckDigest() == absl::OkStatus());
  CHECK(fmt::format("{:016x}", Xxh3(AsBytes(data))) == file.marks()->ToMetadata().at("digest"));
  // Every key that is written is in the document's table.
  std::ifstream in(DELTAWIRE_SHARDS_DOC);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  for (const auto& [key, value] : file.marks()->ToMetadata()) {
    CAPTURE(key);
    CHECK(text.find("\n| `" + key + "` |") != std::string::npos);
  }
}

TEST_CASE("weight files: what reads otherwise than it was filled is no success") {
  const TempDir temp;
  const Layout layout = Get(Layout::Create({{"a", DType::kU8, {5000}}}));
  WeightFile file = Get(WeightFile::Create(temp.path() / "w", layout, {{"digest", "0000"}}));
  CHECK_FALSE(file.Mark({{"digest", std::string(5000, '1')}}).ok());
  CHECK(file.Mark({{"digest", "1234"}}) == absl::OkStatus());
  file.tensor(0)[4999] = std::byte{7};
  const uint64_t digest = file.Digest();
  file.tensor(0)[4999] = std::byte{8};
  CHECK(absl::IsDataLoss(file.Seal(digest)));
}

TEST_CASE("small files: they are written anew, whole, and an error names the file") {
  const TempDir temp;
  const fs::path path = temp.path() / "parallel.json";
  for (const std::string& content : {std::string(100'000, 'x'), std::string("{}"), std::string()}) {
    REQUIRE(WriteSealed(path, content) == absl::OkStatus());
    std::ifstream in(path, std::ios::binary);
    CHECK(std::string(std::istreambuf_iterator<char>(in), {}) == content);
  }
  const std::string why = TextOf(WriteSealed(temp.path() / "none" / "a", "x"));
  CHECK(why.find((temp.path() / "none" / "a").string()) != std::string::npos);
}

TEST_CASE("small files: one that the disk gives back otherwise than it was written is no success") {
  const TempDir temp;
  const fs::path path = temp.path() / "parallel.json";
  const std::string content(100'000, 'x');
  for (off_t* fault : {&g_lost_from, &g_flipped_at}) {
    for (const off_t at : {0, 50'000, 99'999}) {
      CAPTURE(fault == &g_lost_from, at);
      *fault = at;
      const Status written = WriteSealed(path, content);
      *fault = -1;
      CHECK(absl::IsDataLoss(written));
      CHECK(TextOf(written).find(path.string()) != std::string::npos);
    }
  }
  CHECK(WriteSealed(path, content) == absl::OkStatus());
}

TEST_CASE("directories: weights that the disk gives back otherwise than written are no success") {
  Fixture f;
  const Model model(f.hf);
  f.Shard(f.hf, f.shards, "tp=2");
  const auto opened = Get(mcore::HfModel::Open(f.hf, "", {}));
  const ModelDir weights = Get(ModelDir::Open(f.hf));
  const auto plan = Get(opened.ProvenPlan(Get(mcore::ParallelConfig::Parse("tp=2"))));
  const fs::path again = f.temp.path() / "again";
  g_flipped_at = static_cast<off_t>(fs::file_size(f.shards / RankFileName(1))) - 1;
  const Status sharded = ShardDir::Write(again, plan, weights, f.pool);
  g_flipped_at = -1;
  CHECK(absl::IsDataLoss(sharded));
  CHECK(TextOf(sharded).find(again.string()) != std::string::npos);

  const fs::path to = f.temp.path() / "to";
  fs::create_directories(to);
  HfDir made = Get(HfDir::Create(to, weights.layout(), uint64_t{1} << 30));
  for (size_t i = 0; i < weights.layout().size(); ++i) {
    std::copy(weights.data(i).begin(), weights.data(i).end(), made.tensor(i).begin());
  }
  g_flipped_at = static_cast<off_t>(fs::file_size(f.hf / "model.safetensors")) - 1;
  const Status finished = made.Finish(f.pool);
  g_flipped_at = -1;
  CHECK(absl::IsDataLoss(finished));
  CHECK(TextOf(finished).find(to.string()) != std::string::npos);
}

}  // namespace
}  // namespace deltawire::shard_dir_test
