// Published models by their config.json: planned over large jobs, proven, and counted.
#include <fstream>
#include <sstream>

#include "tests/unit/export/mcore/plans.h"

namespace deltawire::mcore::models_test {
namespace {

using testing::Changed;
using testing::Planned;
using testing::PlanOf;
using testing::TextOf;

std::string ConfigOf(const std::string& name) {
  std::ifstream in(fmt::format("{}/{}.json", DELTAWIRE_HF_CONFIGS, name));
  INFO(name);
  REQUIRE(in.good());
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

uint64_t Parameters(const Layout& layout) {
  uint64_t n = 0;
  for (size_t i = 0; i < layout.size(); ++i) {
    n += layout.bytes(i) / DTypeBytes(layout.tensor(i).dtype);
  }
  return n;
}

struct Model {
  const char* config;
  const char* family;
  const char* parallel;
  // Of the language model: the parameters of transformers' module for the same config, with tied
  // weights counted once, and the routers' correction biases, which are buffers there.
  uint64_t parameters;
  uint64_t mtp = 0;  // besides these: MTP layers, which transformers does not make
};

const Model kModels[] = {
    {"llama_3_1_8b", "llama", "tp=8,pp=2", 8'030'261'248},
    {"mistral_7b_v0_1", "mistral", "tp=4,pp=4,vpp=2", 7'241'732'096},
    {"qwen2_5_7b", "qwen2", "tp=4,pp=2,vpp=7", 7'615'616'512},
    {"qwen3_0_6b", "qwen3", "tp=16,pp=2", 596'049'920},
    {"qwen3_8b", "qwen3", "tp=2,pp=6,spec=local", 8'190'735'360},
    {"qwen1_5_moe_a2_7b", "qwen2_moe", "tp=4,ep=15,etp=1", 14'315'784'192},
    {"qwen3_30b_a3b", "qwen3_moe", "tp=8,ep=8,etp=1,pp=4", 30'532'122'624},
    {"qwen3_235b_a22b", "qwen3_moe",
     "tp=4,ep=16,etp=1,pp=8,first_stage_layers=11,last_stage_layers=11", 235'093'634'560},
    {"mixtral_8x7b", "mixtral", "tp=2,ep=4,etp=4,pp=2,experts=sequential", 46'702'792'704},
    {"deepseek_v2_lite", "deepseek_v2", "tp=2,ep=8,etp=1,pp=3", 15'706'484'224},
    {"deepseek_v2", "deepseek_v2", "tp=8,ep=16,etp=1,pp=4,spec=local", 235'741'434'880},
    {"deepseek_v3", "deepseek_v3",
     "tp=8,pp=16,ep=32,etp=1,first_stage_layers=3,last_stage_layers=2,world=2048", 671'026'419'200,
     11'610'068'224},
    {"moonlight_16b_a3b", "deepseek_v3", "tp=4,ep=8,etp=2,pp=3", 15'960'110'208},
    {"kimi_k2", "deepseek_v3", "tp=8,ep=32,etp=1,mla_down_fusion=1", 1'026'408'232'448},
    {"glm_4_9b_0414", "glm4", "tp=8,pp=4,vpp=2", 9'400'279'040},
    {"glm_4_5_air", "glm4_moe", "tp=8,ep=16,etp=1,pp=2", 106'852'251'264, 2'375'059'584},
    {"glm_4_5", "glm4_moe", "tp=8,ep=16,etp=2,pp=4", 352'797'829'024, 3'988'069'792},
    {"gpt_oss_20b", "gpt_oss", "tp=8,ep=8,etp=2", 20'914'757'184},
    {"gpt_oss_120b", "gpt_oss", "tp=4,ep=16,etp=1,pp=4", 116'829'156'672},
    {"gemma_2_9b", "gemma2", "tp=8,pp=2", 9'241'705'984},
    {"gemma_3_4b", "gemma3", "tp=8,pp=2", 3'880'263'168},
    {"qwen2_5_vl_7b", "qwen2_vl", "tp=4,pp=4", 7'615'616'512},
    {"qwen3_vl_8b", "qwen3_vl", "tp=8,pp=4", 8'190'735'360},
    {"qwen3_vl_30b_a3b", "qwen3_vl_moe", "tp=4,ep=8,etp=1,pp=2", 30'532'122'624},
    {"qwen3_next_80b_a3b", "qwen3_next", "tp=8,ep=16,etp=1,pp=4", 79'674'391'296},
    {"qwen3_5_35b_a3b", "qwen3_5", "tp=4,ep=8,etp=1,pp=4", 34'660'610'688, 844'640'768},
    {"qwen3_5_9b", "qwen3_5", "tp=8,pp=2", 8'953'803'264, 243'290'624},
    // These are the defaults of transformers' configs.
    {"gemma_7b", "gemma", "tp=8,pp=4", 8'537'680'896},
    {"nemotron", "nemotron", "tp=8,pp=4,vpp=2", 15'628'775'424},
    {"phi3_mini", "phi3", "tp=8,pp=4", 3'821'079'552},
    {"seed_oss_36b", "seed_oss", "tp=8,pp=4", 28'921'040'896},
    {"exaone4", "exaone4", "tp=8,pp=4", 9'429'069'824},
    {"olmo3", "olmo3", "tp=8,pp=4,vpp=2", 6'888'624'128},
    {"glm_4_7_flash", "glm4_moe_lite", "tp=4,ep=8,etp=1,pp=2,first_stage_layers=23",
     29'943'393'920},
    {"deepseek_v3_2", "deepseek_v32",
     "tp=8,pp=16,ep=32,etp=1,first_stage_layers=3,last_stage_layers=2,world=2048", 671'877'944'064},
    {"glm_5", "deepseek_v32", "tp=8,ep=32,etp=1,pp=6", 743'911'218'432},
    {"minimax_m2", "minimax_m2", "tp=8,ep=32,etp=2,pp=2", 228'689'764'864},
    {"hy_v3", "hy_v3", "tp=8,ep=16,etp=1,pp=4", 295'033'543'488},
    {"sarvam_moe", "bailing_moe_v2", "tp=4,ep=16,etp=1", 32'152'650'368},
    {"exaone_moe", "exaone_moe", "tp=8,ep=16,etp=1,pp=2", 28'550'641'600},
    {"olmoe_1b_7b", "olmoe", "tp=4,ep=16,etp=1,pp=2", 6'919'161'856},
    {"ernie_4_5_21b", "ernie4_5_moe", "tp=4,ep=16,etp=1,pp=2", 21'825'437'888},
    {"ernie_4_5_0_3b", "ernie4_5", "tp=4,pp=2", 360'748'032},
    {"starcoder2_7b", "starcoder2", "tp=4,pp=4", 7'173'923'840},
    {"granite_3_8b", "granite", "tp=8,pp=4", 8'170'848'256},
    {"nemotron_3_nano_30b", "nemotron_h", "tp=4,ep=16,etp=1,pp=4", 31'577'940'288},
    {"nemotron_3_nano_4b", "nemotron_h", "tp=8,pp=2", 3'973'556'832},
    {"llama_4_scout_text", "llama4_text", "tp=8,ep=16,etp=1,pp=2", 107'769'861'120},
    {"falcon_h1", "falcon_h1", "tp=1,pp=4", 8'514'961'408},
    {"mimo_v2_flash", "mimo_v2_flash", "tp=4,ep=32,etp=1,pp=4", 308'778'780'864},
    {"gemma_4_dense", "gemma4_dense_text", "tp=8", 7'019'339'044},
    {"deepseek_v4", "deepseek_v4", "tp=8,ep=32,etp=1,pp=4,first_stage_layers=10", 284'325'879'255,
     6'610'048'891},
};

TEST_CASE("models: published configs are planned whole, with as many parameters as are known") {
  for (const Model& model : kModels) {
    CAPTURE(model.config);
    const std::string config = ConfigOf(model.config);
    const Planned p = PlanOf(config, model.parallel);
    CHECK(p.family->name == model.family);
    const Status covered = p.plan.Check().ToStatus();
    CAPTURE(TextOf(covered));
    CHECK(covered.ok());
    CHECK(Parameters(p.plan.layout()) == model.parameters + model.mtp);
    const bool tied = config.find("\"tie_word_embeddings\": true") != std::string::npos ||
                      p.family->name.starts_with("gemma");
    const char* const head = p.family->name == "deepseek_v4" ? "head.weight" : "lm_head.weight";
    CHECK(p.plan.layout().Find(head).has_value() != tied);
    // The bytes that the ranks write add up to the model.
    uint64_t written = 0;
    for (const uint64_t bytes : p.plan.BytesPerRank()) written += bytes;
    CHECK(written == p.plan.layout().total_bytes());
    if (model.mtp != 0) {
      CHECK(Parameters(PlanOf(config, std::string("mtp=false,") + model.parallel).plan.layout()) ==
            model.parameters);
    }
  }
}

/// The parameters of a published file whose MTP layer holds copies of the embedding and of the
/// output layer.
uint64_t WithMtpCopies(const char* name, uint32_t layers, std::vector<uint64_t> shape) {
  const std::string config = ConfigOf(name);
  const std::string mtp = fmt::format("model.layers.{}.", layers);
  const Layout listing = Changed(PlanOf(config, "").plan.layout(), {},
                                 {{mtp + "embed_tokens.weight", DType::kBF16, shape},
                                  {mtp + "shared_head.head.weight", DType::kBF16, shape}});
  const Planned p = PlanOf(config, "tp=8,ep=8,etp=1", &listing);
  CHECK(p.plan.Check().ok());
  return Parameters(p.plan.layout());
}

TEST_CASE("models: parameters add up to the totals that the hub shows for published files") {
  CHECK(WithMtpCopies("glm_4_5_air", 46, {151552, 4096}) == 110'468'824'832);
  CHECK(WithMtpCopies("glm_4_5", 92, {151552, 5120}) == 358'337'791'296);
  // The hub's total has the scales of the fp8 weights as well, one for each block of 128 by 128.
  CHECK(WithMtpCopies("deepseek_v3", 61, {129280, 7168}) == 684'489'845'504);
  // No field of its config announces the MTP layer; the checkpoint does.
  std::string next = ConfigOf("qwen3_next_80b_a3b");
  const Layout without = PlanOf(next, "").plan.layout();
  std::string announced = next;
  announced.insert(1, "\"num_nextn_predict_layers\": 1,");
  const Layout listing = PlanOf(announced, "").plan.layout();
  CHECK(Parameters(listing) == 81'324'862'720);
  const Planned p = PlanOf(next, "tp=8,ep=16,etp=1,pp=4", &listing);
  CHECK(p.plan.Check().ok());
  CHECK(p.plan.not_trained().empty());
  CHECK(PlanOf(next, "tp=8,ep=16,etp=1,pp=4", &without).plan.Check().ok());
}

TEST_CASE("models: shapes that are easily mistaken are those of HF") {
  const auto shape = [](const char* model, const std::string& name) {
    const Layout layout = PlanOf(ConfigOf(model), "").plan.layout();
    const auto found = layout.Find(name);
    INFO(name);
    REQUIRE(found.has_value());
    return layout.tensor(*found).shape;
  };
  using S = std::vector<uint64_t>;
  CHECK(shape("qwen3_0_6b", "model.layers.0.self_attn.q_proj.weight") == S{2048, 1024});
  CHECK(shape("gpt_oss_20b", "model.layers.3.mlp.experts.gate_up_proj") == S{32, 2880, 5760});
  CHECK(shape("gpt_oss_20b", "model.layers.3.mlp.experts.gate_up_proj_bias") == S{32, 5760});
  CHECK(shape("gpt_oss_20b", "model.layers.3.self_attn.sinks") == S{64});
  CHECK(shape("qwen3_vl_30b_a3b", "model.language_model.layers.0.mlp.experts.gate_up_proj") ==
        S{128, 2048, 1536});
  CHECK(shape("qwen3_vl_30b_a3b", "model.language_model.layers.0.mlp.experts.down_proj") ==
        S{128, 768, 2048});
  CHECK(shape("qwen3_5_35b_a3b", "model.language_model.layers.0.mlp.experts.gate_up_proj") ==
        S{256, 1024, 2048});
  CHECK(shape("qwen3_5_35b_a3b", "model.language_model.layers.0.linear_attn.conv1d.weight") ==
        S{8192, 1, 4});
  CHECK(shape("qwen3_next_80b_a3b", "model.layers.0.linear_attn.in_proj_qkvz.weight") ==
        S{12288, 2048});
  CHECK(shape("qwen3_next_80b_a3b", "model.layers.0.linear_attn.in_proj_ba.weight") == S{64, 2048});
  CHECK(shape("qwen3_next_80b_a3b", "model.layers.3.self_attn.q_proj.weight") == S{8192, 2048});
  CHECK(shape("deepseek_v3", "model.layers.61.eh_proj.weight") == S{7168, 14336});
  CHECK(shape("glm_4_9b_0414", "model.layers.0.mlp.gate_up_proj.weight") == S{27392, 4096});
  CHECK(shape("gemma_3_4b", "language_model.model.layers.0.self_attn.q_norm.weight") == S{256});
}

}  // namespace
}  // namespace deltawire::mcore::models_test
