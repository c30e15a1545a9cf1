// One Megatron rank's shards of random bytes on a fake device, behind callbacks or on the host.
// Owner: one test case. Threads: one. What must not fail is REQUIREd here.
#pragma once

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "sender/export/device/device_place.h"
#include "tests/unit/export/mcore/plans.h"
#include "tests/unit/kernels/fake_cuda.h"

namespace deltawire::testing {

using mcore::testing::Get;

// A small model with experts. DTYPE stands for the dtype of the HF tensors; with float32, the bf16
// shards are converted on their way.
inline constexpr const char* kConfig = R"({
  "model_type": "qwen3_moe", "num_hidden_layers": 3, "hidden_size": 24, "num_attention_heads": 6,
  "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40, "vocab_size": 37,
  "num_experts": 4, "moe_intermediate_size": 20, "mlp_only_layers": [1],
  "tie_word_embeddings": false, "torch_dtype": "DTYPE"})";

inline std::string Config(const char* dtype, uint64_t vocabulary = 37) {
  std::string text = kConfig;
  text.replace(text.find("DTYPE"), 5, dtype);
  text.replace(text.find("37"), 2, std::to_string(vocabulary));
  return text;
}

enum class Kind { kHost, kDevice, kCallback };

/// One rank's shards of random bytes. Each lies on the host, on the device or behind a callback.
struct Rank {
  mcore::testing::Planned planned;
  std::vector<mcore::ShardParam> wanted;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::unique_ptr<kernels::GpuBuffer>> device;
  std::vector<LiveTensor> live;
  std::vector<mcore::Match> matches;
  std::vector<DeviceShard> shards;
  uint64_t reads = 0, largest_read = 0, fail_read = UINT64_MAX;
  ThreadPool pool{2};

  Rank(const char* hf_dtype, const std::string& parallel, uint32_t rank, uint64_t seed,
       uint64_t vocabulary = 37)
      : planned(mcore::testing::PlanOf(Config(hf_dtype, vocabulary), parallel)) {
    std::mt19937_64 random(seed);
    std::vector<mcore::LiveParam> params;
    for (const mcore::ShardParam& s : planned.plan.Rank(rank)) {
      if (s.shape.empty()) continue;
      uint64_t size = DTypeBytes(DType::kBF16);
      for (const uint64_t n : s.shape) size *= n;
      params.push_back({s.chunk, s.names.front(), DType::kBF16, s.shape});
      bytes.emplace_back(size);
      for (std::byte& b : bytes.back()) b = static_cast<std::byte>(random());
    }
    matches = Get(MatchRank(planned.plan, rank, params));
    for (auto& p : params) live.push_back({std::move(p), {}});
    for (size_t i = 0; i < live.size(); ++i) live[i].data = bytes[i];
  }

  /// `number`: of the device, if it is to lie on one.
  void Put(size_t i, Kind kind, int number = 0) {
    LiveTensor& t = live[i];
    if (kind == Kind::kDevice) {
      const kernels::test::OnFakeDevice there(number);
      std::unique_ptr<kernels::GpuBuffer> buffer;
      REQUIRE(kernels::GpuBuffer::Create(bytes[i].size(), &buffer).ok());
      REQUIRE(kernels::GpuCopy(buffer->bytes(), bytes[i]).ok());
      t.data = buffer->bytes();
      t.device = number;
      device.push_back(std::move(buffer));
    } else if (kind == Kind::kCallback) {
      t.data = Bytes(static_cast<const std::byte*>(nullptr), bytes[i].size());
      t.read = [this, i](uint64_t offset, MutableBytes to) -> Status {
        if (reads++ == fail_read) return absl::DataLossError("the trainer's copy failed");
        largest_read = std::max<uint64_t>(largest_read, to.size());
        REQUIRE(offset + to.size() <= bytes[i].size());
        std::memcpy(to.data(), bytes[i].data() + offset, to.size());
        return absl::OkStatus();
      };
    }
  }
  void PutAll(Kind kind) {
    for (size_t i = 0; i < live.size(); ++i) Put(i, kind);
  }

  /// Places all shards. Call it once Put has brought every shard to where it belongs.
  StatusOr<DevicePlaceStats> Run(DevicePlace& place, const HalfMemory& half) {
    shards.clear();
    for (const mcore::Match& m : matches) {
      if (m.shard.writes && !live[m.live].on_host()) shards.push_back({&m, &live[m.live]});
    }
    return place.Run(planned.plan, shards, half, pool);
  }

  /// The HF bytes as the CPU makes them of the same shards.
  std::vector<std::byte> Wanted() {
    std::vector<std::byte> hf(planned.plan.layout().total_bytes(), std::byte{0x5a});
    WriteTo(hf);
    return hf;
  }
  void WriteTo(MutableBytes hf) {
    mcore::Transfer transfer;
    for (const mcore::Match& m : matches) {
      if (!m.shard.writes) continue;
      transfer.Add(
          Get(StepsOf(planned.plan, m.shard, DType::kBF16, m.split, mcore::Direction::kToHf)),
          bytes[m.live]);
    }
    transfer.Run(
        mcore::Direction::kToHf, [&](uint32_t t) { return Tensor(hf, t); }, pool);
  }
  MutableBytes Tensor(MutableBytes hf, uint32_t t) const {
    const Layout& layout = planned.plan.layout();
    return hf.subspan(layout.offset(t), layout.bytes(t));
  }
  uint64_t LargestShard() const {
    uint64_t most = 0;
    for (const auto& b : bytes) most = std::max<uint64_t>(most, b.size());
    return most;
  }
};

}  // namespace deltawire::testing
