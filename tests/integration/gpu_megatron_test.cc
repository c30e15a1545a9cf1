// A Megatron job whose GPUs diff their shards, with a real sender: what is published is what the
// CPU makes of the same shards by the same plan. On the fake CUDA runtime.
#include <catch2/catch.hpp>
#include <fstream>
#include <random>

#include "common/base/attempt.h"
#include "sender/export/megatron/megatron_export.h"
#include "tests/support/daemons.h"
#include "tests/unit/export/device_rank.h"
#include "tests/unit/kernels/fake_cuda.h"

namespace deltawire::testing::gpu_megatron_test {
namespace {

/// A rank of the job, with its shards on a device.
struct JobRank {
  JobRank(const std::string& socket, const std::filesystem::path& hf_dir, const char* dtype,
          const std::string& parallel, uint32_t r, uint32_t world)
      : rank(dtype, parallel, r, 90 + r, 3700), client(socket, "m", r, world) {
    for (size_t i = 0; i < rank.live.size(); ++i) {
      rank.Put(i, Kind::kDevice, static_cast<int>(r % 2));
    }
    MegatronOptions options;
    options.hf_dir = hf_dir;
    options.parallel = parallel;
    options.threads = 1;
    job = Get(MegatronExport::Open(options));
  }
  void Step(std::mt19937_64& random) {
    for (size_t i = 0; i < rank.live.size(); ++i) {
      std::vector<std::byte>& bytes = rank.bytes[i];
      for (size_t at = random() % 300; at < bytes.size(); at += 1 + random() % 300) {
        bytes[at] ^= std::byte{1};
      }
      const Bytes there = rank.live[i].data;
      REQUIRE(kernels::GpuCopy({const_cast<std::byte*>(there.data()), there.size()}, bytes).ok());
    }
  }
  Rank rank;
  TrainerClient client;
  std::unique_ptr<MegatronExport> job;
};

TEST_CASE("a Megatron job's GPUs hand over changes of their shards") {
  const char* const dtype = GENERATE("bfloat16", "float32");
  const std::string parallel = GENERATE("tp=2,ep=2,etp=1", "tp=1,pp=3");
  CAPTURE(dtype, parallel);
  ShmDir root;
  SenderProcess sender(root.path());
  const std::filesystem::path hf_dir = root.path() / "hf";
  std::filesystem::create_directory(hf_dir);
  std::ofstream(hf_dir / "config.json") << Config(dtype, 3700);
  const auto planned = mcore::testing::PlanOf(Config(dtype, 3700), parallel);
  const uint32_t world = planned.plan.parallel().world();
  std::mt19937_64 random(5);
  std::vector<std::unique_ptr<JobRank>> ranks;
  for (uint32_t r = 0; r < world; ++r) {
    ranks.push_back(std::make_unique<JobRank>(sender.socket(), hf_dir, dtype, parallel, r, world));
    REQUIRE(ranks[r]
                ->client.Register(ranks[r]->job->plan().layout(), ranks[r]->job->side_files())
                .ok());
  }
  for (uint64_t version = 1; version < 6; ++version) {
    CAPTURE(version);
    // A half that cannot be pinned is written over buckets.
    kernels::test::RefusePinning(version == 4);
    const uint64_t attempt = DrawAttempt();
    std::vector<std::unique_ptr<TrainerClient::Offload>> offloads;
    for (const auto& r : ranks) offloads.push_back(Get(r->client.Begin(version, attempt)));
    std::vector<std::byte> wanted(planned.plan.layout().total_bytes());
    for (uint32_t r = 0; r < world; ++r) {
      CAPTURE(r);
      ranks[r]->Step(random);
      ranks[r]->rank.WriteTo(wanted);
      (void)Get(ranks[r]->job->Place(*offloads[r], r, ranks[r]->rank.live, true));
      const std::string said = offloads[r]->diffed_on();
      INFO(said);
      CHECK(said.starts_with("the trainer's GPU"));
      CHECK((said.find("for the first time") != std::string::npos) == (version == 1));
      CHECK(said.find("another version") == std::string::npos);
    }
    for (const auto& offload : offloads) REQUIRE(offload->Ready() == absl::OkStatus());
    const auto info = ranks[0]->client.WaitPublished(version);
    INFO(info.status() << ReadText(sender.log()));
    REQUIRE(info.ok());
    CHECK(std::ranges::equal(offloads[0]->data(), wanted));
  }
  kernels::test::RefusePinning(false);
}

}  // namespace
}  // namespace deltawire::testing::gpu_megatron_test
