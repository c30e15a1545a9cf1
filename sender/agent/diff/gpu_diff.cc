#include "sender/agent/diff/gpu_diff.h"

#include "common/base/human.h"
#include "common/base/log.h"

namespace deltawire::sender {
namespace {

using kernels::GpuMode;

std::vector<kernels::GpuChunk> ChunksOf(const ChunkTable& table) {
  std::vector<kernels::GpuChunk> chunks;
  chunks.reserve(table.size());
  for (uint32_t i = 0; i < table.size(); ++i) {
    const Chunk& chunk = table[i];
    chunks.push_back({chunk.offset, chunk.bytes, chunk.width});
  }
  return chunks;
}

/// The modes to try, the best first.
std::span<const GpuMode> ModesOf(GpuUse use) {
  static constexpr GpuMode kBoth[] = {GpuMode::kResident, GpuMode::kHostStaged};
  switch (use) {
    case GpuUse::kAuto:
      return kBoth;
    case GpuUse::kHostStaged:
      return std::span(kBoth).last(1);
    case GpuUse::kOff:
      break;
  }
  return {};
}

const char* NameOf(GpuMode mode) {
  return mode == GpuMode::kResident ? "base resident" : "host-staged";
}

}  // namespace

std::unique_ptr<GpuDiff> GpuDiff::Create(const std::string& model, GpuUse use,
                                         const ChunkTable& chunks, const kernels::DigestKey& key,
                                         std::span<const Bytes> halves, std::string* where) {
  std::string ignored;
  if (where == nullptr) where = &ignored;
  where->clear();
  if (use == GpuUse::kOff) return nullptr;
  kernels::GpuOptions options;
  kernels::GpuInfo gpu;
  kernels::GpuStatus status = kernels::FindGpu(options.device, &gpu);
  const std::vector<kernels::GpuChunk> ranges = ChunksOf(chunks);
  std::unique_ptr<kernels::GpuDiffer> differ;
  if (status.ok()) status = kernels::GpuSelfTest(options.device);
  if (status.ok()) {
    for (const GpuMode mode : ModesOf(use)) {
      options.mode = mode;
      status = kernels::GpuDiffer::Create(options, key, ranges, &differ);
      if (status.error != kernels::GpuError::kMemory) break;
    }
  }
  if (differ == nullptr) {
    LogWarn("model {}: gpu = \"{}\", but diffs run on the CPU: {}", model, ToString(use),
            status.message);
    *where = fmt::format("the CPU ({})", status.message);
    return nullptr;
  }
  *where = fmt::format("{} ({})", gpu.name, NameOf(options.mode));
  LogInfo("model {}: diffs run on {}, {}, with {} of its memory", model, gpu.name,
          NameOf(options.mode), HumanBytes(differ->device_bytes()));
  std::unique_ptr<GpuDiff> diff(new GpuDiff(model, std::move(differ)));
  diff->pinning_ = std::thread(
      [d = diff.get(), all = std::vector(halves.begin(), halves.end())] { d->Pin(all); });
  return diff;
}

GpuDiff::~GpuDiff() {
  stopping_ = true;
  WaitUntilPinned();
}

void GpuDiff::WaitUntilPinned() {
  if (pinning_.joinable()) pinning_.join();
}

void GpuDiff::Pin(const std::vector<Bytes>& halves) {
  for (const Bytes half : halves) {
    if (half.empty() || stopping_) continue;
    std::unique_ptr<kernels::GpuPin> pin;
    const kernels::GpuStatus status = kernels::GpuPin::Create(half, &pin);
    if (!status.ok()) {
      LogWarn("model {}: a half is not pinned, so copies to the GPU are slower: {}", model_,
              status.message);
      return;
    }
    pins_.push_back(std::move(pin));
  }
}

bool GpuDiff::Diff(Bytes before, Bytes after, std::span<const uint32_t> which,
                   std::span<const uint64_t> digests_before, const kernels::GpuEncoded& encoded) {
  const kernels::GpuStatus status = differ_->Diff(before, after, which, digests_before, encoded);
  if (status.ok()) {
    if (!which.empty()) ++publishes_;
    return true;
  }
  ++failures_;
  LogWarn("model {}: this publish is diffed on the CPU: {}", model_, status.message);
  return false;
}

void GpuDiff::Distrust(const std::string& what) {
  ++mismatches_;
  LogError(
      "model {}: {}: the GPU's result is not the CPU's. Its results for this publish are dropped, "
      "and "
      "the CPU diffs this and all that follow (check the device; a restart tries it again)",
      model_, what);
}

}  // namespace deltawire::sender
