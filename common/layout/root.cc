#include "common/layout/root.h"

#include <array>

#include "common/base/bytes.h"
#include "common/base/checksum.h"

namespace deltawire {

uint64_t RootTerm(uint32_t chunk, uint64_t digest) {
  std::array<std::byte, 2 * sizeof(uint64_t)> record;
  StoreLe<uint64_t>(&record[0], chunk);
  StoreLe<uint64_t>(&record[sizeof(uint64_t)], digest);
  return Xxh3(record);
}

uint64_t RootOf(std::span<const uint64_t> digests, const Coverage& part) {
  uint64_t root = 0;
  for (const ChunkRange& range : part.ranges()) {
    for (uint32_t c = range.first; c < range.last; ++c) root += RootTerm(c, digests[c]);
  }
  return root;
}

}  // namespace deltawire
