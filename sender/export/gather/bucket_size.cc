#include "sender/export/gather/bucket_size.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "common/base/checksum.h"
#include "common/base/machine.h"
#include "kernels/gpu.h"
#include "sender/export/gather/gather_plan.h"

namespace deltawire {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kFraction = 8;
constexpr size_t kFields = 5;

/// Returns a number for the machine, the same in all its containers, whatever their host names. If
/// the kernel does not report one, all ranks count as on one machine, which makes buckets smaller
/// but never too large.
uint64_t HostNumber() { return Xxh3_128(AsBytes(BootId().value_or(""))).lo; }

std::array<std::byte, kFields * sizeof(uint64_t)> Pack(const BucketNeeds& needs) {
  std::array<std::byte, kFields * sizeof(uint64_t)> out;
  const std::array<uint64_t, kFields> fields = {needs.wanted, needs.largest_row, needs.host,
                                                needs.host_free, needs.device_free};
  for (size_t i = 0; i < kFields; ++i) StoreLe(out.data() + i * sizeof(uint64_t), fields[i]);
  return out;
}

}  // namespace

StatusOr<uint64_t> BucketBytesFor(std::span<const BucketNeeds> ranks) {
  std::map<uint64_t, uint64_t> on_host;
  for (const BucketNeeds& r : ranks) ++on_host[r.host];
  uint64_t bytes = kLargestAutoBucket, least = kGatherAlignment;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const BucketNeeds& r = ranks[i];
    if (r.wanted != ranks[0].wanted) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "rank {} asks for another bucket size than rank 0; give every rank the same",
                    i);
    }
    bytes = std::min({bytes, r.host_free / on_host[r.host] / kFraction, r.device_free / kFraction});
    least = std::max(least,
                     (r.largest_row + kGatherAlignment - 1) / kGatherAlignment * kGatherAlignment);
  }
  if (!ranks.empty() && ranks[0].wanted != kAutoBucketBytes) return ranks[0].wanted;
  return std::max(bytes / kGatherAlignment * kGatherAlignment, least);
}

StatusOr<uint64_t> AgreeBucketBytes(Collective& collective, uint64_t wanted, uint64_t largest_row,
                                    Collective::Deadline deadline) {
  BucketNeeds mine{wanted, largest_row};
  if (wanted == kAutoBucketBytes) {
    mine.host = HostNumber();
    mine.host_free = AvailableMemory().value_or(UINT64_MAX);
    uint64_t device_free = 0, total = 0;
    if (collective.device() >= 0 &&
        kernels::GpuMemory(collective.device(), &device_free, &total).ok()) {
      mine.device_free = device_free;
    }
  }
  DW_ASSIGN_OR_RETURN(const auto all, collective.AllGather(Pack(mine), deadline));
  std::vector<BucketNeeds> ranks;
  for (const std::vector<std::byte>& record : all) {
    if (record.size() != kFields * sizeof(uint64_t)) {
      return absl::FailedPreconditionError(
          "a rank does not speak of bucket sizes as this one does; run one release on all ranks");
    }
    std::array<uint64_t, kFields> f;
    for (size_t i = 0; i < kFields; ++i) f[i] = LoadLe<uint64_t>(record.data() + i * 8);
    ranks.push_back({f[0], f[1], f[2], f[3], f[4]});
  }
  return BucketBytesFor(ranks);
}

}  // namespace deltawire
