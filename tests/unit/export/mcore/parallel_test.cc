// The parallel config: reading it, and which rank is which.
#include "sender/export/mcore/parallel.h"

#include <fstream>
#include <random>
#include <set>

#include "tests/support/temp_dir.h"
#include "tests/unit/export/mcore/plans.h"

namespace deltawire::mcore::parallel_test {
namespace {

using testing::Get;
using testing::TextOf;

TEST_CASE("parallel: a text sets every key that it names") {
  const ParallelConfig c = Get(ParallelConfig::Parse(
      "tp=4,pp=2,vpp=2,ep=8,etp=1,cp=2,world=64,spec=local,experts=sequential,vocab_divisor=64,"
      "account_for_loss=true,mtp=false,vision=0,padded_vocab=12345678901"));
  CHECK(c.tp == 4);
  CHECK(c.vpp == 2);
  CHECK(c.dp == 4);
  CHECK(c.world() == 64);
  CHECK(c.expert_dp() == 4);
  CHECK(c.spec == Spec::kLocal);
  CHECK(c.experts == ExpertModules::kSequential);
  CHECK(c.account_for_loss);
  CHECK_FALSE(c.account_for_embedding);
  CHECK_FALSE(c.mtp);
  CHECK_FALSE(c.vision);
  CHECK(c.padded_vocab == 12345678901);
}

TEST_CASE("parallel: keys that are left out get their defaults") {
  const ParallelConfig c = Get(ParallelConfig::Parse("tp=4,ep=8"));
  CHECK(c.etp == 4);  // the same as tp
  CHECK(c.dp == 8);   // the smallest that holds etp * ep
  CHECK(c.vocab_divisor == 128);
  CHECK(c.spec == Spec::kTransformerEngine);
  CHECK(c.mtp);
  CHECK(Get(ParallelConfig::Parse("")).world() == 1);
}

TEST_CASE("parallel: a layout keeps its commas") {
  const ParallelConfig c = Get(ParallelConfig::Parse("pp=2,layout=E,tt|t,m,L,tp=2"));
  CHECK(c.layout == "E,tt|t,m,L");
  CHECK(c.tp == 2);
}

TEST_CASE("parallel: a config survives the way to JSON and back") {
  const ParallelConfig c = Get(ParallelConfig::Parse(
      "tp=2,pp=2,ep=4,etp=1,dp=2,first_stage_layers=3,spec=local,layout=Et|tL,mtp=false"));
  const ParallelConfig again = Get(ParallelConfig::Parse(c.ToJson()));
  CHECK(again.ToJson() == c.ToJson());
  CHECK(again.layout == "Et|tL");
  CHECK(again.spec == Spec::kLocal);
  CHECK_FALSE(again.mtp);
  CHECK(Get(ParallelConfig::Parse(R"({"tp": 2, "world": 8, "layout": null})")).dp == 4);
}

TEST_CASE("parallel: a file that holds JSON is as good as its text") {
  const TempDir dir;
  const std::string path = (dir.path() / "parallel.json").string();
  std::ofstream(path) << "\n {\"tp\": 4, \"core_version\": \"0.19.2\"}\n";
  for (const std::string& from : {path, std::string(R"({"tp": 4, "core_version": "0.19"})"),
                                  std::string("tp=4,core_version=0.19")}) {
    const ParallelConfig c = Get(ParallelConfig::Open(from));
    CHECK(c.tp == 4);
    CHECK(c.core.minor == 19);
  }
  std::ofstream(path) << "{";
  CHECK(TextOf(ParallelConfig::Open(path)).find(path) != std::string::npos);
}

TEST_CASE("parallel: what does not fit is refused with its key and the reason") {
  const std::pair<const char*, const char*> cases[] = {
      {"tp", "\"tp\" is not KEY=VALUE"},
      {"tq=2", "unknown key \"tq\"; known: world, tp, pp"},
      {"tp=two", "tp=two: wanted a whole number"},
      {"tp=-1", "tp=-1: wanted"},
      {"tp=2x", "tp=2x: wanted"},
      {"tp=0", "tp=0: wanted 1 to"},
      {"tp=99999999999", "wanted a whole number"},
      {"tp=9999999", "wanted 1 to"},
      {"spec=both", "spec=both: wanted te or local"},
      {"experts=all", "wanted grouped or sequential"},
      {"mtp=perhaps", "mtp=perhaps: wanted true or false"},
      {"tp=3,world=8", "world=8 is not a multiple of tp * cp * pp = 3"},
      {"tp=2,dp=2,world=8", "world=8 makes dp=4, not 2"},
      {"tp=2,dp=1,ep=4,etp=1", "tp * cp * dp = 2 is not a multiple of etp * ep = 4"},
      {"tp=1048576,pp=2", "ranks; the limit is"},
      // 2^64 ranks, and 2^40 for which dp is left out: 0 where the product wraps around.
      {"tp=16,cp=1048576,dp=2147483648,pp=512", "dp=2147483648: wanted 1 to 1048576"},
      {"tp=1048576,cp=1048576,dp=1048576,pp=16", "ranks; the limit is"},
      {"tp=1,etp=1048576,ep=1048576", "ranks; the limit is"},
      {"tp=2,pp=2,tp=4", "\"tp\" is given twice"},
      {R"({"tp": 2, "tp": 2})", "\"tp\" is given twice"},
      {"vpp=2", "vpp=2: wanted 1 where there is one pipeline rank"},
      {"core_version=1.0", "core_version=1.0: wanted a version"},
      {"core_version=0.", "core_version=0.: wanted a version"},
  };
  for (const auto& [text, said] : cases) {
    CAPTURE(text);
    const StatusOr<ParallelConfig> c = ParallelConfig::Parse(text);
    REQUIRE_FALSE(c.ok());
    CAPTURE(TextOf(c));
    CHECK(TextOf(c).find(said) != std::string::npos);
  }
  CHECK_FALSE(ParallelConfig::Parse("[]").ok());
  CHECK_FALSE(ParallelConfig::Parse("{\"tp\": [1]}").ok());
  CHECK_FALSE(ParallelConfig::Parse("{").ok());
}

TEST_CASE("parallel: ranks follow the order tp-cp-ep-dp-pp") {
  // tp varies fastest, then cp, dp and pp; among the experts' ranks etp, then ep, their dp and pp.
  std::mt19937 random(7);
  const uint32_t sizes[] = {1, 2, 3, 4};
  for (int i = 0; i < 200; ++i) {
    CAPTURE(i);
    ParallelConfig c;
    c.tp = sizes[random() % 4];
    c.cp = sizes[random() % 3];
    c.pp = sizes[random() % 3];
    c.ep = sizes[random() % 4];
    c.etp = sizes[random() % 3];
    REQUIRE(c.Complete().ok());
    CAPTURE(c.ToJson());
    uint32_t rank = 0;
    for (uint32_t pp = 0; pp < c.pp; ++pp) {
      for (uint32_t dp = 0; dp < c.dp; ++dp) {
        for (uint32_t cp = 0; cp < c.cp; ++cp) {
          for (uint32_t tp = 0; tp < c.tp; ++tp, ++rank) {
            const RankPlace at = PlaceOf(c, rank);
            const bool dense = at.tp == tp && at.cp == cp && at.dp == dp && at.pp == pp;
            REQUIRE(dense);
          }
        }
      }
    }
    REQUIRE(rank == c.world());
    rank = 0;
    for (uint32_t pp = 0; pp < c.pp; ++pp) {
      for (uint32_t edp = 0; edp < c.expert_dp(); ++edp) {
        for (uint32_t ep = 0; ep < c.ep; ++ep) {
          for (uint32_t etp = 0; etp < c.etp; ++etp, ++rank) {
            const RankPlace at = PlaceOf(c, rank);
            const bool expert = at.etp == etp && at.ep == ep && at.expert_dp == edp && at.pp == pp;
            REQUIRE(expert);
            if (edp == 0) REQUIRE(c.ExpertPrimary(etp, ep, pp) == rank);
          }
        }
      }
    }
    REQUIRE(rank == c.world());
    for (uint32_t p = 0; p < c.pp; ++p) {
      for (uint32_t t = 0; t < c.tp; ++t) {
        const RankPlace at = PlaceOf(c, c.DensePrimary(t, p));
        const bool first = at.tp == t && at.pp == p && at.cp == 0 && at.dp == 0;
        REQUIRE(first);
      }
    }
  }
}

}  // namespace
}  // namespace deltawire::mcore::parallel_test
