#include "sender/export/megatron/megatron_gather.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace deltawire {
namespace {

using mcore::Match;
using mcore::Plan;

/// A shard that some rank will send, as every rank must know it.
struct Sent {
  uint32_t planned = 0;
  uint32_t shard = 0;
  uint32_t rank = 0;
  DType dtype = DType::kBF16;
  mcore::Split split = mcore::Split::kNone;
};

constexpr size_t kRecordBytes = 4 + 4 + 1 + 1;

/// Returns this rank's part of the list, as bytes for AllGather.
std::vector<std::byte> Pack(std::span<const Match> matches,
                            std::span<const mcore::LiveParam> live) {
  std::vector<std::byte> out;
  for (const Match& m : matches) {
    if (!m.shard.writes) continue;
    std::byte record[kRecordBytes];
    StoreLe<uint32_t>(record, m.shard.planned);
    StoreLe<uint32_t>(record + 4, m.shard.shard);
    record[8] = static_cast<std::byte>(live[m.live].dtype);
    record[9] = static_cast<std::byte>(m.split);
    out.insert(out.end(), record, record + kRecordBytes);
  }
  return out;
}

StatusOr<std::vector<Sent>> Unpack(const std::vector<std::vector<std::byte>>& all,
                                   const Plan& plan) {
  std::vector<Sent> sent;
  for (uint32_t rank = 0; rank < all.size(); ++rank) {
    for (size_t at = 0; at + kRecordBytes <= all[rank].size(); at += kRecordBytes) {
      const std::byte* record = all[rank].data() + at;
      Sent s{LoadLe<uint32_t>(record), LoadLe<uint32_t>(record + 4), rank,
             static_cast<DType>(record[8]), static_cast<mcore::Split>(record[9])};
      if (s.planned >= plan.planned().size() ||
          static_cast<size_t>(s.dtype) >= AllDTypes().size() || s.split > mcore::Split::kColumns) {
        return Errorf(StatusCode::kFailedPrecondition,
                      "rank {} goes by another plan; give every rank the same config.json, family "
                      "and parallel config",
                      rank);
      }
      sent.push_back(s);
    }
  }
  // Sort in the model's order, so that a bucket comes from several ranks at once.
  std::sort(sent.begin(), sent.end(), [](const Sent& a, const Sent& b) {
    return std::tie(a.planned, a.shard, a.rank) < std::tie(b.planned, b.shard, b.rank);
  });
  return sent;
}

/// Checks that every shard of every parameter is sent exactly once.
Status CheckComplete(const Plan& plan, std::span<const Sent> sent) {
  size_t next = 0;
  for (uint32_t s = 0; s < plan.planned().size(); ++s) {
    const mcore::PlannedParam& planned = plan.planned()[s];
    if (!planned.exported) continue;
    const mcore::Split split =
        next < sent.size() && sent[next].planned == s ? sent[next].split : planned.cut.split;
    const uint32_t world = split == mcore::Split::kNone ? 1 : plan.CutAs(planned, split).world;
    for (uint32_t t = 0; t < world; ++t, ++next) {
      const bool there = next < sent.size() && sent[next].planned == s && sent[next].shard == t &&
                         sent[next].split == split;
      if (!there) {
        const bool twice = next < sent.size() && sent[next].planned == s && sent[next].shard < t;
        return Errorf(StatusCode::kFailedPrecondition,
                      "shard {} of {} of {} (layer {}) is held by {}; are the ranks numbered as in "
                      "the parallel config?",
                      t, world, plan.LocalNames(planned).front(), planned.layer,
                      twice ? "several ranks" : "no rank");
      }
    }
  }
  if (next == sent.size()) return absl::OkStatus();
  return Errorf(StatusCode::kFailedPrecondition, "rank {} holds a shard that others hold as well",
                sent[next].rank);
}

/// Shards cut into items of whole rows. No item is larger than a bucket unless one row is.
struct Items {
  std::vector<GatherItem> items;
  std::vector<size_t> sent;           // index into the list of shards, by item
  std::vector<mcore::RowRange> rows;  // by item
};

Items Cut(const Plan& plan, std::span<const Sent> sent, uint64_t bucket_bytes) {
  Items out;
  for (size_t i = 0; i < sent.size(); ++i) {
    const mcore::ParamCut cut = plan.CutAs(plan.planned()[sent[i].planned], sent[i].split);
    const uint64_t row = cut.local_cols() * DTypeBytes(sent[i].dtype), rows = cut.local_rows();
    const uint64_t step = std::max<uint64_t>(1, bucket_bytes / std::max<uint64_t>(row, 1));
    for (uint64_t at = 0; at < rows; at += step) {
      const uint64_t end = std::min(at + step, rows);
      out.items.push_back({sent[i].rank, (end - at) * row});
      out.sent.push_back(i);
      out.rows.push_back({at, end});
    }
  }
  return out;
}

}  // namespace

StatusOr<GatherStats> GatherToHf(Collective& collective, const Plan& plan,
                                 std::span<const Match> matches,
                                 std::span<const mcore::LiveParam> live, const LiveBytes& bytes,
                                 const mcore::Transfer::TensorMemory& tensor, ThreadPool& pool,
                                 const GatherOptions& options,
                                 const mcore::Transfer::Placed& placed) {
  const auto deadline = std::min(options.deadline, Collective::Clock::now() + options.wait_timeout);
  DW_ASSIGN_OR_RETURN(const auto all, collective.AllGather(Pack(matches, live), deadline));
  DW_ASSIGN_OR_RETURN(const std::vector<Sent> sent, Unpack(all, plan));
  DW_RETURN_IF_ERROR(CheckComplete(plan, sent));
  const Items items = Cut(plan, sent, options.bucket_bytes);
  DW_ASSIGN_OR_RETURN(const std::vector<GatherBucket> buckets,
                      MakeBuckets(items.items, options.bucket_bytes));
  for (const GatherBucket& bucket : buckets) {
    for (const GatherPiece& piece : bucket) {
      if (piece.bytes != items.items[piece.item].bytes) {
        return Errorf(StatusCode::kInvalidArgument,
                      "one row of {} bytes does not fit a bucket of {}; give larger buckets",
                      items.items[piece.item].bytes, options.bucket_bytes);
      }
    }
  }
  std::map<std::pair<uint32_t, uint32_t>, const Match*> mine;
  for (const Match& m : matches) mine[{m.shard.planned, m.shard.shard}] = &m;
  const auto source = [&](uint64_t item) -> StatusOr<Bytes> {
    const Sent& s = sent[items.sent[item]];
    const uint64_t row =
        plan.CutAs(plan.planned()[s.planned], s.split).local_cols() * DTypeBytes(s.dtype);
    return bytes(mine.at({s.planned, s.shard})->live)
        .subspan(items.rows[item].begin * row, items.items[item].bytes);
  };
  const auto consume = [&](size_t bucket, std::span<const Bytes> pieces) -> Status {
    mcore::Transfer transfer;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const uint64_t item = buckets[bucket][i].item;
      const Sent& s = sent[items.sent[item]];
      mcore::ShardParam shard;
      shard.planned = s.planned;
      shard.shard = s.shard;
      shard.names = plan.LocalNames(plan.planned()[s.planned]);
      DW_ASSIGN_OR_RETURN(
          std::vector<mcore::Step> steps,
          StepsOf(plan, shard, s.dtype, s.split, mcore::Direction::kToHf, items.rows[item]));
      // The const_cast is safe: this direction only reads.
      transfer.Add(std::move(steps), {const_cast<std::byte*>(pieces[i].data()), pieces[i].size()});
    }
    transfer.Run(mcore::Direction::kToHf, tensor, pool, placed);
    return absl::OkStatus();
  };
  return GatherBuckets(collective, buckets, source, consume, options);
}

}  // namespace deltawire
