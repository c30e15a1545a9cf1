// The C ABI's Megatron part: callers with an older header, a kind of gather that is not there, and
// what the ranks of a group agree on.
#include <catch2/catch.hpp>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "sender/export/abi/deltawire_export.h"
#include "tests/support/temp_dir.h"

namespace deltawire::testing::c_abi_megatron_test {
namespace {

namespace fs = std::filesystem;

dw_collective_options Alone(const std::string& rendezvous) {
  dw_collective_options o{};
  o.struct_size = sizeof o;
  o.size = 1;
  o.rendezvous = rendezvous.c_str();
  o.job = "alone";
  o.net_interface = "lo";
  o.timeout_ms = 20'000;
  return o;
}

TEST_CASE("a group over NCCL that cannot be made is an error, and so is an unknown kind") {
  TempDir dir;
  const std::string rendezvous = "file:" + dir.path().string();
  dw_collective_options o = Alone(rendezvous);
  dw_collective* collective = nullptr;
  o.kind = DW_COLLECTIVE_NCCL;
  o.device = 1'000'000;  // no machine has one of this number
  CHECK(dw_collective_create(&o, &collective) != DW_OK);
  const std::string said = dw_last_error();
  CHECK_THAT(said, Catch::Contains("CUDA") || Catch::Contains("no gather over NCCL here"));
  o.kind = 7;
  CHECK(dw_collective_create(&o, &collective) == DW_INVALID_ARGUMENT);
  CHECK(collective == nullptr);
}

TEST_CASE("options from before groups had kinds make a group over Gloo") {
  TempDir dir;
  const std::string rendezvous = "file:" + dir.path().string();
  dw_collective_options o = Alone(rendezvous);
  o.struct_size = offsetof(dw_collective_options, kind);
  o.kind = 7;  // beyond the struct's end, so it must not be read
  dw_collective* collective = nullptr;
  CHECK(dw_collective_create(&o, &collective) == DW_OK);
  INFO(dw_last_error());
  CHECK(collective != nullptr);
  dw_collective_destroy(collective);
}

TEST_CASE("all ranks of a group get the attempt that its root has drawn, another one every time") {
  constexpr uint32_t kRanks = 3;
  TempDir dir;
  const std::string rendezvous = "file:" + dir.path().string();
  uint64_t attempts[kRanks][2] = {};
  std::vector<std::thread> ranks;
  for (uint32_t r = 0; r < kRanks; ++r) {
    ranks.emplace_back([&, r] {
      dw_collective_options o = Alone(rendezvous);
      o.rank = r;
      o.size = kRanks;
      o.root = 1;
      dw_collective* collective = nullptr;
      if (dw_collective_create(&o, &collective) != DW_OK) return;
      for (uint64_t& attempt : attempts[r]) dw_collective_agree_attempt(collective, &attempt);
      dw_collective_destroy(collective);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (uint32_t r = 0; r < kRanks; ++r) {
    CAPTURE(r);
    CHECK(attempts[r][0] != 0);
    CHECK(attempts[r][1] != 0);
    CHECK(attempts[r][0] == attempts[1][0]);
    CHECK(attempts[r][1] == attempts[1][1]);
  }
  CHECK(attempts[1][0] != attempts[1][1]);
  CHECK(dw_collective_agree_attempt(nullptr, &attempts[0][0]) == DW_INVALID_ARGUMENT);
}

TEST_CASE(
    "what one rank of a group says to have failed reaches the others, and the group goes on") {
  constexpr uint32_t kRanks = 3;
  TempDir dir;
  const std::string rendezvous = "file:" + dir.path().string();
  int first[kRanks] = {}, second[kRanks] = {};
  std::string said[kRanks], said_at_length[kRanks];
  const std::string fits(1023, 'x');
  std::vector<std::thread> ranks;
  for (uint32_t r = 0; r < kRanks; ++r) {
    ranks.emplace_back([&, r] {
      dw_collective_options o = Alone(rendezvous);
      o.rank = r;
      o.size = kRanks;
      dw_collective* collective = nullptr;
      if (dw_collective_create(&o, &collective) != DW_OK) return;
      dw_collective_check(collective, r == 1 ? (fits + "\xc3\xa9").c_str() : nullptr);
      said_at_length[r] = dw_last_error();
      first[r] = dw_collective_check(collective, r == 1 ? "no sender answers" : nullptr);
      said[r] = dw_last_error();
      second[r] = dw_collective_check(collective, nullptr);
      dw_collective_destroy(collective);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(first[1] == DW_OK);  // it knows
  for (const uint32_t r : {0, 2}) {
    CHECK(first[r] == DW_ABORTED);
    CHECK(said[r] == "rank 1 of 3 has failed: no sender answers");
    // Python takes no text that is cut within a character.
    CHECK(said_at_length[r] == "rank 1 of 3 has failed: " + fits);
  }
  for (const int code : second) CHECK(code == DW_OK);
  CHECK(dw_collective_check(nullptr, nullptr) == DW_INVALID_ARGUMENT);
}

TEST_CASE("a parameter says where it lies: host memory, or a device counted from 0") {
  TempDir dir;
  std::ofstream(dir.path() / "config.json") << R"({"model_type": "qwen3_moe",
    "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 4, "intermediate_size": 8, "vocab_size": 8, "num_experts": 2,
    "moe_intermediate_size": 4, "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";
  const std::string hf_dir = dir.path().string();
  dw_megatron_options o{};
  o.struct_size = sizeof o;
  o.hf_dir = hf_dir.c_str();
  o.parallel = "tp=1";
  dw_megatron* megatron = nullptr;
  const int made = dw_megatron_create(&o, &megatron);
  INFO(dw_last_error());
  REQUIRE(made == DW_OK);
  const uint64_t shape[] = {2};
  const uint16_t data[2] = {};
  const auto param = [&](const char* name, int32_t device) {
    dw_param described{};
    described.struct_size = sizeof described;
    described.name = name;
    described.dtype = "BF16";
    described.shape = shape;
    described.ndim = 1;
    described.data = data;
    described.device = device;
    return described;
  };
  const dw_param params[] = {param("first", DW_HOST_MEMORY), param("second", DW_HOST_MEMORY)};
  CHECK(dw_megatron_check(megatron, 0, params, 2) == DW_INVALID_ARGUMENT);
  CHECK_THAT(std::string(dw_last_error()), Catch::Contains("first (chunk 0) is unknown") &&
                                               Catch::Contains("second (chunk 0) is unknown"));
  const dw_param beyond = param("first", 1'000'000);  // no machine has one of this number
  CHECK(dw_megatron_check(megatron, 0, &beyond, 1) != DW_OK);
  CHECK_THAT(std::string(dw_last_error()),
             Catch::Contains("first is said to lie on device 1000000"));
  if (dw_gpu_available() == 0) {
    CHECK_THAT(std::string(dw_last_error()), Catch::Contains("CUDA"));
    const dw_param first_device = param("first", 0);
    CHECK(dw_megatron_check(megatron, 0, &first_device, 1) != DW_OK);
    CHECK_THAT(std::string(dw_last_error()), Catch::Contains("first is said to lie on device 0"));
  }
  dw_param cut = param("first", DW_HOST_MEMORY);
  cut.struct_size = offsetof(dw_param, device);
  CHECK(dw_megatron_check(megatron, 0, &cut, 1) == DW_INVALID_ARGUMENT);
  CHECK_THAT(std::string(dw_last_error()), Catch::Contains("dw_param.struct_size"));
  dw_megatron_destroy(megatron);
}

}  // namespace
}  // namespace deltawire::testing::c_abi_megatron_test
