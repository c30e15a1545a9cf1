// Which bytes a gather moves in which step: items of known size on known ranks, put into buckets.
// Plain data and pure functions: every rank makes the same plan from the same items.
// Cost: linear in the number of items and pieces.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/status.h"

namespace deltawire {

/// Pieces begin at multiples of this in a bucket, and items are cut at multiples of it: no element
/// is split or misaligned.
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

/// All items in their order, in buckets of at most `bucket_bytes`, each piece counted as if it were
/// a multiple of kGatherAlignment. An item is cut only if it is larger than a bucket. Empty items
/// are there as empty pieces. kInvalidArgument: bucket_bytes is zero or no multiple of
/// kGatherAlignment.
StatusOr<std::vector<GatherBucket>> MakeBuckets(std::span<const GatherItem> items,
                                                uint64_t bucket_bytes);

/// Where the pieces of one bucket lie on the root: each rank's pieces are one range, ranks rise,
/// and the root's own range is the last.
struct BucketPlaces {
  struct Range {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  std::vector<uint64_t> piece_offset;  // by piece, from the bucket's beginning
  std::vector<Range> rank;             // by rank; a single piece's range is that piece exactly
  uint64_t others_bytes = 0;           // without the root's own range
  uint64_t all_bytes = 0;
};

/// REQUIRES: every piece's rank is below `size`.
BucketPlaces PlaceBucket(const GatherBucket& bucket, int size, int root);

/// Equal plans have equal hashes.
Hash128 HashPlan(std::span<const GatherBucket> plan);

}  // namespace deltawire
