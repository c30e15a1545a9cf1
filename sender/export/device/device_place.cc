#include "sender/export/device/device_place.h"

#include <algorithm>
#include <utility>

#include "kernels/place_pieces.h"
#include "sender/export/gather/gpu_status.h"

namespace deltawire {
namespace {

using mcore::Plan;

constexpr uint64_t kAlignment = 64;

/// Some rows of a shard, and their place in a bucket.
struct Window {
  const DeviceShard* shard = nullptr;
  mcore::RowRange rows;
  uint64_t from = 0;  // bytes into the shard
  uint64_t bytes = 0;
  uint64_t at = 0;
};

using Windows = std::vector<Window>;

struct Rows {
  uint64_t count = 0, bytes = 0;  // of one row
};

Rows RowsOf(const Plan& plan, const DeviceShard& shard) {
  const mcore::ParamCut cut =
      plan.CutAs(plan.planned()[shard.match->shard.planned], shard.match->split);
  return {cut.local_rows(), cut.local_cols() * DTypeBytes(shard.live->param.dtype)};
}

/// Distributes all rows, in order, over buckets of at most `bucket_bytes`. REQUIRES: no row is
/// larger.
std::vector<Windows> Cut(const Plan& plan, std::span<const DeviceShard> shards,
                         uint64_t bucket_bytes) {
  std::vector<Windows> buckets;
  uint64_t used = bucket_bytes;
  for (const DeviceShard& shard : shards) {
    const Rows rows = RowsOf(plan, shard);
    for (uint64_t at = 0; at < rows.count && rows.bytes > 0;) {
      used = (used + kAlignment - 1) / kAlignment * kAlignment;
      if (used >= bucket_bytes || bucket_bytes - used < rows.bytes) {
        buckets.emplace_back();
        used = 0;
      }
      const uint64_t n = std::min(rows.count - at, (bucket_bytes - used) / rows.bytes);
      buckets.back().push_back({&shard, {at, at + n}, at * rows.bytes, n * rows.bytes, used});
      used += n * rows.bytes;
      at += n;
    }
  }
  return buckets;
}

/// Returns the shard's steps, or those of its rows `only`, as far as they are to be copied.
StatusOr<std::vector<mcore::Step>> StepsToCopy(const Plan& plan, const DeviceShard& shard,
                                               const HalfMemory& half, mcore::RowRange only = {}) {
  DW_ASSIGN_OR_RETURN(std::vector<mcore::Step> steps,
                      StepsOf(plan, shard.match->shard, shard.live->param.dtype, shard.match->split,
                              mcore::Direction::kToHf, only));
  if (!half.parts) return steps;
  std::vector<mcore::Step> parts;
  for (const mcore::Step& step : steps) {
    for (const mcore::Step& part : half.parts(step)) parts.push_back(part);
  }
  return parts;
}

uint64_t LargestUse(const std::vector<Windows>& buckets) {
  uint64_t most = 0;
  for (const Windows& windows : buckets) {
    most = std::max(most, windows.back().at + windows.back().bytes);
  }
  return most;
}

}  // namespace

DevicePlace::~DevicePlace() = default;

/// The copies of one Run over the buckets: while the CPU places one, devices fill the other.
class DevicePlace::Staging {
 public:
  Staging(DevicePlace& owner, const Plan& plan, std::vector<Windows> buckets,
          const HalfMemory& half, ThreadPool& pool)
      : owner_(owner), plan_(plan), buckets_(std::move(buckets)), half_(half), pool_(pool) {}

  Status Run(DevicePlaceStats& stats) {
    DW_RETURN_IF_ERROR(TakeMemory(stats));
    Status status = Fill(0);
    for (size_t b = 0; b < buckets_.size() && status.ok(); ++b) {
      status = owner_.queues_.WaitForAll();
      if (status.ok() && b + 1 < buckets_.size()) status = Fill(b + 1);
      if (status.ok()) status = Place(b);
      ++stats.buckets;
    }
    // Copies must end before the buckets' next user fills them.
    if (!status.ok()) owner_.queues_.WaitForAll().IgnoreError();
    return status;
  }

 private:
  Status TakeMemory(DevicePlaceStats& stats) {
    const uint64_t wanted = LargestUse(buckets_);
    kernels::GpuQueue* const queue = owner_.queues_.first();
    const size_t count = std::min<size_t>(buckets_.size(), 2);
    for (size_t i = 0; i < count; ++i) {
      Bucket& bucket = owner_.ring_[i];
      if (bucket.bytes < wanted) {
        // Unpin first: moving frees the memory, and CUDA would unpin memory that is gone.
        bucket.pin.reset();
        bucket = Bucket();
        bucket.memory = std::make_unique_for_overwrite<std::byte[]>(wanted + kAlignment);
        bucket.bytes = wanted;
      }
      // A failure to pin is ignored: unpinned copies are only slower and do not overlap the CPU's
      // work.
      if (bucket.pin == nullptr && queue != nullptr) (void)queue->Pin(Memory(i), &bucket.pin);
    }
    for (const Bucket& bucket : owner_.ring_) stats.bucket_bytes += bucket.bytes;
    return absl::OkStatus();
  }

  MutableBytes Memory(size_t b) {
    Bucket& bucket = owner_.ring_[b % 2];
    const auto address = reinterpret_cast<uintptr_t>(bucket.memory.get());
    return {bucket.memory.get() + (kAlignment - address % kAlignment) % kAlignment, bucket.bytes};
  }

  Status Fill(size_t b) {
    for (const Window& w : buckets_[b]) {
      const LiveTensor& live = *w.shard->live;
      const MutableBytes to = Memory(b).subspan(w.at, w.bytes);
      Status status;
      if (live.read) {
        status = live.read(w.from, to);
      } else {
        DW_ASSIGN_OR_RETURN(kernels::GpuQueue* const queue, owner_.queues_.Queue(live.device));
        status = FromGpu(queue->Copy(to, live.data.subspan(w.from, w.bytes)));
      }
      if (!status.ok()) return Annotate(status, live.param.name);
    }
    return absl::OkStatus();
  }

  Status Place(size_t b) {
    mcore::Transfer transfer;
    for (const Window& w : buckets_[b]) {
      DW_ASSIGN_OR_RETURN(std::vector<mcore::Step> steps,
                          StepsToCopy(plan_, *w.shard, half_, w.rows));
      transfer.Add(std::move(steps), Memory(b).subspan(w.at, w.bytes));
    }
    transfer.Run(mcore::Direction::kToHf, half_.tensor, pool_, half_.placed);
    return absl::OkStatus();
  }

  DevicePlace& owner_;
  const Plan& plan_;
  const std::vector<Windows> buckets_;
  const HalfMemory& half_;
  ThreadPool& pool_;
};

Status DevicePlace::QueueShard(const Plan& plan, const DeviceShard& shard, const HalfMemory& half,
                               int turn, Batch& batch) {
  DW_ASSIGN_OR_RETURN(kernels::GpuQueue* const queue, queues_.Queue(shard.live->device, turn));
  DW_ASSIGN_OR_RETURN(const std::vector<mcore::Step> steps, StepsToCopy(plan, shard, half));
  for (const mcore::Step& step : steps) {
    DW_RETURN_IF_ERROR(queues_.Copy(*queue, step.copy, step.convert, shard.live->data,
                                    half.tensor(step.tensor), half.mapped));
    batch.bytes += kernels::CopiedBytes(step.copy);
    batch.steps.push_back(step);
  }
  ++batch.shards;
  return absl::OkStatus();
}

Status DevicePlace::PlaceDirectly(const Plan& plan, std::vector<DeviceShard>& shards,
                                  const HalfMemory& half, DevicePlaceStats& stats) {
  queues_.DropUnused();
  // While one turn's batch is being copied, the other's is queued behind it.
  Batch batches[kTurns];
  size_t queued = 0, reported = 0;
  Status status;
  const auto finish = [&](int turn) {
    Batch batch = std::exchange(batches[turn], {});
    if (batch.shards == 0) return;
    const Status done = queues_.WaitForTurn(turn);
    if (status.ok()) status = done;
    if (!status.ok()) return;
    for (const mcore::Step& step : batch.steps) {
      if (half.placed) half.placed(step);
    }
    stats.direct_bytes += batch.bytes;
    reported += batch.shards;
  };
  int turn = 0;
  for (; status.ok() && queued < shards.size(); turn = (turn + 1) % kTurns) {
    finish(turn);
    Batch& batch = batches[turn];
    while (status.ok() && queued < shards.size() && batch.bytes < batch_bytes_) {
      status = QueueShard(plan, shards[queued++], half, turn, batch);
    }
  }
  for (int i = 0; i < kTurns && status.ok(); ++i) finish((turn + i) % kTurns);
  // Wait after an error, too: a running kernel must not outlive the offload.
  const Status done = queues_.WaitForAll();
  if (status.ok()) status = done;
  shards.erase(shards.begin(), shards.begin() + static_cast<ptrdiff_t>(reported));
  return status;
}

StatusOr<DevicePlaceStats> DevicePlace::Run(const Plan& plan, std::span<const DeviceShard> shards,
                                            const HalfMemory& half, ThreadPool& pool) {
  DevicePlaceStats stats;
  std::vector<DeviceShard> direct, staged;
  for (const DeviceShard& s : shards) (s.live->read ? staged : direct).push_back(s);
  if (!direct.empty()) {
    const Status placed = PlaceDirectly(plan, direct, half, stats);
    if (!placed.ok()) {
      stats.why_staged = std::string(MessageOf(placed));
      staged.insert(staged.end(), direct.begin(), direct.end());
    }
  }
  if (staged.empty()) return stats;
  uint64_t bucket = bucket_bytes_;
  for (const DeviceShard& s : staged) {
    bucket = std::max(bucket, RowsOf(plan, s).bytes);
    stats.staged_bytes += s.live->data.size();
  }
  Staging staging(*this, plan, Cut(plan, staged, bucket), half, pool);
  const Status ran = staging.Run(stats);
  if (ran.ok()) return stats;
  if (stats.why_staged.empty()) return ran;
  return Annotate(
      ran, "over host memory, after writing from the device failed (" + stats.why_staged + ")");
}

}  // namespace deltawire
