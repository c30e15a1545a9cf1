#include "bench/export/job.h"

#include <cstring>
#include <numeric>

namespace deltawire::bench {
namespace {

constexpr uint64_t kAlignment = 512;  // of a trainer's allocator

uint64_t SizeOf(const mcore::ShardParam& s) {
  return std::accumulate(s.shape.begin(), s.shape.end(), uint64_t{DTypeBytes(s.dtype)},
                         std::multiplies<>());
}

uint64_t Aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

uint64_t NumberAt(uint64_t place) { return (place + 1) * 0x9e3779b97f4a7c15; }

}  // namespace

StatusOr<std::unique_ptr<Planned>> Planned::Make(const MegatronJob& job) {
  auto made = std::make_unique<Planned>();
  DW_ASSIGN_OR_RETURN(made->families_, mcore::FamilySet::Load({}));
  DW_ASSIGN_OR_RETURN(mcore::HfConfig config, mcore::HfConfig::Parse(job.config));
  made->config_.emplace(std::move(config));
  DW_ASSIGN_OR_RETURN(const mcore::Family* family, made->families_.Select(*made->config_));
  DW_ASSIGN_OR_RETURN(mcore::ParallelConfig parallel, mcore::ParallelConfig::Parse(job.parallel));
  DW_ASSIGN_OR_RETURN(mcore::Plan plan, mcore::Plan::Make(*family, *made->config_, parallel));
  DW_RETURN_IF_ERROR(plan.Check().ToStatus());
  made->plan_.emplace(std::move(plan));
  return made;
}

std::vector<mcore::Match> WrittenBy(const mcore::Plan& plan, uint32_t rank) {
  std::vector<mcore::Match> out;
  for (mcore::ShardParam& s : plan.Rank(rank)) {
    if (!s.writes || s.shape.empty()) continue;
    const mcore::Split split = plan.planned()[s.planned].cut.split;
    out.push_back({out.size(), std::move(s), split});
  }
  return out;
}

StatusOr<Shards> Shards::Make(const mcore::Plan& plan, std::vector<uint32_t> ranks) {
  Shards out;
  out.plan_ = &plan;
  uint64_t size = 0;
  for (const uint32_t rank : ranks) {
    Rank& r = out.ranks_.emplace_back();
    r.matches = WrittenBy(plan, rank);
    for (const mcore::Match& m : r.matches) {
      size += Aligned(SizeOf(m.shard));
      r.live.push_back({m.shard.chunk, m.shard.names.front(), m.shard.dtype, m.shard.shape});
    }
  }
  DW_ASSIGN_OR_RETURN(out.memory_, HugeBuffer::Create(std::max<uint64_t>(size, 1)));
  uint64_t at = 0;
  for (Rank& r : out.ranks_) {
    for (const mcore::Match& m : r.matches) {
      r.data.push_back(out.memory_.data().subspan(at, SizeOf(m.shard)));
      at += Aligned(SizeOf(m.shard));
    }
  }
  return out;
}

StatusOr<std::vector<mcore::Transfer>> Shards::Programs(mcore::Direction direction) const {
  std::vector<mcore::Transfer> out;
  for (const Rank& r : ranks_) {
    mcore::Transfer& transfer = out.emplace_back();
    for (const mcore::Match& m : r.matches) {
      DW_ASSIGN_OR_RETURN(auto steps, StepsOf(*plan_, m.shard, m.shard.dtype, m.split, direction));
      transfer.Add(std::move(steps), r.data[m.live]);
    }
  }
  return out;
}

void Shards::Run(std::span<const mcore::Transfer> programs, mcore::Direction direction,
                 MutableBytes half, ThreadPool& pool) const {
  const auto tensor = [&](uint32_t t) {
    return half.subspan(plan_->layout().offset(t), plan_->layout().bytes(t));
  };
  for (const mcore::Transfer& transfer : programs) transfer.Run(direction, tensor, pool);
}

Status Shards::FillFrom(MutableBytes half) const {
  ThreadPool pool(1);
  FillByPlace(half);
  DW_ASSIGN_OR_RETURN(const auto programs, Programs(mcore::Direction::kFromHf));
  Run(programs, mcore::Direction::kFromHf, half, pool);
  return absl::OkStatus();
}

Status ForJobs(const std::vector<MegatronJob>& jobs, const std::string& prefix, const Bench& bench,
               const std::function<Status(const MegatronJob& job, const std::string& name)>& run) {
  for (const MegatronJob& job : jobs) {
    if (bench.Asked(prefix + job.name)) DW_RETURN_IF_ERROR(run(job, prefix + job.name));
  }
  return absl::OkStatus();
}

void FillByPlace(MutableBytes half) {
  for (size_t i = 0; i + 8 <= half.size(); i += 8) StoreLe<uint64_t>(&half[i], NumberAt(i));
}

bool FilledByPlace(Bytes half) {
  for (size_t i = 0; i + 8 <= half.size(); i += 8) {
    if (LoadLe<uint64_t>(&half[i]) != NumberAt(i)) return false;
  }
  return true;
}

Status CheckFilled(const std::string& name, Bytes half) {
  if (FilledByPlace(half)) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "{}: the half does not hold the model's bytes", name);
}

void CopyInParts(Bytes from, MutableBytes to, ThreadPool& pool) {
  const size_t threads = pool.size();
  pool.ParallelFor(threads, [&](size_t i) {
    const uint64_t first = from.size() * i / threads, end = from.size() * (i + 1) / threads;
    std::memcpy(to.data() + first, from.data() + first, end - first);
  });
}

}  // namespace deltawire::bench
