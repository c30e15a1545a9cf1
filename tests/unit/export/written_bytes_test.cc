// Bytes per chunk of blocks and copies are compared with a count byte by byte. Their sums over
// ranks that cut tensors at random, or as Megatron's plans do, are compared with the chunk table.
#include "sender/export/client/written_bytes.h"

#include <catch2/catch.hpp>
#include <random>

#include "sender/export/mcore/transfer.h"
#include "tests/unit/export/mcore/plans.h"

namespace deltawire::written_bytes_test {
namespace {

using Random = std::mt19937_64;

/// Marks each byte that `to` writes; a byte that is written twice fails the test.
void Mark(const Destination& to, size_t d, uint64_t at, std::vector<uint8_t>& bytes) {
  if (d < to.dims.size()) {
    for (uint64_t i = 0; i < to.dims[d].count; ++i) {
      Mark(to, d + 1, at + i * to.dims[d].stride, bytes);
    }
    return;
  }
  for (uint64_t i = 0; i < to.run_bytes; ++i) {
    REQUIRE(at + i < bytes.size());
    REQUIRE(bytes[at + i]++ == 0);
  }
}

Layout LayoutOf(std::vector<TensorMeta> tensors) {
  StatusOr<Layout> layout = Layout::Create(std::move(tensors));
  REQUIRE(layout.ok());
  return *std::move(layout);
}

/// Adds the bytes that `to` writes to tensor `t` to its chunks' sums.
void Add(const ChunkTable& chunks, uint32_t t, const Destination& to, std::vector<uint64_t>& sums) {
  uint64_t all = 0;
  for (const WrittenBytes& c : CountWrittenBytes(chunks, t, to)) {
    REQUIRE(chunks[c.chunk].tensor == t);
    REQUIRE(c.bytes > 0);
    sums[c.chunk] += c.bytes;
    all += c.bytes;
  }
  REQUIRE(all == to.bytes());
}

void CheckWhole(const ChunkTable& chunks, const std::vector<uint64_t>& sums) {
  for (uint32_t c = 0; c < chunks.size(); ++c) {
    CAPTURE(c, chunks[c].tensor);
    REQUIRE(sums[c] == chunks[c].bytes);
  }
}

/// Random cuts of [0, n), both ends included; some parts may be empty.
std::vector<uint64_t> Cuts(uint64_t n, size_t parts, Random& random) {
  std::vector<uint64_t> cuts = {0, n};
  while (cuts.size() < parts + 1) cuts.push_back(random() % (n + 1));
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

}  // namespace

TEST_CASE("chunk bytes: those of a strided copy are as counted byte by byte") {
  Random random(1);
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    // The strides of a row-major array whose dimensions come in any order, with gaps between them.
    kernels::StridedCopy copy;
    copy.run_bytes = 1 + random() % 9;
    copy.dst_offset = static_cast<int64_t>(random() % 50);
    copy.dims = random() % 5;
    uint64_t stride = copy.run_bytes + random() % 3;
    for (size_t d = 0; d < copy.dims; ++d) {
      copy.counts[d] = 1 + random() % 5;
      copy.dst_strides[d] = static_cast<int64_t>(stride);
      stride = stride * copy.counts[d] + random() % 4;
    }
    // Half of the copies write two columns in turn, as those of JoinCopies do.
    if (copy.dims > 0 && random() % 2 == 0) {
      const uint64_t width = copy.run_bytes;
      copy.dst_strides[0] = static_cast<int64_t>(2 * width);
      for (size_t d = 1; d < copy.dims; ++d) copy.dst_strides[d] *= 2;
      copy.counts[copy.dims] = 2;
      copy.dst_strides[copy.dims++] = static_cast<int64_t>(width);
      for (size_t d = 1; d + 1 < copy.dims; ++d) copy.dst_strides[d] += 2 * 5 * 9;
    }
    for (size_t d = copy.dims; d > 1; --d) {
      const size_t other = random() % d;
      std::swap(copy.counts[d - 1], copy.counts[other]);
      std::swap(copy.dst_strides[d - 1], copy.dst_strides[other]);
    }
    const Destination to = Destination::Of(copy);
    std::vector<uint8_t> bytes(1 << 18);
    bool overlap = false;
    {
      // A copy made so may overlap itself, which no real copy does. Such a copy is left out.
      std::vector<uint64_t> at = {to.offset};
      for (const DestinationDim& d : to.dims) {
        const std::vector<uint64_t> before = std::exchange(at, {});
        for (const uint64_t b : before) {
          for (uint64_t i = 0; i < d.count; ++i) at.push_back(b + i * d.stride);
        }
      }
      std::sort(at.begin(), at.end());
      for (size_t i = 1; i < at.size(); ++i) overlap |= at[i] - at[i - 1] < to.run_bytes;
      overlap |= at.back() + to.run_bytes > bytes.size();
    }
    if (overlap) continue;
    Mark(to, 0, to.offset, bytes);
    uint64_t below = 0;
    for (uint64_t limit = 0; limit < 3000; ++limit) {
      REQUIRE(to.BytesBelow(limit) == below);
      below += bytes[limit];
    }
    CHECK(to.BytesBelow(bytes.size()) == to.bytes());
  }
}

TEST_CASE("chunk bytes: blocks of ranks that share a tensor make up its chunks") {
  Random random(2);
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    // The tensor has one to three dimensions and up to several chunks; its rows cross their
    // borders.
    const DType dtype = random() % 2 == 0 ? DType::kBF16 : DType::kF32;
    std::vector<uint64_t> shape;
    const size_t dims = 1 + random() % 3;
    uint64_t elements = 1;
    for (size_t d = 0; d < dims; ++d) {
      const uint64_t most = std::max<uint64_t>(2, 4'000'000 / elements);
      shape.push_back(1 + random() % (d + 1 == dims ? most : std::min<uint64_t>(most, 200)));
      elements *= shape.back();
    }
    const Layout layout = LayoutOf({{"a", DType::kBF16, {3}}, {"t", dtype, shape}});
    const ChunkTable chunks = *ChunkTable::Create(layout);
    std::vector<uint64_t> sums(chunks.size());
    Add(chunks, 0, Destination::OfBlock(layout.tensor(0).shape, 2, {}, layout.tensor(0).shape),
        sums);
    // A mesh: every dimension is cut, so the ranks' blocks tile the tensor.
    std::vector<std::vector<uint64_t>> cuts;
    for (const uint64_t n : shape) cuts.push_back(Cuts(n, 1 + random() % 4, random));
    std::vector<size_t> cell(dims, 0);
    for (bool more = true; more;) {
      std::vector<uint64_t> start(dims), size(dims);
      for (size_t d = 0; d < dims; ++d) {
        start[d] = cuts[d][cell[d]];
        size[d] = cuts[d][cell[d] + 1] - start[d];
      }
      Add(chunks, 1, Destination::OfBlock(shape, DTypeBytes(dtype), start, size), sums);
      more = false;
      for (size_t d = 0; d < dims && !more; ++d) {
        if (++cell[d] + 1 < cuts[d].size()) {
          more = true;
        } else {
          cell[d] = 0;
        }
      }
    }
    CheckWhole(chunks, sums);
  }
}

TEST_CASE("chunk bytes: a scalar has those of one element, and a block of nothing has none") {
  const Layout layout = LayoutOf({{"s", DType::kF32, {}}, {"t", DType::kBF16, {4, 8}}});
  const ChunkTable chunks = *ChunkTable::Create(layout);
  const auto scalar = CountWrittenBytes(chunks, 0, Destination::OfBlock({}, 4, {}, {}));
  REQUIRE(scalar.size() == 1);
  CHECK(scalar[0].bytes == 4);
  const uint64_t nothing[] = {0, 8}, end[] = {4, 0};
  CHECK(CountWrittenBytes(chunks, 1, Destination::OfBlock(layout.tensor(1).shape, 2, end, nothing))
            .empty());
}

TEST_CASE("chunk bytes: the ranks of a Megatron job make up every chunk") {
  // The models are so large that tensors have several chunks, and cuts do not fall on their
  // borders.
  const char* dense = R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 1000,
    "num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": 50,
    "intermediate_size": 3000, "vocab_size": 5003, "torch_dtype": "bfloat16"})";
  const char* moe = R"({"model_type": "glm4_moe", "num_hidden_layers": 2, "hidden_size": 600,
    "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 50,
    "intermediate_size": 1200, "moe_intermediate_size": 1000, "n_routed_experts": 4,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
    "attention_bias": true, "use_qk_norm": true, "vocab_size": 5003, "torch_dtype": "bfloat16"})";
  struct Job {
    const char* config;
    const char* parallel;
  };
  const Job jobs[] = {{dense, "tp=4,pp=2"},
                      {dense, "tp=2,dp=3"},
                      {moe, "tp=2,pp=1,ep=2,etp=2,dp=2"},
                      {moe, "tp=4,ep=4,etp=1"}};
  for (const Job& job : jobs) {
    CAPTURE(job.parallel);
    const mcore::testing::Planned p = mcore::testing::PlanOf(job.config, job.parallel);
    const ChunkTable chunks = *ChunkTable::Create(p.plan.layout());
    std::vector<uint64_t> sums(chunks.size());
    for (uint32_t rank = 0; rank < p.plan.parallel().world(); ++rank) {
      for (const mcore::ShardParam& shard : p.plan.Rank(rank)) {
        if (!shard.writes || shard.shape.empty()) continue;
        const mcore::PlannedParam& planned = p.plan.planned()[shard.planned];
        const uint64_t rows = planned.cut.local_rows();
        // Rows are counted in windows, as they are placed.
        for (uint64_t at = 0; at < rows; at += 700) {
          const auto steps = mcore::testing::Get(
              mcore::StepsOf(p.plan, shard, shard.dtype, planned.cut.split, mcore::Direction::kToHf,
                             {at, std::min(at + 700, rows)}));
          for (const mcore::Step& step : steps) {
            Add(chunks, step.tensor, Destination::Of(step.copy), sums);
          }
        }
      }
    }
    CheckWhole(chunks, sums);
  }
}

}  // namespace deltawire::written_bytes_test
