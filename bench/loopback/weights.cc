#include "bench/loopback/weights.h"

#include <cmath>
#include <limits>

#include "bench/harness/buffers.h"
#include "bench/harness/parallel.h"
#include "cli/synth/adam_trace.h"
#include "cli/synth/model_maker.h"
#include "common/base/human.h"
#include "common/base/machine.h"
#include "kernels/element_width.h"

namespace deltawire::bench {
namespace {

constexpr int kAdamWarmup = 3;        // steps before the first recorded one
constexpr uint64_t kTraceBytes = 12;  // per element, of AdamTrace and of a version
const kernels::DigestKey kKey(1);     // for recorded steps
constexpr float kDeviation = 0.02f;   // of weights that no trace draws

}  // namespace

StatusOr<ModelSource> ModelSource::Synthetic(const std::string& size) {
  DW_ASSIGN_OR_RETURN(const synth::ModelShape shape, synth::FindModelShape(size));
  DW_ASSIGN_OR_RETURN(Layout layout, Layout::Create(synth::MakeTensors(shape)));
  return ModelSource{size, std::move(layout), {{"config.json", synth::MakeConfigJson(shape)}}, {}};
}

StatusOr<ModelSource> ModelSource::Directory(const std::filesystem::path& dir) {
  DW_ASSIGN_OR_RETURN(ModelDir model, ModelDir::Open(dir));
  DW_ASSIGN_OR_RETURN(std::vector<SideFile> files, model.ReadSideFiles());
  Layout layout = model.layout();
  if (layout.total_bytes() == 0) {
    return Errorf(StatusCode::kInvalidArgument, "{} has no tensor data", dir.string());
  }
  return ModelSource{dir.string(), std::move(layout), std::move(files), std::move(model)};
}

StatusOr<std::unique_ptr<Weights>> Weights::Create(const ModelSource& source,
                                                   const std::filesystem::path& file, uint64_t seed,
                                                   size_t adam_steps, ThreadPool& pool) {
  auto out = std::unique_ptr<Weights>(new Weights);
  out->layout_ = &source.layout;
  out->random_.seed(seed);
  out->seed_ = seed;
  DW_ASSIGN_OR_RETURN(out->mapping_, MapNewFile(file, source.layout.total_bytes()));
  if (source.directory) {
    pool.ParallelFor(source.layout.size(), [&](size_t t) {
      const Bytes data = source.directory->data(t);
      if (data.empty()) return;
      std::memcpy(out->writable().data() + source.layout.offset(t), data.data(), data.size());
    });
    out->why_no_adam_ = "the trace draws its own weights; it is not for --model";
    return out;
  }
  const uint64_t elements = source.layout.total_bytes() / 2;
  const uint64_t need = elements * kTraceBytes, free = AvailableMemory().value_or(0);
  if (adam_steps == 0) {
    out->why_no_adam_ = "left out";
  } else if (need + need / 10 > free) {
    out->why_no_adam_ =
        fmt::format("the trace needs {}, and {} are free", HumanBytes(need), HumanBytes(free));
  } else {
    DW_RETURN_IF_ERROR(out->Record(source, adam_steps, pool));
    return out;
  }
  out->FillRandom(pool);
  return out;
}

void Weights::FillRandom(ThreadPool& pool) {
  constexpr size_t kBlock = size_t{8} << 20;
  const MutableBytes to = writable();
  pool.ParallelFor((to.size() + kBlock - 1) / kBlock, [&](size_t block) {
    std::mt19937_64 random(seed_ + block);
    std::normal_distribution<float> normal(0, kDeviation);
    const size_t end = std::min(to.size(), (block + 1) * kBlock);
    for (size_t i = block * kBlock; i + 2 <= end; i += 2) {
      StoreLe<uint16_t>(&to[i],
                        static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random)) >> 16));
    }
  });
}

Status Weights::Record(const ModelSource& source, size_t steps, ThreadPool& pool) {
  synth::AdamOptions options;
  options.seed = seed_;
  DW_ASSIGN_OR_RETURN(synth::AdamTrace trace,
                      synth::AdamTrace::Create(source.layout.tensors(), options, pool));
  // The trace's tensors are adjacent, as in the layout.
  const Bytes now(trace.tensor(0).data(), content().size());
  for (int i = 0; i < kAdamWarmup; ++i) trace.Step(pool);
  const std::vector<std::byte> first(now.begin(), now.end());
  std::memcpy(mapping_.base(), now.data(), now.size());
  DW_ASSIGN_OR_RETURN(const ChunkTable chunks, ChunkTable::Create(*layout_));
  for (size_t s = 0; s < steps; ++s) {
    trace.Step(pool);
    steps_.push_back(DiffAll(kKey, chunks, content(), now, pool));
    std::memcpy(mapping_.base(), now.data(), now.size());
  }
  std::memcpy(mapping_.base(), first.data(), first.size());
  return absl::OkStatus();
}

Status Weights::AdamStep(ThreadPool& pool) {
  const auto step = std::move(steps_[next_step_++]);  // its memory is not needed again
  DW_ASSIGN_OR_RETURN(const ChunkTable chunks, ChunkTable::Create(*layout_));
  return ApplyAll(kKey, chunks, step->chunks(), writable(), pool);
}

void Weights::Flip(double fraction) {
  // Gaps between changed elements are geometric; the remainder carries over from tensor to tensor.
  const double scale = 1 / std::log1p(-fraction);
  std::uniform_real_distribution<double> uniform(std::numeric_limits<double>::min(), 1);
  const auto gap = [&] { return static_cast<uint64_t>(std::log(uniform(random_)) * scale); };
  uint64_t next = gap();
  for (size_t t = 0; t < layout_->size(); ++t) {
    const unsigned width = DTypeBytes(layout_->tensor(t).dtype);
    const uint64_t elements = layout_->bytes(t) / width;
    std::byte* const base = mapping_.base() + layout_->offset(t);
    kernels::WithWidth(width, [&]<typename T>(T) {
      for (; next < elements; next += 1 + gap()) {
        std::byte* const at = base + next * sizeof(T);
        const T value = LoadLe<T>(at);
        StoreLe<T>(at, static_cast<T>((random_() & 1) != 0 ? value + 1 : value - 1));
      }
    });
    next -= elements;
  }
}

}  // namespace deltawire::bench
