// The part of EngineWeights that finds drift: memory that is no longer what was written to it.
#include <algorithm>
#include <map>
#include <mutex>

#include "receiver/engine_client/prepared_update.h"

namespace deltawire::engine {

/// What this rank has of a chunk, at its place in the chunk, and zeros elsewhere.
struct EngineWeights::Gathered {
  uint64_t bytes = 0;
  bool differs = false;  ///< two places of one element do not agree
  uint64_t digest = 0;
  uint64_t places = 0;  ///< only of a part
};

EngineWeights::Gathered EngineWeights::Gather(uint32_t chunk) const {
  const Chunk& c = chunks_[chunk];
  thread_local std::vector<std::byte> gathered;
  gathered.assign(c.bytes, std::byte{0});
  Gathered found;
  std::vector<bool> seen(program_->several(c.tensor) ? c.bytes / c.width : 0);
  ForEachRun(chunk, Access::kRead, [&](uint64_t at, MutableBytes live) {
    std::byte* mine = gathered.data() + at;
    if (!seen.empty()) {
      const auto first = seen.begin() + static_cast<ptrdiff_t>(at / c.width);
      const auto last = first + static_cast<ptrdiff_t>(live.size() / c.width);
      // Of a tensor that stands in several places the first one speaks for it, and the others
      // must agree. Runs of two boxes may overlap in part, so they are taken apart.
      if (std::find(first, last, true) != last) {
        for (size_t e = 0; e < live.size() / c.width; ++e) {
          const size_t byte = e * c.width;
          if (first[static_cast<ptrdiff_t>(e)]) {
            found.differs |= std::memcmp(mine + byte, live.data() + byte, c.width) != 0;
          } else {
            std::memcpy(mine + byte, live.data() + byte, c.width);
            found.bytes += c.width;
          }
        }
        std::fill(first, last, true);
        return;
      }
      std::fill(first, last, true);
    }
    std::memcpy(mine, live.data(), live.size());
    found.bytes += live.size();
  });
  if (found.bytes == 0) return found;
  found.digest = backend_.digest(key_, gathered);
  if (found.bytes == c.bytes) return found;
  std::fill(gathered.begin(), gathered.end(), std::byte{0});
  ForEachRun(chunk, Access::kNowhere, [&](uint64_t at, MutableBytes live) {
    std::fill_n(gathered.begin() + static_cast<ptrdiff_t>(at), live.size(), std::byte{1});
  });
  found.places = backend_.digest(key_, gathered);
  return found;
}

StatusOr<Comparison> EngineWeights::Check(uint32_t first, uint32_t count) {
  if (held_.empty()) return absl::FailedPreconditionError("what the memory holds is not known");
  if (first > chunks_.size() || count > chunks_.size() - first) {
    return Errorf(StatusCode::kInvalidArgument, "{} chunks from {} on, of {}", count, first,
                  chunks_.size());
  }
  std::vector<Gathered> gathered(count);
  ForEachIndex(count, [&](size_t i) { gathered[i] = Gather(first + static_cast<uint32_t>(i)); });
  DW_RETURN_IF_ERROR(DeviceStatus());
  Comparison found{.identity = held_, .bytes = 0, .different = {}, .shares = {}};
  std::set<uint32_t> tensors;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t chunk = first + i;
    const Gathered& g = gathered[i];
    const Chunk& c = chunks_[chunk];
    found.bytes += g.bytes;
    const bool whole = g.bytes == c.bytes;
    if (g.differs || (whole && g.bytes > 0 && g.digest != digests_[chunk])) {
      drifted_.insert(chunk);
      tensors.insert(c.tensor);
    }
    if (g.bytes > 0 && !whole) found.shares.push_back({chunk, g.bytes, g.digest, g.places});
  }
  for (const uint32_t t : tensors) found.different.push_back(layout_.tensor(t).name);
  return found;
}

StatusOr<Comparison> EngineWeights::Judge(std::span<const Share> of_all_ranks) {
  if (held_.empty()) return absl::FailedPreconditionError("what the memory holds is not known");
  std::map<uint32_t, Share> sums;
  for (const Share& share : of_all_ranks) {
    if (share.chunk >= chunks_.size()) {
      return Errorf(StatusCode::kInvalidArgument, "a share of chunk {} of {}", share.chunk,
                    chunks_.size());
    }
    Share& sum = sums[share.chunk];
    sum.bytes += share.bytes;
    sum.digest += share.digest;
    sum.places += share.places;
  }
  Comparison found{.identity = held_, .bytes = 0, .different = {}, .shares = {}};
  std::set<uint32_t> tensors;
  std::map<uint64_t, uint64_t> all_ones;  // by bytes: most chunks have the same number
  for (const auto& [chunk, sum] : sums) {
    const Chunk& c = chunks_[chunk];
    const uint64_t times = sum.bytes / c.bytes;
    auto ones = all_ones.find(c.bytes);
    if (ones == all_ones.end()) {
      const std::vector<std::byte> each(c.bytes, std::byte{1});
      ones = all_ones.emplace(c.bytes, backend_.digest(key_, each)).first;
    }
    if (sum.bytes != times * c.bytes || sum.places != times * ones->second) continue;
    found.bytes += c.bytes;
    if (sum.digest == times * digests_[chunk]) continue;
    drifted_.insert(chunk);
    tensors.insert(c.tensor);
  }
  for (const uint32_t t : tensors) found.different.push_back(layout_.tensor(t).name);
  return found;
}

}  // namespace deltawire::engine
