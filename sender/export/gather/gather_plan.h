// The plan of a gather: items of known size on known ranks, put into buckets, one per step. Every
// rank makes the same plan from the same items.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/status.h"

namespace deltawire {

/// Pieces begin at multiples of this in a bucket, and items are cut at multiples of it, so that no
/// element is split or misaligned.
inline constexpr uint64_t kGatherAlignment = 64;

/// `bytes` bytes in the memory of `rank`.
struct GatherItem {
  uint32_t rank = 0;
  uint64_t bytes = 0;
};

/// Bytes [offset, offset + bytes) of item `item` (its index), which is on `rank`.
struct GatherPiece {
  uint64_t item = 0;
  uint32_t rank = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  friend bool operator==(const GatherPiece&, const GatherPiece&) = default;
};

using GatherBucket = std::vector<GatherPiece>;

/// Puts all items, in their order, into buckets of at most `bucket_bytes`, where each piece counts
/// as a multiple of kGatherAlignment. Only an item larger than a bucket is cut. An empty item
/// becomes an empty piece. kInvalidArgument: bucket_bytes is zero or not a multiple of
/// kGatherAlignment.
StatusOr<std::vector<GatherBucket>> MakeBuckets(std::span<const GatherItem> items,
                                                uint64_t bucket_bytes);

/// The places of one bucket's pieces on the root. Each rank's pieces form one range; the ranges are
/// in the order of ranks, but the root's own comes last.
struct BucketPlaces {
  struct Range {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  std::vector<uint64_t> piece_offset;  // by piece, from the bucket's beginning
  std::vector<Range> rank;             // by rank; the range of a single piece is exactly that piece
  uint64_t others_bytes = 0;           // without the root's own range
  uint64_t all_bytes = 0;
};

/// REQUIRES: every piece's rank is below `size`.
BucketPlaces PlaceBucket(const GatherBucket& bucket, int size, int root);

/// Equal plans have equal hashes.
Hash128 HashPlan(std::span<const GatherBucket> plan);

}  // namespace deltawire
