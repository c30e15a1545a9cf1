#include "bench/export/job.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

namespace deltawire::bench {
namespace {

constexpr uint64_t kAlignment = 512;  // of a trainer's allocator
constexpr std::string_view kTiny = R"({"model_type": "qwen3_moe", "num_hidden_layers": 2,
  "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
  "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 4,
  "decoder_sparse_step": 1, "vocab_size": 300, "tie_word_embeddings": false})";

std::vector<MegatronJob> TinyJob() {
  return {{"tiny/tp2 ep2", std::string(kTiny), "tp=2,ep=2,etp=1"}};
}

/// Returns the config.json of a published checkpoint, cut down by `changes` (a JSON merge patch).
std::string Published(const std::string& name, std::string_view changes = "{}") {
  std::ifstream in(std::string(DELTAWIRE_HF_CONFIGS "/") + name + ".json");
  nlohmann::json config = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  config.merge_patch(nlohmann::json::parse(changes));
  return config.dump();
}

std::string SmallQwen3Moe() {
  return Published("qwen3_30b_a3b",
                   R"({"num_hidden_layers": 2, "num_experts": 32, "vocab_size": 32768})");
}

uint64_t SizeOf(const mcore::ShardParam& s) {
  return std::accumulate(s.shape.begin(), s.shape.end(), uint64_t{DTypeBytes(s.dtype)},
                         std::multiplies<>());
}

uint64_t Aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

std::vector<MegatronJob> PlannedJobs(bool tiny) {
  if (tiny) return TinyJob();
  return {
      {"qwen3-0.6b, 8 ranks", Published("qwen3_0_6b"), "tp=2,world=8"},
      {"gpt-oss-20b, 16 ranks", Published("gpt_oss_20b"), "tp=2,ep=8,etp=1,world=16"},
      {"qwen3-30b-a3b, 64 ranks", Published("qwen3_30b_a3b"), "tp=4,pp=2,ep=8,etp=1,world=64"},
      {"qwen3-next-80b-a3b, 128 ranks", Published("qwen3_next_80b_a3b"),
       "tp=2,pp=4,ep=32,etp=1,world=128"},
      {"qwen3-235b-a22b, 512 ranks", Published("qwen3_235b_a22b"),
       "tp=4,pp=2,ep=32,etp=1,world=512"},
      {"deepseek-v3, 2048 ranks", Published("deepseek_v3"),
       "tp=2,pp=16,ep=64,etp=1,world=2048,layout=Ettt|(tttt|)*14ttmL"},
  };
}

std::vector<MegatronJob> PlacedJobs(bool tiny) {
  if (tiny) return TinyJob();
  const std::string qwen3 = Published("qwen3_0_6b"), qwen3_moe = SmallQwen3Moe();
  const std::string gpt_oss = Published(
      "gpt_oss_20b", R"({"num_hidden_layers": 2, "num_local_experts": 12, "vocab_size": 16384})");
  // One dense layer, one of experts, no MTP.
  const std::string deepseek = Published(
      "deepseek_v3", R"({"num_hidden_layers": 2, "n_routed_experts": 8, "first_k_dense_replace": 1,
                         "num_nextn_predict_layers": 0, "vocab_size": 8192})");
  return {
      {"qwen3-0.6b/tp1", qwen3, "tp=1"},
      {"qwen3-0.6b/tp2 pp2", qwen3, "tp=2,pp=2"},
      {"qwen3-0.6b/tp8", qwen3, "tp=8"},
      {"qwen3-30b-a3b/tp2 ep4", qwen3_moe, "tp=2,ep=4,etp=1,world=4"},
      {"qwen3-30b-a3b/tp4 etp4", qwen3_moe, "tp=4,etp=4"},
      {"deepseek-v3/tp2 pp2 ep4", deepseek, "tp=2,pp=2,ep=4,etp=1,world=8"},
      {"deepseek-v3/tp8 etp2 ep4", deepseek, "tp=8,ep=4,etp=2"},
      {"gpt-oss-20b/tp2 ep4", gpt_oss, "tp=2,ep=4,etp=1,world=4"},
      {"gpt-oss-20b/tp4 etp4", gpt_oss, "tp=4,etp=4"},
  };
}

std::vector<MegatronJob> GatheredJobs(bool tiny) {
  if (tiny) return TinyJob();
  return {{"qwen3-0.6b/tp2", Published("qwen3_0_6b"), "tp=2"},
          {"qwen3-30b-a3b/ep2", SmallQwen3Moe(), "tp=1,ep=2,etp=1,world=2"}};
}

StatusOr<std::unique_ptr<Planned>> Planned::Make(const MegatronJob& job) {
  auto made = std::make_unique<Planned>();
  DW_ASSIGN_OR_RETURN(made->families_, mcore::FamilySet::Load({}));
  DW_ASSIGN_OR_RETURN(made->config_, mcore::HfConfig::Parse(job.config));
  DW_ASSIGN_OR_RETURN(const mcore::Family* family, made->families_.Select(*made->config_));
  DW_ASSIGN_OR_RETURN(const auto parallel, mcore::ParallelConfig::Parse(job.parallel));
  DW_ASSIGN_OR_RETURN(made->plan_, mcore::Plan::Make(*family, *made->config_, parallel));
  DW_RETURN_IF_ERROR(made->plan_->Check().ToStatus());
  return made;
}

std::vector<mcore::Match> WrittenBy(const mcore::Plan& plan, uint32_t rank) {
  std::vector<mcore::Match> out;
  for (mcore::ShardParam& s : plan.Rank(rank)) {
    if (!s.writes || s.shape.empty()) continue;
    const mcore::Split split = plan.planned()[s.planned].cut.split;
    out.push_back({out.size(), std::move(s), split});
  }
  return out;
}

StatusOr<Shards> Shards::Make(const mcore::Plan& plan, const std::vector<uint32_t>& ranks) {
  Shards out;
  out.plan_ = &plan;
  uint64_t size = 0;
  for (const uint32_t rank : ranks) {
    Rank& r = out.ranks_.emplace_back();
    r.matches = WrittenBy(plan, rank);
    for (const mcore::Match& m : r.matches) {
      size += Aligned(SizeOf(m.shard));
      r.live.push_back({m.shard.chunk, m.shard.names.front(), m.shard.dtype, m.shard.shape});
    }
  }
  DW_ASSIGN_OR_RETURN(out.memory_, HugeBuffer::Create(std::max<uint64_t>(size, 1)));
  uint64_t at = 0;
  for (Rank& r : out.ranks_) {
    for (const mcore::Match& m : r.matches) {
      r.data.push_back(out.memory_.data().subspan(at, SizeOf(m.shard)));
      at += Aligned(SizeOf(m.shard));
    }
  }
  return out;
}

StatusOr<std::vector<mcore::Transfer>> Shards::Programs(mcore::Direction direction) const {
  std::vector<mcore::Transfer> out;
  for (const Rank& r : ranks_) {
    mcore::Transfer& transfer = out.emplace_back();
    for (const mcore::Match& m : r.matches) {
      DW_ASSIGN_OR_RETURN(auto steps, StepsOf(*plan_, m.shard, m.shard.dtype, m.split, direction));
      transfer.Add(std::move(steps), r.data[m.live]);
    }
  }
  return out;
}

void Shards::Run(std::span<const mcore::Transfer> programs, mcore::Direction direction,
                 MutableBytes half, ThreadPool& pool) const {
  const auto tensor = [&](uint32_t t) {
    return half.subspan(plan_->layout().offset(t), plan_->layout().bytes(t));
  };
  for (const mcore::Transfer& transfer : programs) transfer.Run(direction, tensor, pool);
}

Status Shards::FillFrom(MutableBytes half) const {
  ThreadPool pool(1);
  FillByPlace(half);
  DW_ASSIGN_OR_RETURN(const auto programs, Programs(mcore::Direction::kFromHf));
  Run(programs, mcore::Direction::kFromHf, half, pool);
  return absl::OkStatus();
}

}  // namespace deltawire::bench
