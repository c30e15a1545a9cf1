#include "cli/unit_limits.h"

#include <algorithm>
#include <cmath>

#include "common/delta/chunk_history.h"
#include "common/layout/chunks.h"
#include "common/net/link_plan.h"
#include "common/serving/encoded_cache.h"
#include "common/serving/version_store.h"

namespace deltawire::cli {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// An idle daemon of one small model needs 29 to 35 MiB beyond its buffers. Its code and libraries
// count as well, if no other process has mapped them.
constexpr uint64_t kDaemon = 96 * kMiB;
// A tensor's names, shapes and offsets, in the layout and in answers that describe it.
constexpr uint64_t kPerTensor = 2048;
// A chunk's digests, and its entries in the lists of a pull.
constexpr uint64_t kPerChunk = 64;
// An attached receiver took 68 to 740 KiB (docs/benchmarks.md, "fanout").
constexpr uint64_t kPerReceiver = kMiB;
// A stream's socket holds at most a window of 768 KiB and 256 KiB of unsent bytes. The frame in
// transit may be a chunk's copy.
constexpr uint64_t kPerStream = kMiB + kChunkBytes;
// Pinned memory of a GPU's diffs: three slabs of 32 MiB, and their descriptions.
constexpr uint64_t kGpuStaging = 112 * kMiB;
// A daemon's descriptors beside its models and connections.
constexpr uint64_t kOwnDescriptors = 256;
// A model's files: weights, state, deltas, and side files while they are replaced.
constexpr uint64_t kDescriptorsPerModel = 64;

struct Sums {
  explicit Sums(const std::vector<ModelSize>& models) : count(models.size()) {
    for (const ModelSize& m : models) {
      bytes += m.bytes;
      side_files += m.side_file_bytes;
      tables += kPerTensor * m.tensors + kPerChunk * m.chunks;
    }
  }
  const uint64_t count;
  uint64_t bytes = 0, side_files = 0, tables = 0;
};

class Limits {
 public:
  void Add(std::string what, uint64_t bytes) {
    if (bytes > 0) limits_.parts.push_back({std::move(what), bytes});
  }
  void AddServed(const ServedReceivers& served, uint64_t delta_log, const Sums& models) {
    Add("deltas, up to delta-log", delta_log * models.count);
    Add("deltas that slow pulls still need, up to twice delta-log",
        VersionStore::kHeldLogs * delta_log * models.count);
    Add("a version that comes: payloads, as often coded anew", delta_log * models.count);
    // One share for the newest version, and one for all earlier ones.
    Add("payloads made for pulls", 2 * EncodedCache::kUsualBytes * models.count);
    Add("receivers that are attached", kPerReceiver * served.count);
    Add("their streams", kPerStream * served.count * served.streams);
    limits_.descriptors += uint64_t{served.count} * (1 + served.streams);
  }
  UnitLimits Finish(const Sums& models) {
    Add("digests, names and shapes", models.tables);
    Add("side files of two versions", 2 * models.side_files);
    Add("the daemon itself", kDaemon);
    uint64_t all = 0;
    for (const UnitLimits::Part& part : limits_.parts) all += part.bytes;
    const double margin = std::ceil(static_cast<double>(all) * kMargin);
    limits_.parts.push_back({"a tenth for what is not counted", static_cast<uint64_t>(margin)});
    limits_.memory_max = (all + limits_.parts.back().bytes + kMiB - 1) / kMiB * kMiB;
    limits_.descriptors += kOwnDescriptors + kDescriptorsPerModel * models.count;
    return std::move(limits_);
  }
  UnitLimits& limits() { return limits_; }

 private:
  UnitLimits limits_;
};

}  // namespace

UnitLimits LimitsOfSender(const SenderOptions& options, const std::vector<ModelSize>& models,
                          const ServedReceivers& served) {
  const Sums sums(models);
  Limits limits;
  limits.Add("two buffers", 2 * sums.bytes);
  limits.Add("old bytes of chunks, for slow pulls", sums.bytes);
  limits.Add("the delta that is being made", options.delta_log_bytes / 2 * sums.count);
  if (options.gpu != GpuUse::kOff) {
    limits.Add("a GPU's payloads until the CPU agrees, and its staging",
               (options.delta_log_bytes / 2 + kGpuStaging) * sums.count);
  }
  limits.AddServed(served, options.delta_log_bytes, sums);
  return limits.Finish(sums);
}

UnitLimits LimitsOfReceiver(const ReceiverOptions& options, const std::vector<ModelSize>& models,
                            const ServedReceivers& served) {
  const Sums sums(models);
  const bool two = options.buffers != 1;
  const auto agents = std::max<uint64_t>(1, options.senders.size());
  const uint64_t streams = options.streams != 0 ? options.streams : net::kMostStreams;
  Limits limits;
  limits.Add(two ? "two buffers" : "one buffer", (two ? 2 : 1) * sums.bytes);
  limits.Add("a delta that waits, up to staging", options.staging_bytes * sums.count);
  limits.Add("past deltas, for the codec tight", kHistoryBytes * sums.count);
  limits.Add("deltas for engines, up to delta-files", options.delta_file_bytes * sums.count);
  for (const EngineOptions& engine : options.engines) {
    if (engine.kind != EngineKind::kDiskDelta) continue;
    const auto model = std::ranges::find(models, engine.model, &ModelSize::name);
    limits.Add("last version of " + NameOf(engine),
               model == models.end() ? sums.bytes : model->bytes);
  }
  limits.Add("streams of its pulls", kPerStream * streams * agents * sums.count);
  limits.limits().descriptors += (streams + 1) * agents * sums.count + 4 * options.engines.size();
  if (options.bulk) limits.AddServed(served, options.delta_log_bytes, sums);
  return limits.Finish(sums);
}

}  // namespace deltawire::cli
