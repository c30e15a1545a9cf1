// What a plan takes from a checkpoint's own tensors: copies, the root of names, how experts are
// packed, and what stays as it is.
#include "tests/unit/export/mcore/plans.h"

namespace deltawire::mcore::listing_test {
namespace {

using testing::Changed;
using testing::Get;
using testing::kTinyGlmMoe;
using testing::kTinyLlama;
using testing::Planned;
using testing::PlanOf;
using testing::TextOf;

void CheckWhole(const Planned& p) {
  const Status status = p.plan.Check().ToStatus();
  CAPTURE(TextOf(status));
  CHECK(status.ok());
}

TEST_CASE("listing: its order and dtypes count") {
  const Layout own = PlanOf(kTinyLlama, "").plan.layout();
  std::vector<TensorMeta> metas(own.tensors().rbegin(), own.tensors().rend());
  metas[0].dtype = DType::kF32;
  const Layout listing = Get(Layout::Create(metas));
  const Planned p = PlanOf(kTinyLlama, "tp=4,pp=2", &listing);
  CheckWhole(p);
  CHECK(p.plan.layout().fingerprint() == listing.fingerprint());
}

TEST_CASE("listing: a tied output layer is written where the checkpoint has one") {
  std::string config = kTinyLlama;
  config.insert(1, "\"tie_word_embeddings\": true, ");
  const Layout own = PlanOf(config, "").plan.layout();
  CHECK_FALSE(own.Find("lm_head.weight").has_value());
  const Layout listing = Changed(own, {}, {{"lm_head.weight", DType::kBF16, {19, 24}}});
  CheckWhole(PlanOf(config, "tp=2,pp=2", &listing));
  CheckWhole(PlanOf(config, "tp=2,pp=2", &own));
}

TEST_CASE("listing: an MTP layer may hold copies of the embedding and of the output layer") {
  const Layout own = PlanOf(kTinyGlmMoe, "").plan.layout();
  const Layout listing =
      Changed(own, {},
              {{"model.layers.3.embed_tokens.weight", DType::kBF16, {19, 24}},
               {"model.layers.3.shared_head.head.weight", DType::kBF16, {19, 24}}});
  CheckWhole(PlanOf(kTinyGlmMoe, "tp=2,ep=2,pp=3", &listing));
  // No parameter makes such tensors of a layer that the model does not have.
  const Layout other =
      Changed(own, {}, {{"model.layers.4.embed_tokens.weight", DType::kBF16, {19, 24}}});
  CHECK(PlanOf(kTinyGlmMoe, "", &other).plan.Check().missing == 1);
}

TEST_CASE("listing: MTP layers that config.json states and the checkpoint lacks are not planned") {
  const Layout own = PlanOf(kTinyGlmMoe, "").plan.layout();
  std::vector<std::string> mtp;
  for (const TensorMeta& t : own.tensors()) {
    if (t.name.starts_with("model.layers.3.")) mtp.push_back(t.name);
  }
  REQUIRE_FALSE(mtp.empty());
  const Layout resaved = Changed(own, mtp);
  const Planned p = PlanOf(kTinyGlmMoe, "tp=2,pp=3", &resaved);
  CheckWhole(p);
  REQUIRE(p.plan.notes().size() == 1);
  CHECK(p.plan.notes()[0].find("states 1 MTP layers") != std::string::npos);
  CHECK(p.plan.notes()[0].find("mtp=false") != std::string::npos);
  // A checkpoint that has some of the MTP tensors is incomplete, and does not count as one without
  // MTP.
  mtp.pop_back();
  const Layout torn = Changed(own, mtp);
  const Planned less = PlanOf(kTinyGlmMoe, "tp=2,pp=3", &torn);
  CHECK(less.plan.Check().unlisted == mtp.size());
  CHECK(less.plan.notes().empty());
  CHECK(PlanOf(kTinyGlmMoe, "tp=2,pp=3", &own).plan.notes().empty());
}

TEST_CASE("listing: a quantised checkpoint is called one") {
  std::vector<TensorMeta> metas = PlanOf(kTinyLlama, "").plan.layout().tensors();
  metas[3].dtype = DType::kF8E4M3;
  const Layout eight = Get(Layout::Create(metas));
  const HfConfig config = Get(HfConfig::Parse(kTinyLlama));
  const Family* family = Get(testing::Families().Select(config));
  const std::string said = TextOf(Plan::Make(*family, config, {}, &eight));
  CHECK(said.find("the checkpoint is quantised (" + metas[3].name + " is F8_E4M3)") !=
        std::string::npos);
  // What DeepSeek's fp8, gpt-oss' MXFP4, GPTQ, AWQ and compressed-tensors have besides, or instead.
  for (const char* end :
       {"q_proj.weight_scale_inv", "down_proj_blocks", "q_proj.qweight", "q_proj.qzeros",
        "q_proj.g_idx", "q_proj.weight_packed", "q_proj.weight_scale"}) {
    const std::string name = std::string("model.layers.0.x.") + end;
    CAPTURE(name);
    const Layout listing =
        Changed(PlanOf(kTinyLlama, "").plan.layout(), {}, {{name, DType::kF32, {2}}});
    CHECK(TextOf(Plan::Make(*family, config, {}, &listing)) ==
          "the checkpoint is quantised (" + name +
              " is F32), which no trainer's parameters make: use the model's bf16 checkpoint");
  }
}

TEST_CASE("listing: a job without MTP leaves the checkpoint's MTP tensors") {
  const Layout listing = PlanOf(kTinyGlmMoe, "").plan.layout();
  const Planned p = PlanOf(kTinyGlmMoe, "tp=2,mtp=false", &listing);
  CheckWhole(p);
  uint64_t mtp = 0;
  for (const TensorMeta& t : listing.tensors()) mtp += t.name.starts_with("model.layers.3.");
  CHECK(mtp > 0);
  CHECK(p.plan.not_trained().size() == mtp);
  for (const std::string& name : p.plan.not_trained()) {
    CHECK(name.find("model.layers.3.") == 0);
  }
  for (const ShardParam& s : p.plan.Rank(0)) CHECK(s.names.front().find("mtp.") != 0);
  // Without a checkpoint there are no MTP tensors to leave alone.
  CHECK(PlanOf(kTinyGlmMoe, "mtp=false").plan.layout().size() == listing.size() - mtp);
}

TEST_CASE("listing: experts are packed layer by layer as the checkpoint has them") {
  const Layout apart = PlanOf(kTinyGlmMoe, "").plan.layout();
  std::vector<std::string> gone;
  for (const TensorMeta& t : apart.tensors()) {
    if (t.name.starts_with("model.layers.2.mlp.experts.")) gone.push_back(t.name);
  }
  CHECK(gone.size() == 12);
  const Layout mixed =
      Changed(apart, gone,
              {{"model.layers.2.mlp.experts.gate_up_proj", DType::kBF16, {4, 16, 24}},
               {"model.layers.2.mlp.experts.down_proj", DType::kBF16, {4, 24, 8}}});
  CheckWhole(PlanOf(kTinyGlmMoe, "", &mixed));
  CheckWhole(PlanOf(kTinyGlmMoe, "tp=2,ep=2,etp=1", &mixed));
  CheckWhole(PlanOf(kTinyGlmMoe, "tp=2,ep=2,etp=2,glu_interleave=2", &mixed));
}

constexpr const char* kGemma3 = R"({"model_type": "gemma3", "text_config": {"model_type":
  "gemma3_text", "hidden_size": 24, "intermediate_size": 16, "num_hidden_layers": 1,
  "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6, "vocab_size": 19}})";

TEST_CASE("listing: HF names have the root that the checkpoint gives them") {
  const Layout first = PlanOf(kGemma3, "").plan.layout();
  CHECK(first.Find("language_model.model.norm.weight").has_value());
  std::vector<TensorMeta> metas = first.tensors();
  for (TensorMeta& t : metas) t.name = "model.language_model." + t.name.substr(21);
  const Layout renamed = Get(Layout::Create(metas));
  CHECK(renamed.Find("model.language_model.norm.weight").has_value());
  CheckWhole(PlanOf(kGemma3, "tp=2", &renamed));
  CheckWhole(PlanOf(kGemma3, "tp=2", &first));
}

TEST_CASE("listing: a vision tower passes through, or stays as it is") {
  const Layout listing = Changed(PlanOf(kGemma3, "").plan.layout(), {},
                                 {{"vision_tower.a.fc1.weight", DType::kBF16, {3, 4, 5}},
                                  {"multi_modal_projector.b", DType::kF32, {}}});
  const Planned with = PlanOf(kGemma3, "tp=2,pp=1,cp=2", &listing);
  CheckWhole(with);
  CHECK(with.plan.not_trained().empty());
  bool found = false;
  for (const ShardParam& s : with.plan.Rank(1)) {
    if (s.names.front() != "vision_tower.a.fc1.weight") continue;
    found = true;
    CHECK(s.names.back() == "vision_model.a.fc1.weight");
    CHECK(s.shape == std::vector<uint64_t>{3, 4, 5});
    CHECK_FALSE(s.writes);  // rank 0 writes it
  }
  CHECK(found);
  const Planned without = PlanOf(kGemma3, "tp=2,vision=false", &listing);
  CheckWhole(without);
  CHECK(without.plan.not_trained().size() == 2);
}

TEST_CASE("listing: if the checkpoint has none of several roots, the first one is taken") {
  const Layout strange = Get(Layout::Create({{"x", DType::kBF16, {1}}}));
  const PlanFindings c = PlanOf(kGemma3, "", &strange).plan.Check();
  CHECK_FALSE(c.ok());
  CHECK(c.findings.front().find("language_model.model.") == 0);
}

}  // namespace
}  // namespace deltawire::mcore::listing_test
