#include "bench/delta/workload.h"

#include <fcntl.h>

#include <bit>
#include <random>

#include "bench/harness/parallel.h"
#include "cli/synth/adam_trace.h"
#include "cli/synth/model_maker.h"
#include "common/layout/model_dir.h"

namespace deltawire::bench {
namespace {

constexpr int kAdamWarmup = 3;     // steps before the first recorded one
constexpr size_t kAdamSteps = 32;  // recorded steps: the length of the longest fold
constexpr size_t kFillElements = 64 * 1024;

// Returns a Qwen3-class layout of about `mib` MiB.
StatusOr<Layout> MakeLayout(uint64_t mib) {
  synth::ModelShape shape = mib < 64 ? synth::ModelShape{"small", 4096, 256, 1, 4, 2, 64, 768}
                                     : synth::ModelShape{"large", 16384, 1024, 1, 16, 8, 128, 3072};
  const auto with_layers = [&](uint64_t layers) {
    shape.layers = layers;
    return Layout::Create(synth::MakeTensors(shape));
  };
  DW_ASSIGN_OR_RETURN(const Layout one, with_layers(1));
  DW_ASSIGN_OR_RETURN(const Layout two, with_layers(2));
  const uint64_t layer = two.total_bytes() - one.total_bytes(), wanted = mib << 20;
  return with_layers(1 + (wanted - std::min(wanted, one.total_bytes())) / layer);
}

// Makes a workload with zeroed buffers and no deltas.
StatusOr<Workload> Empty(std::string name, Layout layout, uint64_t seed) {
  if (layout.total_bytes() == 0) {
    return Errorf(StatusCode::kInvalidArgument, "{} has no tensor data", name);
  }
  DW_ASSIGN_OR_RETURN(ChunkTable chunks, ChunkTable::Create(layout));
  DW_ASSIGN_OR_RETURN(HugeBuffer old_data, HugeBuffer::Create(layout.total_bytes()));
  DW_ASSIGN_OR_RETURN(HugeBuffer new_data, HugeBuffer::Create(layout.total_bytes()));
  return Workload{std::move(name),          std::move(layout),   std::move(chunks),
                  kernels::DigestKey(seed), std::move(old_data), std::move(new_data)};
}

void AddDelta(Workload& w, ThreadPool& pool) {
  w.deltas.push_back(DiffAll(w.key, w.chunks, w.old_data.data(), w.new_data.data(), pool));
  w.changed = w.elements = 0;
  for (const ChunkDelta& entry : w.deltas.back()->chunks()) w.changed += entry.changed;
  for (size_t t = 0; t < w.layout.size(); ++t) {
    w.elements += w.layout.bytes(t) / DTypeBytes(w.layout.tensor(t).dtype);
  }
}

StatusOr<Workload> MakeAdam(const char* name, const synth::AdamOptions& adam, Targets targets,
                            uint64_t mib, ThreadPool& pool) {
  DW_ASSIGN_OR_RETURN(Layout layout, MakeLayout(mib));
  DW_ASSIGN_OR_RETURN(Workload w, Empty(name, std::move(layout), adam.seed));
  w.targets = targets;
  DW_ASSIGN_OR_RETURN(auto trace, synth::AdamTrace::Create(w.layout.tensors(), adam, pool));
  // The trace's tensors are adjacent, as in the layout.
  const Bytes now(trace.tensor(0).data(), w.bytes());
  const auto step = [&] {
    std::swap(w.old_data, w.new_data);
    trace.Step(pool);
    std::memcpy(w.new_data.data().data(), now.data(), now.size());
  };
  for (int i = 0; i < kAdamWarmup; ++i) step();
  for (size_t s = 0; s < kAdamSteps; ++s) {
    step();
    AddDelta(w, pool);
  }
  return w;
}

uint16_t RandomWeight(std::mt19937_64& random) {
  std::normal_distribution<float> normal(0, 0.02f);
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random)) >> 16);
}

// The change of an element in a random workload.
using Change = uint16_t (*)(uint16_t before, std::mt19937_64& random);

uint16_t ByGeometricStep(uint16_t before, std::mt19937_64& random) {
  const int step = 1 + std::countr_zero(random() | uint64_t{1} << 40) / 2;
  return static_cast<uint16_t>((random() & 1) != 0 ? before - step : before + step);
}
// Changes a weight by many steps, as a large learning rate does.
uint16_t ByNormalStep(uint16_t before, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0, 16);
  int step = 0;
  while (step == 0) step = static_cast<int>(normal(random));
  return static_cast<uint16_t>(before + step);
}
// Draws the weight again: the worst case, since old and new bits are independent.
uint16_t Redrawn(uint16_t, std::mt19937_64& random) { return RandomWeight(random); }

// Weights of which `density` change.
Source ChangedSource(std::string name, double density, Change change,
                     const WorkloadOptions& options) {
  return {name, [=](ThreadPool& pool) -> StatusOr<Workload> {
            DW_ASSIGN_OR_RETURN(Layout layout, MakeLayout(options.mib));
            DW_ASSIGN_OR_RETURN(Workload w, Empty(name, std::move(layout), options.seed));
            const uint64_t elements = w.bytes() / 2;
            const MutableBytes before = w.old_data.data(), after = w.new_data.data();
            const uint64_t blocks = (elements + kFillElements - 1) / kFillElements;
            const uint64_t repeat = (options.repeat_mib << 20) / 2 / kFillElements;
            const uint64_t drawn = repeat == 0 ? blocks : std::min(blocks, repeat);
            pool.ParallelFor(drawn, [&](size_t block) {
              std::mt19937_64 random(options.seed * 0x9e3779b97f4a7c15 + block);
              std::bernoulli_distribution changes(density);
              const uint64_t end = std::min(elements, (block + 1) * kFillElements);
              for (uint64_t i = block * kFillElements; i < end; ++i) {
                const uint16_t value = RandomWeight(random);
                StoreLe<uint16_t>(&before[2 * i], value);
                StoreLe<uint16_t>(&after[2 * i], changes(random) ? change(value, random) : value);
              }
            });
            pool.ParallelFor(blocks - drawn, [&](size_t i) {
              const uint64_t to = (drawn + i) * kFillElements * 2,
                             from = i % drawn * kFillElements * 2;
              const uint64_t n = std::min<uint64_t>(kFillElements * 2, w.bytes() - to);
              std::memcpy(&before[to], &before[from], n);
              std::memcpy(&after[to], &after[from], n);
            });
            AddDelta(w, pool);
            return w;
          }};
}

// One version of the user's own: a raw file is a model of one tensor.
struct Version {
  Layout layout;
  std::function<Bytes(size_t tensor)> data;
};

StatusOr<Version> OpenRaw(const std::filesystem::path& path, DType dtype) {
  std::error_code ec;
  const uint64_t size = std::filesystem::file_size(path, ec), width = DTypeBytes(dtype);
  if (ec) return Errorf(StatusCode::kNotFound, "{}: {}", path.string(), ec.message());
  if (size == 0 || size % width != 0) {
    return Errorf(StatusCode::kInvalidArgument,
                  "{} has {} bytes, not a multiple of {} bytes per element; name the element type",
                  path.string(), size, width);
  }
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoError("open " + path.string());
  DW_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd.get(), size, false, path));
  DW_ASSIGN_OR_RETURN(Layout layout, Layout::Create({{"raw", dtype, {size / width}}}));
  return Version{std::move(layout),
                 [shared = std::make_shared<Mapping>(std::move(mapping))](size_t) {
                   return Bytes{shared->base(), shared->bytes()};
                 }};
}

StatusOr<Version> OpenVersion(const std::filesystem::path& path, DType dtype) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored) && path.extension() != ".safetensors") {
    return OpenRaw(path, dtype);
  }
  DW_ASSIGN_OR_RETURN(const ModelDir model, ModelDir::Open(path));
  return Version{model.layout(), [model](size_t t) { return model.data(t); }};
}

void CopyTo(const Version& version, const Layout& layout, MutableBytes to) {
  for (size_t t = 0; t < layout.size(); ++t) {
    // The other version's files may have the same tensors in another order.
    const Bytes data = version.data(*version.layout.Find(layout.tensor(t).name));
    if (!data.empty()) std::memcpy(to.data() + layout.offset(t), data.data(), data.size());
  }
}

}  // namespace

Source RandomSource(std::string name, double density, const WorkloadOptions& options) {
  return ChangedSource(std::move(name), density, ByGeometricStep, options);
}

std::vector<Source> SyntheticSources(const WorkloadOptions& options) {
  using synth::Master;
  std::vector<Source> out;
  const auto adam = [&](const char* name, Master master, float lr, Targets targets) {
    const synth::AdamOptions trace{.seed = options.seed, .lr = lr, .master = master};
    out.push_back({name, [=](ThreadPool& pool) {
                     return MakeAdam(name, trace, targets, options.mib, pool);
                   }});
  };
  adam("adam_fp32_lr1e-6", Master::kFp32, 1e-6f, {true, 0.97, 0.32});
  adam("adam_fp32_lr2e-6", Master::kFp32, 2e-6f, {true, 0.97, 0.32});
  adam("adam_grid", Master::kGrid, 1e-6f, {true, 0.97, 0.27});
  adam("adam_bf16", Master::kBf16, 1e-6f, {true, 0.78, 0.12});
  out.push_back(RandomSource("random_0.1%", 0.001, options));
  out.push_back(RandomSource("random_1%", 0.01, options));
  out.push_back(RandomSource("random_3%", 0.03, options));
  out.push_back(RandomSource("random_8%", 0.08, options));
  out.push_back(ChangedSource("random_50%", 0.5, ByNormalStep, options));
  out.push_back(ChangedSource("random_100%", 1, ByNormalStep, options));
  out.push_back(ChangedSource("redrawn_100%", 1, Redrawn, options));
  return out;
}

StatusOr<Source> PairSource(const std::filesystem::path& old_path,
                            const std::filesystem::path& new_path, DType dtype, uint64_t seed) {
  DW_ASSIGN_OR_RETURN(Version before, OpenVersion(old_path, dtype));
  DW_ASSIGN_OR_RETURN(Version after, OpenVersion(new_path, dtype));
  const std::string difference = DescribeDifference(before.layout, after.layout);
  if (!difference.empty()) {
    return Errorf(StatusCode::kInvalidArgument, "{} and {} are not two versions of one model: {}",
                  old_path.string(), new_path.string(), difference);
  }
  return Source{"pair",
                [before = std::move(before), after = std::move(after),
                 seed](ThreadPool& pool) -> StatusOr<Workload> {
                  DW_ASSIGN_OR_RETURN(Workload w, Empty("pair", before.layout, seed));
                  CopyTo(before, w.layout, w.old_data.data());
                  CopyTo(after, w.layout, w.new_data.data());
                  AddDelta(w, pool);
                  return w;
                }};
}

}  // namespace deltawire::bench
