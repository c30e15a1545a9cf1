// The size of a gather's buckets, chosen from the free memory of its ranks. The ranks agree on it
// with one AllGather. If ranks ask for different sizes, every rank gets kFailedPrecondition.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "common/base/status.h"
#include "sender/export/gather/collective.h"

namespace deltawire {

/// Requests a size that fits: at most kLargestAutoBucket, and at most 1/8 of the free memory of the
/// rank with the least: on its device if buckets are there, and of its share of the host.
inline constexpr uint64_t kAutoBucketBytes = UINT64_MAX;
inline constexpr uint64_t kLargestAutoBucket = 512ULL << 20;

struct BucketNeeds {
  uint64_t wanted = 0;       ///< bytes, or kAutoBucketBytes
  uint64_t largest_row = 0;  ///< bytes; no bucket is smaller
  uint64_t host = 0;         ///< ranks with the same number share a host's memory
  uint64_t host_free = UINT64_MAX;
  uint64_t device_free = UINT64_MAX;  ///< UINT64_MAX: unknown, or no device
};

/// Returns the size in bytes, a multiple of 64.
StatusOr<uint64_t> BucketBytesFor(std::span<const BucketNeeds> ranks);

/// Collects all ranks' needs and returns BucketBytesFor them, the same on every rank.
StatusOr<uint64_t> AgreeBucketBytes(Collective& collective, uint64_t wanted, uint64_t largest_row,
                                    Collective::Deadline deadline);

}  // namespace deltawire
