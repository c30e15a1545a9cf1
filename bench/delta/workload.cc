#include "bench/delta/workload.h"

#include <atomic>
#include <bit>
#include <random>

#include "bench/synth/model_maker.h"

namespace deltawire::bench {
namespace {

constexpr int kAdamWarmup = 3;     // steps before the first that is recorded
constexpr size_t kAdamSteps = 32;  // recorded: the longest fold
constexpr size_t kFillElements = 64 * 1024;

// Layers of a Qwen3-class model, as many as make `mib`.
StatusOr<Layout> MakeLayout(uint64_t mib) {
  synth::ModelShape shape;
  const bool small = mib < 64;
  shape.hidden = small ? 256 : 1024;
  shape.vocab = shape.hidden * 16;
  shape.heads = small ? 4 : 16;
  shape.kv_heads = shape.heads / 2;
  shape.head_dim = small ? 64 : 128;
  shape.ffn = shape.hidden * 3;
  shape.layers = 1;
  DW_ASSIGN_OR_RETURN(Layout layout, Layout::Create(synth::MakeTensors(shape)));
  const uint64_t one = layout.total_bytes();
  shape.layers = 2;
  DW_ASSIGN_OR_RETURN(layout, Layout::Create(synth::MakeTensors(shape)));
  const uint64_t layer = layout.total_bytes() - one;
  const uint64_t wanted = mib << 20;
  shape.layers = 1 + (wanted > one ? (wanted - one) / layer : 0);
  return Layout::Create(synth::MakeTensors(shape));
}

// The payloads that take the old bytes to the new ones.
Delta EncodeAll(const Workload& w, const kernels::Backend& kernels, const kernels::DigestKey& key,
                ThreadPool& pool) {
  Delta delta(w.chunks.size());
  pool.ParallelFor(w.chunks.size(), [&](size_t i) {
    const Chunk& c = w.chunks[static_cast<uint32_t>(i)];
    std::vector<std::byte> room(kernels::MaxEncodedBytes(c.bytes, c.width));
    const kernels::EncodeResult r =
        kernels.diff_encode(key, w.OldOf(c), w.NewOf(c), c.width, 0, room);
    delta[i].assign(room.begin(), room.begin() + static_cast<ptrdiff_t>(r.bytes));
  });
  return delta;
}

void CopyTensors(const synth::AdamTrace& trace, const Layout& layout, MutableBytes to,
                 ThreadPool& pool) {
  pool.ParallelFor(layout.size(), [&](size_t t) {
    std::memcpy(to.data() + layout.offset(t), trace.tensor(t).data(), layout.bytes(t));
  });
}

void CountChanges(Workload& w, ThreadPool& pool) {
  std::atomic<uint64_t> changed = 0, elements = 0;
  pool.ParallelFor(w.chunks.size(), [&](size_t i) {
    const Chunk& c = w.chunks[static_cast<uint32_t>(i)];
    const Bytes before = w.OldOf(c), after = w.NewOf(c);
    uint64_t here = 0;
    for (size_t at = 0; at < c.bytes; at += c.width) {
      here += static_cast<uint64_t>(std::memcmp(&before[at], &after[at], c.width) != 0);
    }
    changed += here;
    elements += c.bytes / c.width;
  });
  w.changed = changed;
  w.elements = elements;
}

struct AdamKind {
  const char* name;
  synth::Master master;
  float lr;
  Targets targets;
};

StatusOr<Workload> MakeAdam(const AdamKind& kind, const WorkloadOptions& options,
                            const kernels::Backend& kernels, const kernels::DigestKey& key,
                            ThreadPool& pool) {
  DW_ASSIGN_OR_RETURN(Layout layout, MakeLayout(options.mib));
  DW_ASSIGN_OR_RETURN(Workload w, EmptyWorkload(kind.name, std::move(layout)));
  w.targets = kind.targets;
  synth::AdamOptions adam;
  adam.seed = options.seed;
  adam.lr = kind.lr;
  adam.master = kind.master;
  DW_ASSIGN_OR_RETURN(auto trace, synth::AdamTrace::Create(w.layout.tensors(), adam, pool));
  for (int i = 0; i < kAdamWarmup; ++i) trace.Step(pool);
  CopyTensors(trace, w.layout, w.new_data.data(), pool);
  for (size_t s = 0; s < kAdamSteps; ++s) {
    std::swap(w.old_data, w.new_data);
    trace.Step(pool);
    CopyTensors(trace, w.layout, w.new_data.data(), pool);
    w.deltas.insert(w.deltas.begin(), EncodeAll(w, kernels, key, pool));
  }
  FinishWorkload(w, kernels, key, pool);
  return w;
}

// How changed elements of a synthetic workload change.
enum class Change : uint8_t {
  kSteps,    // by +-1 mostly, geometrically more
  kNormal,   // by a normal number of steps, sigma 16: what a large learning rate does
  kRedrawn,  // to another weight: the worst case
};

struct DensityKind {
  const char* name;
  double density;
  Change change;
};

uint16_t RandomWeight(std::mt19937_64& random) {
  std::normal_distribution<float> normal(0, 0.02f);
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random)) >> 16);
}

uint16_t Changed(uint16_t before, Change change, std::mt19937_64& random) {
  if (change == Change::kRedrawn) return RandomWeight(random);
  int step = 0;
  if (change == Change::kSteps) {
    step = 1 + std::countr_zero(random() | uint64_t{1} << 40) / 2;
    if ((random() & 1) != 0) step = -step;
  } else {
    std::normal_distribution<float> normal(0, 16);
    while (step == 0) step = static_cast<int>(normal(random));
  }
  return static_cast<uint16_t>(before + step);
}

StatusOr<Workload> MakeRandom(const DensityKind& kind, const WorkloadOptions& options,
                              const kernels::Backend& kernels, const kernels::DigestKey& key,
                              ThreadPool& pool) {
  DW_ASSIGN_OR_RETURN(Layout layout, MakeLayout(options.mib));
  DW_ASSIGN_OR_RETURN(Workload w, EmptyWorkload(kind.name, std::move(layout)));
  const uint64_t elements = w.bytes() / 2;
  const MutableBytes before = w.old_data.data(), after = w.new_data.data();
  pool.ParallelFor((elements + kFillElements - 1) / kFillElements, [&](size_t block) {
    std::mt19937_64 random(options.seed * 0x9e3779b97f4a7c15 + block);
    std::bernoulli_distribution changes(kind.density);
    const uint64_t end = std::min(elements, (block + 1) * kFillElements);
    for (uint64_t i = block * kFillElements; i < end; ++i) {
      const uint16_t value = RandomWeight(random);
      StoreLe<uint16_t>(&before[2 * i], value);
      StoreLe<uint16_t>(&after[2 * i],
                        changes(random) ? Changed(value, kind.change, random) : value);
    }
  });
  FinishWorkload(w, kernels, key, pool);
  return w;
}

}  // namespace

kernels::ClassFunction ClassFunctionOf(DType dtype) {
  using kernels::ClassFunction;
  switch (dtype) {
    case DType::kBF16:
      return ClassFunction::kBF16;
    case DType::kF16:
      return ClassFunction::kF16;
    case DType::kF32:
      return ClassFunction::kF32;
    case DType::kF8E4M3:
      return ClassFunction::kF8E4M3;
    case DType::kF8E5M2:
      return ClassFunction::kF8E5M2;
    default:
      return ClassFunction::kNone;
  }
}

StatusOr<Workload> EmptyWorkload(std::string name, Layout layout) {
  if (layout.total_bytes() == 0) {
    return Errorf(StatusCode::kInvalidArgument, "{} has no tensor data", name);
  }
  DW_ASSIGN_OR_RETURN(ChunkTable chunks, ChunkTable::Create(layout));
  DW_ASSIGN_OR_RETURN(HugeBuffer old_data, HugeBuffer::Create(layout.total_bytes()));
  DW_ASSIGN_OR_RETURN(HugeBuffer new_data, HugeBuffer::Create(layout.total_bytes()));
  return Workload{std::move(name),
                  std::move(layout),
                  std::move(chunks),
                  std::move(old_data),
                  std::move(new_data),
                  {},
                  {}};
}

void FinishWorkload(Workload& w, const kernels::Backend& kernels, const kernels::DigestKey& key,
                    ThreadPool& pool) {
  if (w.deltas.empty()) w.deltas.push_back(EncodeAll(w, kernels, key, pool));
  CountChanges(w, pool);
}

std::vector<Source> SyntheticSources(const WorkloadOptions& options) {
  using synth::Master;
  static constexpr AdamKind kAdam[] = {
      {"adam_fp32_lr1e-6", Master::kFp32, 1e-6f, {true, 0.97, 0.32}},
      {"adam_fp32_lr2e-6", Master::kFp32, 2e-6f, {true, 0.97, 0.32}},
      {"adam_grid", Master::kGrid, 1e-6f, {true, 0.97, 0.27}},
      {"adam_bf16", Master::kBf16, 1e-6f, {true, 0.78, 0.12}},
  };
  static constexpr DensityKind kRandom[] = {
      {"random_0.1%", 0.001, Change::kSteps}, {"random_1%", 0.01, Change::kSteps},
      {"random_3%", 0.03, Change::kSteps},    {"random_8%", 0.08, Change::kSteps},
      {"random_50%", 0.5, Change::kNormal},   {"random_100%", 1, Change::kNormal},
      {"redrawn_100%", 1, Change::kRedrawn},
  };
  std::vector<Source> out;
  for (const AdamKind& kind : kAdam) {
    out.push_back({kind.name, [kind, options](const auto& kernels, const auto& key, auto& pool) {
                     return MakeAdam(kind, options, kernels, key, pool);
                   }});
  }
  for (const DensityKind& kind : kRandom) {
    out.push_back({kind.name, [kind, options](const auto& kernels, const auto& key, auto& pool) {
                     return MakeRandom(kind, options, kernels, key, pool);
                   }});
  }
  return out;
}

}  // namespace deltawire::bench
