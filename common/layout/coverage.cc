#include "common/layout/coverage.h"

#include <algorithm>

#include "common/base/checksum.h"

namespace deltawire {

Coverage Coverage::All(uint32_t chunks) {
  Coverage all;
  all.chunks_ = all.size_ = chunks;
  if (chunks > 0) all.ranges_.push_back({0, chunks});
  return all;
}

StatusOr<Coverage> Coverage::Create(std::span<const ChunkRange> ranges, uint32_t chunks) {
  if (ranges.empty()) return All(chunks);
  Coverage coverage;
  coverage.chunks_ = chunks;
  for (const ChunkRange& r : ranges) {
    const uint32_t end = coverage.ranges_.empty() ? 0 : coverage.ranges_.back().last;
    if (r.first >= r.last || r.last > chunks) {
      return Errorf(
          StatusCode::kInvalidArgument,
          "chunks [{}, {}) are not a range of the model's {} chunks; give first < last <= {}",
          r.first, r.last, chunks, chunks);
    }
    if (r.first < end) {
      return Errorf(StatusCode::kInvalidArgument,
                    "chunks [{}, {}) come after a range that ends at {}: give the ranges in order, "
                    "each chunk once",
                    r.first, r.last, end);
    }
    coverage.size_ += r.last - r.first;
    if (!coverage.ranges_.empty() && r.first == end) {
      coverage.ranges_.back().last = r.last;
    } else {
      coverage.ranges_.push_back(r);
    }
  }
  return coverage;
}

bool Coverage::contains(uint32_t chunk) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), chunk,
                                      [](uint32_t c, const ChunkRange& r) { return c < r.first; });
  return after != ranges_.begin() && chunk < std::prev(after)->last;
}

bool Coverage::Meets(ChunkRange range) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), range.first,
                                      [](uint32_t c, const ChunkRange& r) { return c < r.last; });
  return range.first < range.last && after != ranges_.end() && after->first < range.last;
}

uint64_t Coverage::bytes(const ChunkTable& table) const {
  uint64_t sum = 0;
  for (const ChunkRange& r : ranges_) {
    for (uint32_t c = r.first; c < r.last; ++c) sum += table[c].bytes;
  }
  return sum;
}

std::vector<ByteRange> Coverage::ByteRanges(const ChunkTable& table) const {
  std::vector<ByteRange> bytes;
  for (const ChunkRange& r : ranges_) {
    const Chunk& last = table[r.last - 1];
    bytes.push_back({table[r.first].offset, last.offset + last.bytes});
  }
  return bytes;
}

uint64_t Coverage::hash() const {
  std::vector<std::byte> words(4 + 8 * ranges_.size());
  StoreLe(&words[0], chunks_);
  for (size_t i = 0; i < ranges_.size(); ++i) {
    StoreLe(&words[4 + 8 * i], ranges_[i].first);
    StoreLe(&words[8 + 8 * i], ranges_[i].last);
  }
  return Xxh3(words);
}

std::string ToString(const std::vector<ChunkRange>& ranges) {
  constexpr size_t kNamed = 8;
  std::string text;
  for (size_t i = 0; i < std::min(ranges.size(), kNamed); ++i) {
    text += fmt::format("{}[{}, {})", i == 0 ? "" : ", ", ranges[i].first, ranges[i].last);
  }
  if (ranges.size() > kNamed) text += fmt::format(" and {} more", ranges.size() - kNamed);
  return text;
}

Status CheckPartition(const std::vector<NamedCoverage>& parts) {
  struct Piece {
    ChunkRange range;
    const std::string* name;
  };
  std::vector<Piece> pieces;
  uint32_t chunks = 0;
  for (const NamedCoverage& part : parts) {
    chunks = part.coverage.chunks();
    for (const ChunkRange& r : part.coverage.ranges()) pieces.push_back({r, &part.name});
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return a.range.first != b.range.first ? a.range.first < b.range.first
                                          : a.range.last < b.range.last;
  });
  std::vector<ChunkRange> missing;
  std::string doubled;
  size_t doubles = 0;
  constexpr size_t kNamed = 4;
  Piece reach{{0, 0}, nullptr};  // the piece with the greatest end so far
  for (const Piece& p : pieces) {
    if (p.range.first > reach.range.last) missing.push_back({reach.range.last, p.range.first});
    if (p.range.first < reach.range.last && doubles++ < kNamed) {
      doubled += fmt::format("{}[{}, {}) of {} and {}", doubled.empty() ? "" : ", ", p.range.first,
                             std::min(p.range.last, reach.range.last), *reach.name, *p.name);
    }
    if (p.range.last > reach.range.last) reach = p;
  }
  if (reach.range.last < chunks) missing.push_back({reach.range.last, chunks});
  if (missing.empty() && doubles == 0) return absl::OkStatus();
  std::string what;
  if (!missing.empty()) what = fmt::format("no agent has chunks {}", ToString(missing));
  if (doubles > 0) {
    what += fmt::format("{}two agents have chunks {}{}", what.empty() ? "" : "; ", doubled,
                        doubles > kNamed ? fmt::format(" and {} more", doubles - kNamed) : "");
  }
  std::string names;
  for (const NamedCoverage& part : parts) names += (names.empty() ? "" : ", ") + part.name;
  return Errorf(
      StatusCode::kFailedPrecondition,
      "the agents' parts do not make up the model's {} chunks: {} (asked: {}); name every "
      "agent of the trainer once with --sender",
      chunks, what, names);
}

}  // namespace deltawire
