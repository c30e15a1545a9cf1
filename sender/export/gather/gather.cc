#include "sender/export/gather/gather.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/human.h"

namespace deltawire {
namespace {

using Clock = Collective::Clock;
using Deadline = Collective::Deadline;

class Gather {
 public:
  Gather(Collective& collective, std::span<const GatherBucket> plan, const GatherSource& source,
         const GatherConsumer& consume, const GatherOptions& options)
      : collective_(collective),
        plan_(plan),
        source_(source),
        consume_(consume),
        options_(options),
        buffers_(options.buffers != nullptr ? *options.buffers : own_buffers_) {}

  Status Agree();
  Status Validate() const;
  Status Run();
  const GatherStats& stats() const { return stats_; }

 private:
  // A bucket under way: its transfer, and on the root the places of its pieces.
  struct Flight {
    std::unique_ptr<PendingGather> pending;
    std::vector<Bytes> pieces;
  };

  bool is_root() const { return collective_.rank() == collective_.root(); }
  Deadline WaitDeadline() const {
    return std::min(options_.deadline, Clock::now() + options_.wait_timeout);
  }
  StatusOr<Bytes> Source(const GatherPiece& piece) const;
  StatusOr<MutableBytes> Buffer(size_t bucket, uint64_t bytes, bool with_own);
  Status Start(size_t bucket) { return is_root() ? StartOnRoot(bucket) : StartElsewhere(bucket); }
  Status StartOnRoot(size_t bucket);
  Status StartElsewhere(size_t bucket);
  Status Finish(size_t bucket);

  Collective& collective_;
  const std::span<const GatherBucket> plan_;
  const GatherSource& source_;
  const GatherConsumer& consume_;
  const GatherOptions& options_;
  GatherBuffers own_buffers_;
  GatherBuffers& buffers_;
  std::array<Flight, 2> flights_;  // destroyed before the memory that they use
  GatherStats stats_;
};

// Checks, before any transfer, that the ranks have the same plan and bucket size.
Status Gather::Agree() {
  const Hash128 hash = HashPlan(plan_);
  std::array<std::byte, 4 * sizeof(uint64_t)> mine;
  const std::array<uint64_t, 4> fields = {hash.hi, hash.lo, plan_.size(), options_.bucket_bytes};
  for (size_t i = 0; i < fields.size(); ++i) StoreLe(mine.data() + i * sizeof(uint64_t), fields[i]);
  DW_ASSIGN_OR_RETURN(const auto all, collective_.AllGather(mine, WaitDeadline()));
  const auto& roots = all[collective_.root()];
  std::string differ;
  for (int r = 0; r < collective_.size(); ++r) {
    if (all[r] != roots) differ += (differ.empty() ? "" : ", ") + std::to_string(r);
  }
  if (differ.empty()) return absl::OkStatus();
  return Errorf(
      StatusCode::kFailedPrecondition,
      "gather: the plan of rank(s) {} differs from that of the root (rank {}): give every "
      "rank the same items, in the same order, and the same bucket size",
      differ, collective_.root());
}

// After Agree the plan is the same on every rank, so every rank gets the same result.
Status Gather::Validate() const {
  for (size_t b = 0; b < plan_.size(); ++b) {
    uint64_t left = options_.bucket_bytes;
    for (const GatherPiece& piece : plan_[b]) {
      if (piece.rank >= static_cast<uint64_t>(collective_.size())) {
        return Errorf(StatusCode::kInvalidArgument,
                      "gather: item {} is on rank {}, but there are {} ranks", piece.item,
                      piece.rank, collective_.size());
      }
      if (piece.bytes > left) {
        return Errorf(StatusCode::kInvalidArgument,
                      "gather: bucket {} holds more than {} bytes: make the plan with MakeBuckets "
                      "and the same bucket size",
                      b, options_.bucket_bytes);
      }
      const uint64_t padding =
          (kGatherAlignment - piece.bytes % kGatherAlignment) % kGatherAlignment;
      left -= std::min(left, piece.bytes + padding);
    }
  }
  return absl::OkStatus();
}

StatusOr<Bytes> Gather::Source(const GatherPiece& piece) const {
  if (piece.bytes == 0) return Bytes();
  StatusOr<Bytes> item = source_(piece.item);
  if (!item.ok()) {
    return Annotate(item.status(),
                    fmt::format("gather: item {} of rank {}", piece.item, piece.rank));
  }
  if (item->size() < piece.offset || item->size() - piece.offset < piece.bytes) {
    return Errorf(
        StatusCode::kInvalidArgument,
        "gather: item {} of rank {} has {} bytes, but the plan takes bytes {} to {} of it",
        piece.item, piece.rank, item->size(), piece.offset, piece.offset + piece.bytes);
  }
  return item->subspan(piece.offset, piece.bytes);
}

// Returns memory for a bucket, large enough for any later one, too. It is allocated once, or twice
// if the root finds later that its own pieces need room.
StatusOr<MutableBytes> Gather::Buffer(size_t bucket, uint64_t bytes, bool with_own) {
  if (bytes == 0) return MutableBytes();
  std::unique_ptr<CollectiveBuffer>& buffer = buffers_.buckets[bucket % 2];
  if (buffer == nullptr || buffer->bytes().size() < bytes) {
    uint64_t largest = bytes;
    for (size_t b = bucket + 1; b < plan_.size(); ++b) {
      const BucketPlaces places = PlaceBucket(plan_[b], collective_.size(), collective_.root());
      largest = std::max(largest, !is_root() ? places.rank[collective_.rank()].bytes
                                  : with_own ? places.all_bytes
                                             : places.others_bytes);
    }
    buffer.reset();
    using Use = Collective::BufferUse;
    DW_ASSIGN_OR_RETURN(buffer,
                        collective_.NewBuffer(is_root() ? Use::kReceive : Use::kSend, largest));
  }
  uint64_t alive = 0;
  for (const auto& b : buffers_.buckets) alive += b == nullptr ? 0 : b->bytes().size();
  stats_.peak_buffer_bytes = std::max(stats_.peak_buffer_bytes, alive);
  return buffer->bytes();
}

Status Gather::StartOnRoot(size_t bucket) {
  const GatherBucket& pieces = plan_[bucket];
  const int root = collective_.root();
  const BucketPlaces places = PlaceBucket(pieces, collective_.size(), root);
  Flight& flight = flights_[bucket % 2];
  flight.pieces.assign(pieces.size(), Bytes());
  bool copy_own = false;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].rank != static_cast<uint32_t>(root)) continue;
    DW_ASSIGN_OR_RETURN(flight.pieces[i], Source(pieces[i]));
    copy_own |= !collective_.CanRead(flight.pieces[i]);
    stats_.own_bytes += pieces[i].bytes;
  }
  DW_ASSIGN_OR_RETURN(const MutableBytes buffer,
                      Buffer(bucket, copy_own ? places.all_bytes : places.others_bytes, copy_own));
  std::vector<MutableBytes> parts(collective_.size());
  for (int r = 0; r < collective_.size(); ++r) {
    const BucketPlaces::Range& range = places.rank[r];
    if (r == root || range.bytes == 0) continue;
    parts[r] = buffer.subspan(range.offset, range.bytes);
    stats_.network_bytes += range.bytes;
  }
  DW_ASSIGN_OR_RETURN(flight.pending, collective_.StartGather(static_cast<uint32_t>(bucket), {},
                                                              parts, WaitDeadline()));
  std::vector<Collective::CopyJob> jobs;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].bytes == 0) continue;
    const bool own = pieces[i].rank == static_cast<uint32_t>(root);
    if (own && !copy_own) continue;
    const MutableBytes place = buffer.subspan(places.piece_offset[i], pieces[i].bytes);
    if (own) {
      jobs.push_back({place, flight.pieces[i]});
      stats_.staged_bytes += pieces[i].bytes;
    }
    flight.pieces[i] = place;
  }
  return jobs.empty() ? absl::OkStatus() : collective_.Copy(jobs, WaitDeadline());
}

Status Gather::StartElsewhere(size_t bucket) {
  const GatherBucket& pieces = plan_[bucket];
  const int rank = collective_.rank();
  const BucketPlaces places = PlaceBucket(pieces, collective_.size(), collective_.root());
  const BucketPlaces::Range& range = places.rank[rank];
  Flight& flight = flights_[bucket % 2];
  flight.pending.reset();
  if (range.bytes == 0) return absl::OkStatus();
  std::vector<Collective::CopyJob> jobs;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].rank != static_cast<uint32_t>(rank) || pieces[i].bytes == 0) continue;
    DW_ASSIGN_OR_RETURN(const Bytes from, Source(pieces[i]));
    jobs.push_back({{}, from});
  }
  Bytes mine = jobs.front().from;
  if (jobs.size() > 1 || !collective_.CanSendFrom(mine)) {
    DW_ASSIGN_OR_RETURN(const MutableBytes buffer, Buffer(bucket, range.bytes, false));
    size_t job = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].rank != static_cast<uint32_t>(rank) || pieces[i].bytes == 0) continue;
      jobs[job++].to = buffer.subspan(places.piece_offset[i] - range.offset, pieces[i].bytes);
      stats_.staged_bytes += pieces[i].bytes;
    }
    DW_RETURN_IF_ERROR(collective_.Copy(jobs, WaitDeadline()));
    mine = Bytes(buffer).first(range.bytes);
  }
  stats_.network_bytes += mine.size();
  DW_ASSIGN_OR_RETURN(flight.pending, collective_.StartGather(static_cast<uint32_t>(bucket), mine,
                                                              {}, WaitDeadline()));
  return absl::OkStatus();
}

// Waits for the bucket's transfer, and consumes the bucket on the root.
Status Gather::Finish(size_t bucket) {
  Flight& flight = flights_[bucket % 2];
  if (flight.pending != nullptr) {
    const auto start = Clock::now();
    const Status waited = flight.pending->Wait(WaitDeadline());
    stats_.wait_seconds += SecondsSince(start);
    flight.pending.reset();
    DW_RETURN_IF_ERROR(waited);
  }
  ++stats_.buckets;
  if (!is_root()) return absl::OkStatus();
  const auto start = Clock::now();
  const Status consumed = consume_(bucket, flight.pieces);
  stats_.consume_seconds += SecondsSince(start);
  return consumed;
}

Status Gather::Run() {
  if (!plan_.empty()) DW_RETURN_IF_ERROR(Start(0));
  for (size_t b = 0; b < plan_.size(); ++b) {
    if (b + 1 < plan_.size()) DW_RETURN_IF_ERROR(Start(b + 1));
    DW_RETURN_IF_ERROR(Finish(b));
  }
  // The root reaches the barrier when it has consumed everything.
  return collective_.Barrier(WaitDeadline());
}

}  // namespace

StatusOr<GatherStats> GatherBuckets(Collective& collective, std::span<const GatherBucket> plan,
                                    const GatherSource& source, const GatherConsumer& consume,
                                    const GatherOptions& options) {
  Gather gather(collective, plan, source, consume, options);
  DW_RETURN_IF_ERROR(gather.Agree());
  DW_RETURN_IF_ERROR(gather.Validate());
  const Status ran = gather.Run();
  if (!ran.ok()) {
    collective.Abort(ran);  // so that no peer waits for this rank
    return ran;
  }
  return gather.stats();
}

}  // namespace deltawire
