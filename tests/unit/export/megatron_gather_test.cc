// A Megatron job's shards gathered to one rank over Gloo, between real processes.
#include "sender/export/megatron/megatron_gather.h"

#include <catch2/catch.hpp>
#include <random>

#include "tests/support/temp_dir.h"
#include "tests/unit/export/ranks.h"

namespace deltawire::testing::megatron_gather_test {
namespace {

constexpr const char* kMoeConfig = R"({
  "model_type": "qwen3_moe", "num_hidden_layers": 4, "hidden_size": 24, "num_attention_heads": 6,
  "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40, "vocab_size": 37,
  "num_experts": 4, "moe_intermediate_size": 20, "mlp_only_layers": [1],
  "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";

/// An HF model of random bytes, and one rank's shards of it, made by running programs backwards.
struct Job {
  mcore::FamilySet families;
  std::optional<mcore::Plan> plan;
  std::vector<std::byte> hf;

  Job(const std::string& parallel, uint64_t seed) {
    families = mcore::FamilySet::Load({}).value();
    const mcore::HfConfig config = mcore::HfConfig::Parse(kMoeConfig).value();
    plan = mcore::Plan::Make(*families.Select(config).value(), config,
                             mcore::ParallelConfig::Parse(parallel).value())
               .value();
    hf.resize(plan->layout().total_bytes());
    std::mt19937_64 random(seed);
    for (std::byte& b : hf) b = static_cast<std::byte>(random());
  }

  MutableBytes tensor(std::vector<std::byte>& data, uint32_t t) const {
    return MutableBytes(data).subspan(plan->layout().offset(t), plan->layout().bytes(t));
  }
};

struct Shards {
  std::vector<mcore::LiveParam> live;
  std::vector<std::vector<std::byte>> bytes;

  Shards(Job& job, uint32_t rank, ThreadPool& pool) {
    for (const mcore::ShardParam& s : job.plan->Rank(rank)) {
      if (s.shape.empty()) continue;
      live.push_back({s.chunk, "module." + s.names.front(), s.dtype, s.shape});
      uint64_t elements = 1;
      for (const uint64_t n : s.shape) elements *= n;
      bytes.emplace_back(elements * DTypeBytes(s.dtype));
      mcore::Transfer transfer;
      transfer.Add(StepsOf(*job.plan, s, s.dtype, job.plan->planned()[s.planned].cut.split,
                           mcore::Direction::kFromHf)
                       .value(),
                   bytes.back());
      transfer.Run(
          mcore::Direction::kFromHf, [&](uint32_t t) { return job.tensor(job.hf, t); }, pool);
    }
  }
};

std::string GatherAsRank(int rank, int size, const std::string& dir, const std::string& parallel,
                         uint64_t bucket_bytes, const std::function<void(Shards&)>& damage) {
  Job job(parallel, 7);
  ThreadPool pool(1);
  Shards shards(job, static_cast<uint32_t>(rank), pool);
  if (damage) damage(shards);
  auto matches = MatchRank(*job.plan, static_cast<uint32_t>(rank), shards.live);
  if (!matches.ok()) return std::string(MessageOf(matches.status()));
  auto gloo = NewGlooCollective(Loopback(dir, "job", rank, size), Soon());
  if (!gloo.ok()) return std::string(MessageOf(gloo.status()));
  std::vector<std::byte> out(rank == 0 ? job.hf.size() : 0);
  GatherOptions options;
  options.bucket_bytes = bucket_bytes;
  options.deadline = Soon();
  const auto stats = GatherToHf(
      **gloo, *job.plan, *matches, shards.live, [&](size_t i) { return Bytes(shards.bytes[i]); },
      [&](uint32_t t) { return job.tensor(out, t); }, pool, options);
  if (!stats.ok()) return std::string(MessageOf(stats.status()));
  if (stats->peak_buffer_bytes > 2 * bucket_bytes) return "more than two buckets alive";
  if (rank == 0 && out != job.hf) return "the gathered tensors are not the model's";
  return rank == 0 ? fmt::format("ok, {} buckets", stats->buckets > 1 ? "several" : "one") : "ok";
}

TEST_CASE("a Megatron job's shards are gathered to exactly the HF tensors") {
  struct Case {
    const char* parallel;
    int ranks;
    uint64_t bucket_bytes;
    const char* wanted;
  };
  const Case c = GENERATE(
      Case{"tp=1", 1, 1 << 20, "ok, one buckets"}, Case{"tp=2,pp=2", 4, 1 << 20, "ok, one buckets"},
      Case{"tp=2,pp=2,vpp=2,ep=2,etp=1,spec=local", 4, 4096, "ok, several buckets"},
      Case{"tp=2,cp=2,ep=4,etp=1,experts=sequential", 4, 2048, "ok, several buckets"});
  CAPTURE(c.parallel, c.bucket_bytes);
  TempDir dir;
  Ranks ranks(c.ranks, [&](int rank, const Line&) {
    return GatherAsRank(rank, c.ranks, dir.path(), c.parallel, c.bucket_bytes, {});
  });
  CHECK(ranks.Hear(0) == c.wanted);
  for (int rank = 1; rank < c.ranks; ++rank) CHECK(ranks.Hear(rank) == "ok");
}

TEST_CASE("a gather says which row does not fit a bucket") {
  TempDir dir;
  Ranks ranks(2, [&](int rank, const Line&) {
    return GatherAsRank(rank, 2, dir.path(), "tp=1,dp=2", 64, {});
  });
  for (int rank = 0; rank < 2; ++rank) {
    CHECK_THAT(ranks.Hear(rank), Catch::Contains("does not fit a bucket"));
  }
}

TEST_CASE("a rank under another number is found before the first byte") {
  TempDir dir;
  Ranks ranks(2, [&](int rank, const Line&) -> std::string {
    Job job("tp=2", 7);
    ThreadPool pool(1);
    Shards shards(job, 0, pool);
    auto matches = MatchRank(*job.plan, 0, shards.live);  // both say that they are rank 0
    auto gloo = NewGlooCollective(Loopback(dir.path(), "job", rank, 2), Soon());
    std::vector<std::byte> out(job.hf.size());
    const auto stats = GatherToHf(
        **gloo, *job.plan, *matches, shards.live, [&](size_t i) { return Bytes(shards.bytes[i]); },
        [&](uint32_t t) { return job.tensor(out, t); }, pool, {});
    return stats.ok() ? "OK" : std::string(MessageOf(stats.status()));
  });
  for (int rank = 0; rank < 2; ++rank) {
    CHECK_THAT(ranks.Hear(rank), Catch::Contains("is held by several ranks"));
  }
}

}  // namespace
}  // namespace deltawire::testing::megatron_gather_test
