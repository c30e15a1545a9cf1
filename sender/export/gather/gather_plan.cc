#include "sender/export/gather/gather_plan.h"

#include <algorithm>
#include <array>

namespace deltawire {
namespace {

uint64_t RoundUp(uint64_t bytes) {
  return (bytes + kGatherAlignment - 1) / kGatherAlignment * kGatherAlignment;
}

}  // namespace

StatusOr<std::vector<GatherBucket>> MakeBuckets(std::span<const GatherItem> items,
                                                uint64_t bucket_bytes) {
  if (bucket_bytes == 0 || bucket_bytes % kGatherAlignment != 0) {
    return Errorf(StatusCode::kInvalidArgument,
                  "a gather's bucket of {} bytes: the size must be a multiple of {}", bucket_bytes,
                  kGatherAlignment);
  }
  std::vector<GatherBucket> buckets;
  uint64_t room = 0;  // left in buckets.back(); a multiple of the alignment
  for (uint64_t i = 0; i < items.size(); ++i) {
    const GatherItem& item = items[i];
    uint64_t offset = 0;
    do {
      const uint64_t left = item.bytes - offset;
      // Compared without rounding up, which could overflow.
      if (buckets.empty() || (left > room && room < bucket_bytes)) {
        buckets.emplace_back();
        room = bucket_bytes;
      }
      const uint64_t bytes = std::min(left, room);
      buckets.back().push_back({i, item.rank, offset, bytes});
      room -= RoundUp(bytes);
      offset += bytes;
    } while (offset < item.bytes);
  }
  return buckets;
}

BucketPlaces PlaceBucket(const GatherBucket& bucket, int size, int root) {
  BucketPlaces places;
  places.rank.resize(size);
  places.piece_offset.reserve(bucket.size());
  for (const GatherPiece& piece : bucket) {
    BucketPlaces::Range& range = places.rank[piece.rank];
    // An empty piece neither begins a range nor pads one.
    const uint64_t at = piece.bytes == 0 ? range.bytes : RoundUp(range.bytes);
    places.piece_offset.push_back(at);
    range.bytes = at + piece.bytes;
  }
  uint64_t end = 0;
  for (int r = 0; r < size; ++r) {
    if (r == root) continue;
    places.rank[r].offset = end;
    end = RoundUp(end + places.rank[r].bytes);
  }
  places.others_bytes = end;
  places.rank[root].offset = end;
  places.all_bytes = RoundUp(end + places.rank[root].bytes);
  for (size_t i = 0; i < bucket.size(); ++i)
    places.piece_offset[i] += places.rank[bucket[i].rank].offset;
  return places;
}

Hash128 HashPlan(std::span<const GatherBucket> plan) {
  std::vector<std::byte> text;
  const auto put = [&](uint64_t v) {
    text.resize(text.size() + sizeof v);
    StoreLe(text.data() + text.size() - sizeof v, v);
  };
  for (const GatherBucket& bucket : plan) {
    put(bucket.size());
    for (const GatherPiece& piece : bucket) {
      for (const uint64_t v : {piece.item, uint64_t{piece.rank}, piece.offset, piece.bytes}) put(v);
    }
  }
  return Xxh3_128(text);
}

}  // namespace deltawire
