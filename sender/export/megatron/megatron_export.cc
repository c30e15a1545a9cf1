#include "sender/export/megatron/megatron_export.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <set>

#include "common/base/log.h"
#include "kernels/place_pieces.h"
#include "sender/export/client/half_mapping.h"
#include "sender/export/mcore/node_part.h"

namespace deltawire {
namespace {

// The size of the pieces in which a shard is placed. Each piece is reported when it is in place.
constexpr uint64_t kPlacedBytes = uint64_t{32} << 20;

/// Returns the HF tensors that the plan's parameters form.
std::vector<uint32_t> TensorsOf(const mcore::Plan& plan) {
  std::set<uint32_t> tensors;
  for (const mcore::PlannedParam& planned : plan.planned()) {
    if (!planned.exported) continue;
    for (const mcore::RowPart& part : planned.cut.parts) tensors.insert(part.tensor);
  }
  return {tensors.begin(), tensors.end()};
}

/// Reports finished bytes to the agent. An error means that the offload is over, which the next
/// call of the offload reports, too.
class Telling {
 public:
  explicit Telling(TrainerClient::Offload* offload) : offload_(offload) {}
  void operator()(const mcore::Step& step) {
    const Status told = offload_->Finished(step.tensor, Destination::Of(step.copy));
    if (told.ok()) return;
    std::lock_guard lock(mu_);
    if (failure_.ok()) failure_ = told;
  }
  Status status() {
    std::lock_guard lock(mu_);
    return failure_;
  }

 private:
  TrainerClient::Offload* const offload_;
  std::mutex mu_;
  Status failure_;
};

std::vector<mcore::LiveParam> ParamsOf(std::span<const LiveTensor> live) {
  std::vector<mcore::LiveParam> params;
  params.reserve(live.size());
  for (const LiveTensor& t : live) params.push_back(t.param);
  return params;
}

Status CheckBytes(uint32_t rank, std::span<const LiveTensor> live) {
  for (const LiveTensor& t : live) {
    uint64_t bytes = DTypeBytes(t.param.dtype);
    for (const uint64_t n : t.param.shape) bytes *= n;
    if (bytes == t.data.size()) continue;
    return Errorf(StatusCode::kInvalidArgument,
                  "rank {}: {} (chunk {}) has {} bytes, its shape and dtype say {}", rank,
                  t.param.name, t.param.chunk, t.data.size(), bytes);
  }
  return absl::OkStatus();
}

uint64_t LargestRow(const mcore::Plan& plan, std::span<const mcore::Match> matches,
                    std::span<const LiveTensor> live) {
  uint64_t most = 0;
  for (const mcore::Match& m : matches) {
    const mcore::ParamCut cut = plan.CutAs(plan.planned()[m.shard.planned], m.split);
    most = std::max(most, cut.local_cols() * DTypeBytes(live[m.live].param.dtype));
  }
  return most;
}

}  // namespace

StatusOr<std::unique_ptr<MegatronExport>> MegatronExport::Open(const MegatronOptions& o) {
  auto made = std::unique_ptr<MegatronExport>(new MegatronExport(o.threads));
  DW_ASSIGN_OR_RETURN(mcore::HfModel model, mcore::HfModel::Open(o.hf_dir, o.family, o.families));
  made->model_.emplace(std::move(model));
  DW_ASSIGN_OR_RETURN(const mcore::ParallelConfig parallel,
                      mcore::ParallelConfig::Parse(o.parallel));
  DW_ASSIGN_OR_RETURN(mcore::Plan plan, made->model_->ProvenPlan(parallel));
  made->plan_.emplace(std::move(plan));
  made->trained_ = TensorsOf(*made->plan_);
  DW_ASSIGN_OR_RETURN(made->side_files_, SideFilesOf(o.hf_dir));
  return made;
}

StatusOr<std::vector<ChunkRange>> MegatronExport::PartOf(std::span<const uint32_t> ranks) const {
  DW_ASSIGN_OR_RETURN(const ChunkTable chunks, ChunkTable::Create(plan_->layout()));
  DW_ASSIGN_OR_RETURN(std::vector<ChunkRange> part, mcore::NodePart(*plan_, chunks, ranks));
  if (!part.empty()) return part;
  return Errorf(StatusCode::kNotFound,
                "ranks {} hold copies only, which other ranks write; they need no sender",
                fmt::join(ranks, ", "));
}

StatusOr<std::vector<mcore::Match>> MegatronExport::Matched(
    uint32_t rank, std::span<const LiveTensor> live) const {
  if (rank >= plan_->parallel().world()) {
    return Errorf(StatusCode::kInvalidArgument, "rank {}: the parallel config makes {} ranks", rank,
                  plan_->parallel().world());
  }
  DW_RETURN_IF_ERROR(CheckBytes(rank, live));
  return MatchRank(*plan_, rank, ParamsOf(live));
}

StatusOr<std::vector<mcore::Match>> MegatronExport::Checked(
    uint32_t rank, std::span<const LiveTensor> live) const {
  DW_ASSIGN_OR_RETURN(std::vector<mcore::Match> matches, Matched(rank, live));
  for (const mcore::Match& match : matches) {
    const auto steps = StepsOf(*plan_, match.shard, live[match.live].param.dtype, match.split,
                               mcore::Direction::kToHf);
    if (!steps.ok()) return steps.status();
  }
  return matches;
}

Status MegatronExport::Check(uint32_t rank, std::span<const LiveTensor> live) const {
  return Checked(rank, live).status();
}

Status MegatronExport::CarryOver(TrainerClient::Offload& offload) const {
  for (const std::string& name : plan_->not_trained()) {
    const auto t = static_cast<uint32_t>(*plan_->layout().Find(name));
    const ModelDir& checkpoint = *model_->checkpoint();
    const Bytes bytes = checkpoint.data(*checkpoint.layout().Find(name));
    DW_RETURN_IF_ERROR(offload.Write(t, bytes, Share::kWhole));
  }
  return absl::OkStatus();
}

StatusOr<uint64_t> MegatronExport::PlaceShards(TrainerClient::Offload& offload,
                                               std::span<const mcore::Match> matches,
                                               std::span<const LiveTensor> live, bool diff,
                                               std::set<uint32_t>& written) {
  mcore::Transfer transfer;
  std::vector<DeviceShard> elsewhere;
  uint64_t bytes = 0;
  for (const mcore::Match& match : matches) {
    if (!match.shard.writes) continue;
    const LiveTensor& source = live[match.live];
    if (!source.on_host()) elsewhere.push_back({&match, &source});
    const mcore::ParamCut cut = plan_->CutAs(plan_->planned()[match.shard.planned], match.split);
    const uint64_t row = cut.local_cols() * DTypeBytes(source.param.dtype);
    const uint64_t rows = std::max<uint64_t>(1, kPlacedBytes / std::max<uint64_t>(1, row));
    for (uint64_t at = 0; at < cut.local_rows(); at += rows) {
      const mcore::RowRange some{at, std::min(at + rows, cut.local_rows())};
      DW_ASSIGN_OR_RETURN(std::vector<mcore::Step> steps,
                          StepsOf(*plan_, match.shard, source.param.dtype, match.split,
                                  mcore::Direction::kToHf, some));
      for (const mcore::Step& step : steps) {
        written.insert(step.tensor);
        bytes += kernels::CopiedBytes(step.copy);
      }
      if (!source.on_host()) continue;
      // The const_cast is safe: this direction only reads.
      const Bytes from = source.data.subspan(at * row, (some.end - at) * row);
      transfer.Add(std::move(steps), {const_cast<std::byte*>(from.data()), from.size()});
    }
  }
  Telling telling(&offload);
  HalfMemory half;
  half.tensor = [&](uint32_t t) { return offload.tensor(t); };
  half.placed = std::ref(telling);
  if (const std::shared_ptr<HalfMapping> mapping = offload.whole_mapping(); mapping != nullptr) {
    half.mapped = {mapping->bytes(), mapping};
  }
  transfer.Run(mcore::Direction::kToHf, half.tensor, pool_, half.placed);
  if (!elsewhere.empty()) DW_RETURN_IF_ERROR(PlaceElsewhere(offload, elsewhere, diff, half));
  DW_RETURN_IF_ERROR(telling.status());
  return bytes;
}

Status MegatronExport::PlaceElsewhere(TrainerClient::Offload& offload,
                                      std::span<const DeviceShard> shards, bool diff,
                                      HalfMemory half) {
  std::vector<DevicePiece> pieces;
  for (const DeviceShard& shard : shards) {
    if (!diff || shard.live->read) continue;
    DW_ASSIGN_OR_RETURN(const std::vector<mcore::Step> steps,
                        StepsOf(*plan_, shard.match->shard, shard.live->param.dtype,
                                shard.match->split, mcore::Direction::kToHf));
    for (const mcore::Step& step : steps) {
      pieces.push_back(
          {step.tensor, shard.live->device, {step.copy, step.convert, shard.live->data}});
    }
  }
  std::vector<DiffedChunk> diffed;
  if (!pieces.empty()) {
    DW_ASSIGN_OR_RETURN(diffed, offload.DiffOnGpu(pieces, Share::kCounted));
  }
  const auto outside = [&](const mcore::Step& step) {
    std::vector<mcore::Step> parts;
    for (const auto& copy : offload.OutsideOf(diffed, step.tensor, step.copy, step.convert)) {
      parts.push_back({step.tensor, copy, step.convert});
    }
    return parts;
  };
  if (!diffed.empty()) half.parts = outside;
  DW_ASSIGN_OR_RETURN(const DevicePlaceStats stats, device_place_.Run(*plan_, shards, half, pool_));
  if (!stats.why_staged.empty() && !warned_) {
    warned_ = true;
    LogWarn("shards go over host memory instead of straight from the device: {}", stats.why_staged);
  }
  return offload.Diffed(diffed);
}

StatusOr<uint64_t> MegatronExport::Place(TrainerClient::Offload& offload, uint32_t rank,
                                         std::span<const LiveTensor> live, bool diff) {
  DW_ASSIGN_OR_RETURN(const std::vector<mcore::Match> matches, Matched(rank, live));
  std::set<uint32_t> written;
  DW_ASSIGN_OR_RETURN(const uint64_t bytes, PlaceShards(offload, matches, live, diff, written));
  const std::vector<uint32_t> tensors(written.begin(), written.end());
  DW_RETURN_IF_ERROR(offload.Written(tensors, Share::kCounted));
  if (rank == 0) DW_RETURN_IF_ERROR(CarryOver(offload));
  return bytes;
}

StatusOr<MegatronExport::GatherInput> MegatronExport::InputOf(Collective& collective,
                                                              bool has_offload, uint32_t rank,
                                                              std::span<const LiveTensor> live) {
  const bool root = collective.rank() == collective.root();
  if (root != has_offload || static_cast<uint32_t>(collective.rank()) != rank) {
    return Errorf(StatusCode::kInvalidArgument,
                  "rank {} of the collective, rank {} of the job: they must be the same, and rank "
                  "{} alone has an offload",
                  collective.rank(), rank, collective.root());
  }
  GatherInput input;
  DW_ASSIGN_OR_RETURN(input.matches, Checked(rank, live));
  DW_ASSIGN_OR_RETURN(input.sources, ForeignCollective::Create(collective, live));
  return input;
}

StatusOr<GatherStats> MegatronExport::Gather(Collective& collective,
                                             TrainerClient::Offload* offload, uint32_t rank,
                                             std::span<const LiveTensor> live,
                                             const GatherOptions& options) {
  const bool root = collective.rank() == collective.root();
  StatusOr<GatherInput> input = InputOf(collective, offload != nullptr, rank, live);
  if (!input.ok()) {
    // The other ranks see no error, and would wait for this one.
    collective.Abort(input.status());
    return input.status();
  }
  Telling telling(offload);
  const auto run = [&]() -> StatusOr<GatherStats> {
    GatherOptions agreed = options;
    DW_ASSIGN_OR_RETURN(
        agreed.bucket_bytes,
        AgreeBucketBytes(
            collective, options.bucket_bytes, LargestRow(*plan_, input->matches, live),
            std::min(options.deadline, Collective::Clock::now() + options.wait_timeout)));
    ForeignCollective& sources = *input->sources;
    DW_ASSIGN_OR_RETURN(GatherStats stats, GatherToHf(
                                               sources, *plan_, input->matches, ParamsOf(live),
                                               [&](size_t i) { return sources.source(i); },
                                               [&](uint32_t t) { return offload->tensor(t); },
                                               pool_, agreed, std::ref(telling)));
    stats.bucket_bytes = agreed.bucket_bytes;
    return stats;
  };
  DW_ASSIGN_OR_RETURN(const GatherStats stats, run());
  if (!root) return stats;
  DW_RETURN_IF_ERROR(telling.status());
  DW_RETURN_IF_ERROR(offload->Written(trained_, Share::kCounted));
  DW_RETURN_IF_ERROR(CarryOver(*offload));
  return stats;
}

}  // namespace deltawire
