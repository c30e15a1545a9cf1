// Which layers each pipeline chunk holds, by Megatron's rules.
#include "tests/unit/export/mcore/plans.h"

namespace deltawire::mcore::pipeline_test {
namespace {

using testing::Get;
using testing::TextOf;

std::vector<PipelineChunk> Cut(const std::string& parallel, uint32_t layers, uint32_t mtp = 0) {
  return Get(CutPipeline(Get(ParallelConfig::Parse(parallel)), layers, mtp));
}
/// First layer and number of layers of each chunk, in the order of layers.
std::vector<std::pair<uint32_t, uint32_t>> Layers(const std::vector<PipelineChunk>& chunks) {
  std::vector<std::pair<uint32_t, uint32_t>> out;
  for (const PipelineChunk& c : chunks) out.emplace_back(c.first_layer, c.layers);
  return out;
}
using L = std::vector<std::pair<uint32_t, uint32_t>>;

TEST_CASE("pipeline: layers are cut evenly into stages and chunks") {
  CHECK(Layers(Cut("pp=4", 8)) == L{{0, 2}, {2, 2}, {4, 2}, {6, 2}});
  // Stage 0 holds layers 0, 1, 4, 5 and stage 1 the rest.
  CHECK(Layers(Cut("pp=2,vpp=2", 8)) == L{{0, 2}, {2, 2}, {4, 2}, {6, 2}});
  const auto chunks = Cut("pp=2,vpp=2", 8);
  CHECK(chunks[0].embedding);
  CHECK(chunks[3].head);
  CHECK(chunks[3].final_norm);
  CHECK_FALSE(chunks[1].head);  // stage 1, chunk 0
}

TEST_CASE("pipeline: first and last stage may have a size of their own") {
  CHECK(Layers(Cut("pp=4,first_stage_layers=1", 7)) == L{{0, 1}, {1, 2}, {3, 2}, {5, 2}});
  CHECK(Layers(Cut("pp=4,last_stage_layers=1", 7)) == L{{0, 2}, {2, 2}, {4, 2}, {6, 1}});
  CHECK(Layers(Cut("pp=3,first_stage_layers=3,last_stage_layers=1", 6)) ==
        L{{0, 3}, {3, 2}, {5, 1}});
  CHECK(Layers(Cut("pp=2,first_stage_layers=3,last_stage_layers=1", 4)) == L{{0, 3}, {3, 1}});
  // With vpp, chunk v of stage p comes after the chunks of every smaller v, and among those of v
  // after the stages before p.
  CHECK(Layers(Cut("pp=2,vpp=2,last_stage_layers=2", 6)) == L{{0, 2}, {2, 1}, {3, 2}, {5, 1}});
  CHECK(Layers(Cut("pp=2,vpp=2,first_stage_layers=4,last_stage_layers=2", 6)) ==
        L{{0, 2}, {2, 1}, {3, 2}, {5, 1}});
}

TEST_CASE("pipeline: embedding and loss count as layers") {
  CHECK(Layers(Cut("pp=2,account_for_embedding=1", 5)) == L{{0, 2}, {2, 3}});
  CHECK(Layers(Cut("pp=2,account_for_loss=1", 5)) == L{{0, 3}, {3, 2}});
  CHECK(Layers(Cut("pp=2,vpp=2,account_for_embedding=1,account_for_loss=1", 6)) ==
        L{{0, 1}, {1, 2}, {3, 2}, {5, 1}});
  CHECK(Layers(Cut("pp=3,account_for_embedding=1,account_for_loss=1", 1)) ==
        L{{0, 0}, {0, 1}, {1, 0}});
}

TEST_CASE("pipeline: a layout string is written out stage by stage") {
  CHECK(Get(ExpandLayout("Ett|tt|L")) == std::vector<std::string>{"Ett", "tt", "L"});
  CHECK(Get(ExpandLayout("Et*3|(t|)*2L")) == std::vector<std::string>{"Ettt", "t", "t", "L"});
  CHECK(Get(ExpandLayout("E,t|((t)*2|)*2,L")) == std::vector<std::string>{"Et", "tt", "tt", "L"});
  CHECK(Get(ExpandLayout("E|*3L")) == std::vector<std::string>{"E", "", "", "L"});
}

TEST_CASE("pipeline: DeepSeek-V3 is cut into 16 stages of 2 chunks as its layout says") {
  const auto chunks = Cut("pp=16,vpp=2,layout=Ettt|(tt|)*29,m|L", 61, 1);
  REQUIRE(chunks.size() == 32);
  CHECK(chunks[0].first_layer == 0);
  CHECK(chunks[1].first_layer == 3);
  CHECK(chunks[15].first_layer == 31);
  CHECK(chunks[16].first_layer == 33);
  CHECK(chunks[30].mtp_layers == 1);
  CHECK(chunks[30].layers == 0);
  CHECK(chunks[31].head);
  // With MTP the norm is where the last decoder layer is.
  CHECK(chunks[29].final_norm);
  CHECK_FALSE(chunks[31].final_norm);
}

TEST_CASE("pipeline: MTP layers are with the output layer") {
  const auto chunks = Cut("pp=2", 4, 2);
  CHECK(chunks[1].mtp_layers == 2);
  CHECK(chunks[1].final_norm);
  CHECK(chunks[0].mtp_layers == 0);
}

/// The rank's shard of that name, if it has one.
std::optional<ShardParam> Held(const Plan& plan, uint32_t rank, const std::string& name) {
  for (const ShardParam& s : plan.Rank(rank)) {
    if (s.names.front() == name) return s;
  }
  return std::nullopt;
}

TEST_CASE("pipeline: a stage of MTP layers without the loss has a head only before core 0.15") {
  const bool tied = GENERATE(false, true);
  std::string config = testing::kTinyGlmMoe;
  config.replace(config.find("\"num_hidden_layers\": 3"), 22, "\"num_hidden_layers\": 4");
  if (tied) config.insert(1, "\"tie_word_embeddings\": true, ");
  for (const auto& [core, made] :
       {std::pair{"0.14", true}, {"0.15", false}, {"0.16", false}, {"0.19", false}}) {
    CAPTURE(tied, core);
    const testing::Planned p =
        testing::PlanOf(config, fmt::format("pp=3,layout=Et*2|t*2m|L,core_version={}", core));
    CHECK_FALSE(Held(p.plan, 0, "output_layer.weight"));
    // Of whatever version a trainer is, its head on this stage is known, and never exported.
    const auto mtp = Held(p.plan, 1, "output_layer.weight");
    REQUIRE(mtp);
    CHECK(mtp->made == made);
    CHECK(mtp->optional);
    CHECK_FALSE(mtp->writes);
    const auto loss = Held(p.plan, 2, "output_layer.weight");
    REQUIRE(loss);
    CHECK(loss->made);
    CHECK(loss->writes == !tied);
    // The stage's copy of the embedding is every version's.
    const auto embedding = Held(p.plan, 1, "embedding.word_embeddings.weight");
    REQUIRE(embedding);
    CHECK(embedding->made);
    CHECK_FALSE(embedding->writes);
  }
  // Where MTP layers and the loss share a stage there is one head, and it is the exported one.
  const testing::Planned p = testing::PlanOf(config, "pp=2,layout=Et*2|t*2mL,core_version=0.16");
  const auto head = Held(p.plan, 1, "output_layer.weight");
  REQUIRE(head);
  CHECK(head->made);
  CHECK(head->writes == !tied);
}

TEST_CASE("pipeline: a cut that does not work out is refused with the reason") {
  struct Case {
    const char* parallel;
    uint32_t layers;
    const char* said;
  };
  const Case cases[] = {
      {"pp=3", 8, "8 layers cannot be cut evenly into 3 stages of 1 chunks"},
      {"pp=2,vpp=3", 8, "into 2 stages of 3 chunks"},
      {"pp=2,account_for_loss=1", 8, "(with the embedding and the loss counted)"},
      {"pp=2,first_stage_layers=3,account_for_loss=1", 8, "do not go with account_for_"},
      {"first_stage_layers=3", 8, "the 5 layers beside"},
      {"pp=2,first_stage_layers=9", 8, "do not fit 8 layers"},
      {"pp=3,first_stage_layers=3", 8, "the 5 layers beside"},
      {"pp=2,first_stage_layers=3,last_stage_layers=3", 8, "the 2 layers beside"},
      {"pp=2,vpp=2,first_stage_layers=3", 8, "a stage of 3 layers cannot be cut into 2 chunks"},
      {"pp=2,layout=Et|t|tL", 3, "has 3 stages; pp * vpp is 2"},
      {"pp=2,layout=Et|xL", 2, "'x' is none of E, t, m, L"},
      {"pp=2,layout=E(t|tL", 2, "is not balanced"},
      {"pp=2,layout=Et)|tL", 2, "has a ')' without '('"},
      {"pp=2,layout=Et*|tL", 2, "without a positive number"},
      {"pp=2,layout=E(t)*0|tL", 2, "without a positive number"},
      {"pp=2,layout=*2Et|tL", 2, "is not balanced"},
      {"pp=2,layout=E(((t*9999)*9999)*9999)*9999|tL", 2, "too long"},
      {"pp=2,layout=Et*4000000000|tL", 2, "too long"},
      {"pp=2,layout=Et|tL", 3, "hold 2 layers and 0 MTP layers"},
      {"pp=2,layout=Et|tmL", 2, "1 MTP layers"},
      {"pp=2,layout=Et|Et", 2, "the last layer must be L"},
      {"pp=2,layout=tE|tL", 2, "the first layer must be E"},
      {"pp=2,layout=EEt|tL", 2, "E must be there exactly once"},
      {"pp=2,layout=Etm|tL", 2, "must stand before MTP layers"},
      {"pp=2,layout=Ettm|mL", 2, "in one stage"},
      {"pp=2,vpp=2,layout=Ett|m|t|L", 2, "must stand before MTP layers"},
      {"pp=2,vpp=2,layout=Ett|m||L", 2, "the last virtual stage of their rank"},
      {"pp=2,first_stage_layers=1,layout=Et|tL", 2, "a pipeline layout says all of it"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.parallel);
    const StatusOr<std::vector<PipelineChunk>> chunks =
        CutPipeline(Get(ParallelConfig::Parse(c.parallel)), c.layers, 0);
    REQUIRE_FALSE(chunks.ok());
    CAPTURE(TextOf(chunks));
    CHECK(TextOf(chunks).find(c.said) != std::string::npos);
  }
}

}  // namespace
}  // namespace deltawire::mcore::pipeline_test
