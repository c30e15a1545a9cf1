// Finding a plan's parameters among those that a trainer lists.
#include "sender/export/mcore/transfer.h"
#include "tests/unit/export/mcore/plans.h"

namespace deltawire::mcore::match_test {
namespace {

using testing::Get;
using testing::kTinyGlmMoe;
using testing::kTinyLlama;
using testing::Planned;
using testing::PlanOf;
using testing::TextOf;

/// The parameters that a trainer with this plan would list, except for the optional ones.
std::vector<LiveParam> Live(const Plan& plan, uint32_t rank) {
  std::vector<LiveParam> live;
  for (const ShardParam& s : plan.Rank(rank)) {
    if (!s.optional) live.push_back({s.chunk, s.names.front(), s.dtype, s.shape});
  }
  return live;
}

LiveParam& Named(std::vector<LiveParam>& live, const std::string& name) {
  const auto it =
      std::find_if(live.begin(), live.end(), [&](const LiveParam& p) { return p.name == name; });
  INFO(name);
  REQUIRE(it != live.end());
  return *it;
}

std::string Refusal(const Plan& plan, uint32_t rank, const std::vector<LiveParam>& live) {
  const auto matches = MatchRank(plan, rank, live);
  REQUIRE_FALSE(matches.ok());
  return TextOf(matches);
}

TEST_CASE("match: every parameter of a rank is matched once") {
  const Planned p = PlanOf(kTinyGlmMoe, "tp=2,pp=2,ep=2,etp=1,vpp=1,first_stage_layers=1");
  for (uint32_t rank = 0; rank < p.plan.parallel().world(); ++rank) {
    CAPTURE(rank);
    const auto live = Live(p.plan, rank);
    const auto matches = Get(MatchRank(p.plan, rank, live));
    CHECK(matches.size() == live.size());
    for (const Match& m : matches) CHECK(m.shard.names.front() == live[m.live].name);
  }
}

TEST_CASE("match: missing, unknown, misshapen and doubled parameters are named") {
  const Planned p = PlanOf(kTinyLlama, "tp=2,pp=2");
  const char* qkv = "decoder.layers.0.self_attention.linear_qkv.weight";
  auto live = Live(p.plan, 1);
  const auto good = live;
  std::erase_if(live, [&](const LiveParam& l) { return l.name == qkv; });
  CHECK(Refusal(p.plan, 1, live).find(fmt::format("rank 1: 1 parameters do not fit the plan")) ==
        0);
  CHECK(Refusal(p.plan, 1, live).find(fmt::format("{} (chunk 0, [24, 24]) is missing", qkv)) !=
        std::string::npos);
  live = good;
  live.push_back({0, "decoder.layers.0.strange.weight", DType::kBF16, {1}});
  CHECK(Refusal(p.plan, 1, live).find("decoder.layers.0.strange.weight (chunk 0) is unknown") !=
        std::string::npos);
  live = good;
  Named(live, qkv).shape = {24, 23};
  CHECK(Refusal(p.plan, 1, live)
            .find(fmt::format("{} (chunk 0) is [24, 23], wanted [24, 24]", qkv)) !=
        std::string::npos);
  // A transposed shape is another shape, although it has as many elements.
  Named(live = good, "decoder.layers.0.mlp.linear_fc2.weight").shape = {8, 24};
  CHECK(Refusal(p.plan, 1, live).find("is [8, 24], wanted [24, 8]") != std::string::npos);
  live = good;
  live.push_back(Named(live, qkv));
  CHECK(Refusal(p.plan, 1, live).find("is there twice") != std::string::npos);
  // A parameter of the same name in another chunk is another parameter.
  Named(live = good, qkv).chunk = 1;
  CHECK(Refusal(p.plan, 1, live).find("(chunk 1) is unknown") != std::string::npos);
  CHECK(Refusal(p.plan, 1, {}).find("... and ") == std::string::npos);
  std::vector<LiveParam> many = good;
  for (int i = 0; i < 20; ++i) many.push_back({0, fmt::format("x{}", i), DType::kBF16, {1}});
  CHECK(Refusal(p.plan, 1, many).find("... and 10 more") != std::string::npos);
}

constexpr const char* kMtpHint = "\n  (a job without MTP layers: mtp=false)";
constexpr const char* kVisionHint = "\n  (a job that does not hold the vision part: vision=false)";

/// What is said to a trainer that lists all of the plan but the names that begin with one of
/// `absent`.
std::string RefusalWithout(const Plan& plan, const std::vector<std::string>& absent) {
  auto live = Live(plan, 0);
  const size_t all = live.size();
  std::erase_if(live, [&](const LiveParam& l) {
    return std::any_of(absent.begin(), absent.end(),
                       [&](const std::string& a) { return l.name.starts_with(a); });
  });
  CHECK(live.size() < all);
  return Refusal(plan, 0, live);
}

TEST_CASE("match: a job that lacks its MTP layers is told of mtp=false") {
  const std::string said = RefusalWithout(PlanOf(kTinyGlmMoe, "").plan, {"mtp."});
  CHECK(said.ends_with(kMtpHint));
  CHECK(said.find("vision=false") == std::string::npos);
}

/// A model with vision and an MTP layer, and the checkpoint's listing with a tensor of the tower.
constexpr const char* kVisionAndMtp = R"({"model_type": "qwen3_5", "text_config":
  {"model_type": "qwen3_5_text", "num_hidden_layers": 2, "hidden_size": 24,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 16,
  "vocab_size": 19, "full_attention_interval": 2, "linear_num_key_heads": 2,
  "linear_num_value_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 4,
  "linear_conv_kernel_dim": 4, "mtp_num_hidden_layers": 1}})";
Layout VisionListing() {
  return testing::Changed(PlanOf(kVisionAndMtp, "").plan.layout(), {},
                          {{"model.visual.merger.weight", DType::kBF16, {3, 4}}});
}

TEST_CASE("match: a job that lacks the vision part is told of vision=false") {
  const Layout listing = VisionListing();
  const Planned p = PlanOf(kVisionAndMtp, "", &listing);
  const std::string said = RefusalWithout(p.plan, {"vision_model."});
  CHECK(said.ends_with(kVisionHint));
  CHECK(said.find("mtp=false") == std::string::npos);
}

TEST_CASE("match: a job that lacks both vision and MTP is told of both") {
  const Layout listing = VisionListing();
  const Planned p = PlanOf(kVisionAndMtp, "", &listing);
  const std::string said = RefusalWithout(p.plan, {"vision_model.", "language_model.mtp."});
  CHECK(said.find(kMtpHint) != std::string::npos);
  CHECK(said.find(kVisionHint) != std::string::npos);
  // With both keys that job fits.
  const Planned less = PlanOf(kVisionAndMtp, "mtp=false,vision=false", &listing);
  CHECK(MatchRank(less.plan, 0, Live(less.plan, 0)).ok());
}

TEST_CASE("match: ones in a shape do not count") {
  const Planned p = PlanOf(kTinyLlama, "tp=2");
  auto live = Live(p.plan, 0);
  Named(live, "decoder.final_layernorm.weight").shape = {1, 24};
  CHECK(MatchRank(p.plan, 0, live).ok());
}

TEST_CASE("match: wrappers' prefixes are passed over, and a model's own may be missing") {
  const Planned p = PlanOf(kTinyLlama, "tp=2");
  for (const char* prefix :
       {"module.", "module.module.", "_orig_mod.module.", "module._orig_mod."}) {
    CAPTURE(prefix);
    auto live = Live(p.plan, 0);
    for (LiveParam& l : live) l.name = prefix + l.name;
    CHECK(MatchRank(p.plan, 0, live).ok());
  }
  const char* vl = R"({"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text",
    "num_hidden_layers": 1, "hidden_size": 24, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 16, "vocab_size": 19}})";
  const Planned v = PlanOf(vl, "tp=2");
  auto live = Live(v.plan, 0);
  for (const LiveParam& l : live) CHECK(l.name.find("language_model.") == 0);
  CHECK(MatchRank(v.plan, 0, live).ok());
  for (LiveParam& l : live) l.name = l.name.substr(15);
  CHECK(MatchRank(v.plan, 0, live).ok());
}

TEST_CASE("match: what no export needs is passed over") {
  const Planned p = PlanOf(kTinyLlama, "tp=2");
  auto live = Live(p.plan, 0);
  live.push_back({0, "decoder.layers.0.self_attention._extra_state", DType::kU8, {3}});
  live.push_back({0, "rotary_pos_emb.inv_freq", DType::kF32, {3}});
  CHECK(MatchRank(p.plan, 0, live).ok());
}

TEST_CASE("match: names of the other spec and of the other kind of experts are accepted") {
  // The other job's parameters are cut alike, so its names are all that differs.
  for (const char* config : {kTinyLlama, kTinyGlmMoe}) {
    const Planned te = PlanOf(config, "tp=2,spec=te,experts=grouped");
    const Planned local = PlanOf(config, "tp=2,spec=local,experts=sequential");
    for (uint32_t rank = 0; rank < 2; ++rank) {
      auto live = Live(local.plan, rank);
      CHECK(MatchRank(te.plan, rank, live).ok());
      CHECK(MatchRank(local.plan, rank, Live(te.plan, rank)).ok());
      if (config == kTinyLlama) Named(live, "decoder.layers.0.input_layernorm.weight");
    }
  }
}

TEST_CASE("match: an MTP layer's inner layer is found by its older and by its newer name") {
  const Planned p = PlanOf(kTinyGlmMoe, "");
  auto live = Live(p.plan, 0);
  Named(live, "mtp.layers.0.transformer_layer.mlp.router.weight");
  for (LiveParam& l : live) {
    const size_t at = l.name.find(".transformer_layer.");
    if (at != std::string::npos) l.name.replace(at, 19, ".mtp_model_layer.");
  }
  CHECK(MatchRank(p.plan, 0, live).ok());
}

constexpr const char* kMla = R"({"model_type": "deepseek_v3", "num_hidden_layers": 1,
  "hidden_size": 24, "num_attention_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 6,
  "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4, "first_k_dense_replace": 1,
  "intermediate_size": 16, "n_routed_experts": 2, "vocab_size": 19})";

TEST_CASE("match: the shape of an MLA down projection says whether it is whole or cut") {
  const Planned p = PlanOf(kMla, "tp=2,cp=2,spec=te");
  const std::string down = "decoder.layers.0.self_attention.linear_q_down_proj.weight";
  const auto split_of = [&](uint32_t rank, std::vector<uint64_t> shape) {
    auto live = Live(p.plan, rank);
    Named(live, down).shape = std::move(shape);
    for (const Match& m : Get(MatchRank(p.plan, rank, live))) {
      if (live[m.live].name == down) return m;
    }
    FAIL("not matched");
    return Match{};
  };
  const Match whole0 = split_of(0, {8, 24}), whole1 = split_of(1, {8, 24});
  CHECK(whole0.split == Split::kNone);
  CHECK(whole0.shard.writes);
  CHECK_FALSE(whole1.shard.writes);
  // Where the rows are cut, the ranks of the first copy write, each its own rows.
  for (uint32_t rank = 0; rank < 4; ++rank) {
    CAPTURE(rank);
    const Match cut = split_of(rank, {4, 24});
    CHECK(cut.split == Split::kRows);
    CHECK(cut.shard.shard == rank % 2);
    CHECK(cut.shard.writes == (rank < 2));
    const auto boxes = p.plan.Boxes(cut.shard, cut.split);
    REQUIRE(boxes.size() == 1);
    CHECK(boxes[0].lo[2] == rank % 2 * 4);
  }
  auto live = Live(p.plan, 0);
  Named(live, down).shape = {2, 24};
  CHECK(Refusal(p.plan, 0, live).find("is [2, 24], wanted [8, 24]") != std::string::npos);
}

TEST_CASE("match: a norm fused into MLA's undivided query projection is not the input's norm") {
  std::string config = kMla;
  config.replace(config.find("\"q_lora_rank\": 8"), 16, "\"q_lora_rank\": null");
  for (const char* core : {"0.16", "0.19"}) {
    CAPTURE(core);
    const Planned p = PlanOf(config, fmt::format("tp=2,spec=te,core_version={}", core));
    auto live = Live(p.plan, 0);
    Named(live, "decoder.layers.0.input_layernorm.weight");
    CHECK(MatchRank(p.plan, 0, live).ok());
    // A trainer that has it has it beside the input's norm, and HF has no place for it.
    const std::string norm = "decoder.layers.0.self_attention.linear_q_proj.layer_norm_weight";
    live.push_back({0, norm, DType::kBF16, {24}});
    CHECK(Refusal(p.plan, 0, live).find(norm + " (chunk 0) is unknown here") != std::string::npos);
  }
}

TEST_CASE("match: a cut that does not divide is no cut") {
  std::string config = kMla;
  config.replace(config.find("\"q_lora_rank\": 8"), 16, "\"q_lora_rank\": 7");
  const Planned p = PlanOf(config, "tp=2,spec=te");
  auto live = Live(p.plan, 0);
  Named(live, "decoder.layers.0.self_attention.linear_q_down_proj.weight").shape = {3, 24};
  CHECK(Refusal(p.plan, 0, live).find("is [3, 24], wanted [7, 24]") != std::string::npos);
}

TEST_CASE("match: a fused MLA down projection may have its norm or be without it") {
  const Planned p = PlanOf(kMla, "tp=2,mla_down_fusion=1");
  auto live = Live(p.plan, 0);
  CHECK(MatchRank(p.plan, 0, live).ok());
  Named(live, "decoder.layers.0.input_layernorm.weight").name =
      "decoder.layers.0.self_attention.linear_qkv_down_proj.layer_norm_weight";
  Named(live, "decoder.layers.0.self_attention.linear_qkv_down_proj.weight").shape = {8, 24};
  CHECK(MatchRank(p.plan, 0, live).ok());
}

TEST_CASE("match: a tied model's output layer may be there or not, and is never exported") {
  std::string config = kTinyLlama;
  config.insert(1, "\"tie_word_embeddings\": true, ");
  const Planned p = PlanOf(config, "tp=2,pp=2");
  auto live = Live(p.plan, 2);
  CHECK(MatchRank(p.plan, 2, live).ok());
  live.push_back({0, "output_layer.weight", DType::kBF16, {128, 24}});
  for (const Match& m : Get(MatchRank(p.plan, 2, live))) {
    if (live[m.live].name == "output_layer.weight") CHECK_FALSE(m.shard.writes);
  }
}

TEST_CASE("match: values are widened but never rounded") {
  const Planned p = PlanOf(kTinyLlama, "");
  const ShardParam shard = p.plan.Rank(0).front();
  CHECK(StepsOf(p.plan, shard, DType::kBF16, Split::kRows, Direction::kToHf).ok());
  const auto refused = StepsOf(p.plan, shard, DType::kF32, Split::kRows, Direction::kToHf);
  REQUIRE_FALSE(refused.ok());
  CHECK(TextOf(refused).find("would round its values") != std::string::npos);
}

}  // namespace
}  // namespace deltawire::mcore::match_test
