#include "tests/simulation/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/base/checksum.h"
#include "common/layout/root.h"
#include "kernels/kernels.h"

namespace deltawire::simulation {

Shape::Shape(Layout of)
    : layout(std::move(of)), chunks(*ChunkTable::Create(layout)), key(layout.fingerprint().lo) {}

uint64_t Shape::Root(Bytes content) const {
  uint64_t root = 0;
  for (uint32_t c = 0; c < chunks.size(); ++c) {
    const Bytes chunk = content.subspan(chunks[c].offset, chunks[c].bytes);
    root += RootTerm(c, kernels::Best().digest(key, chunk));
  }
  return root;
}

Ledger::Ledger(Layout layout) { Change(std::move(layout)); }

void Ledger::Change(Layout layout) {
  shape_ = std::make_shared<const Shape>(std::move(layout));
  ++layouts_;
}

void Ledger::Offer(uint64_t version, const Content& content) {
  Entry& entry = entries_[Xxh3(content)];
  entry.content = content;
  entry.versions.push_back(version);
  entry.shape = shape_;
  roots_[shape_->Root(content)].insert(version);
}

const std::vector<uint64_t>* Ledger::Find(Bytes content) const {
  const auto it = entries_.find(Xxh3(content));
  return it == entries_.end() ? nullptr : &it->second.versions;
}

bool Ledger::FindBut(Bytes content, uint64_t offset) const {
  // A delta that is applied to a flipped bit may carry it on within its element.
  const uint64_t first = std::min<uint64_t>(offset / 8 * 8, content.size());
  const uint64_t last = std::min<uint64_t>(first + 8, content.size());
  return std::ranges::any_of(entries_, [&](const auto& entry) {
    const Bytes offered = entry.second.content;
    return offered.size() == content.size() &&
           std::ranges::equal(offered.first(first), content.first(first)) &&
           std::ranges::equal(offered.subspan(last), content.subspan(last));
  });
}

bool Ledger::HasRoot(Bytes content, uint64_t root) const {
  const auto it = entries_.find(Xxh3(content));
  return it != entries_.end() && it->second.shape->Root(content) == root;
}

std::string Ledger::Explain(Bytes content) const {
  std::string text;
  std::set<std::shared_ptr<const Shape>> shapes;
  for (const auto& [hash, entry] : entries_) {
    if (entry.content.size() == content.size()) shapes.insert(entry.shape);
  }
  if (shapes.empty()) return fmt::format("  {} bytes, as no version has\n", content.size());
  for (const auto& shape : shapes) {
    for (uint32_t c = 0; c < shape->chunks.size(); ++c) {
      const Chunk& chunk = shape->chunks[c];
      const Bytes mine = content.subspan(chunk.offset, chunk.bytes);
      std::string of;
      for (const auto& [hash, entry] : entries_) {
        if (entry.shape != shape) continue;
        if (!std::ranges::equal(mine, Bytes(entry.content).subspan(chunk.offset, mine.size()))) {
          continue;
        }
        of += fmt::format(" {}", fmt::join(entry.versions, "/"));
      }
      text += fmt::format("  chunk {} (tensor {}): {}\n", c, chunk.tensor,
                          of.empty() ? "of no version" : "as in version" + of);
    }
  }
  return text;
}

Bytes DataOf(Bytes file) {
  uint64_t header = 0;
  if (file.size() < sizeof header) return {};
  std::memcpy(&header, file.data(), sizeof header);
  const uint64_t before = sizeof header + header;
  return before > file.size() ? Bytes() : file.subspan(before);
}

Layout DrawLayout(Random& random) {
  static constexpr DType kTypes[] = {DType::kBF16, DType::kBF16,   DType::kF32,
                                     DType::kF16,  DType::kF8E4M3, DType::kI64};
  std::vector<TensorMeta> tensors;
  const uint64_t n = random.Between(3, 9);
  for (uint64_t i = 0; i < n; ++i) {
    const DType type = kTypes[random.Below(std::size(kTypes))];
    const uint64_t most = random.Chance(0.3) ? 3 * kChunkBytes : kChunkBytes;
    uint64_t elements = random.Between(1, most / DTypeBytes(type));
    if (random.Chance(0.1)) elements = 1;
    tensors.push_back({fmt::format("t{}", i), type, {elements}});
  }
  return *Layout::Create(std::move(tensors));
}

Content DrawContent(const Layout& layout, Random& random) {
  Content content(layout.total_bytes());
  for (std::byte& b : content) b = static_cast<std::byte>(random.Next());
  return content;
}

Content Train(const Layout& layout, const Content& before, Random& random) {
  Content content = before;
  // Some versions change so much that their chunks are cheaper to send whole.
  const double share = random.Chance(0.2) ? 0.7 : 0.02;
  for (size_t t = 0; t < layout.size(); ++t) {
    if (random.Chance(0.3)) continue;
    const unsigned width = DTypeBytes(layout.tensor(t).dtype);
    const uint64_t elements = layout.bytes(t) / width;
    const uint64_t changes = 1 + static_cast<uint64_t>(share * static_cast<double>(elements));
    for (uint64_t i = 0; i < changes; ++i) {
      const uint64_t at = layout.offset(t) + random.Below(elements) * width;
      content[at] = static_cast<std::byte>(std::to_integer<unsigned>(content[at]) +
                                           (random.Chance(0.5) ? 1u : 255u));
      if (share > 0.1) content[at + width - 1] = static_cast<std::byte>(random.Next());
    }
  }
  // No two versions may have the same bytes, since checks could not tell them apart.
  for (size_t i = 0; i < 8; ++i) {
    content[random.Below(content.size())] = static_cast<std::byte>(random.Next());
  }
  return content;
}

}  // namespace deltawire::simulation
