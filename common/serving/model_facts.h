// The facts of a served model, which never change.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "common/layout/chunks.h"
#include "common/layout/coverage.h"
#include "common/layout/layout.h"
#include "kernels/kernels.h"

namespace deltawire {

struct ModelFacts {
  /// `chunks` are those of `layout`.
  ModelFacts(std::string model, Layout of, ChunkTable table, Coverage here)
      : name(std::move(model)),
        layout(std::move(of)),
        chunks(std::move(table)),
        owned(std::move(here)),
        owned_bytes(owned.bytes(chunks)),
        key(layout.fingerprint().lo) {}

  const std::string name;
  const Layout layout;
  const ChunkTable chunks;
  /// The chunks that are published here. All others are never read, sent or counted.
  const Coverage owned;
  const uint64_t owned_bytes;
  const kernels::DigestKey key;
  const kernels::Backend& backend = kernels::Best();
  const uint64_t owned_elements = CountElements();

 private:
  uint64_t CountElements() const {
    uint64_t elements = 0;
    for (const ChunkRange& range : owned.ranges()) {
      for (uint32_t c = range.first; c < range.last; ++c) {
        elements += chunks[c].bytes / chunks[c].width;
      }
    }
    return elements;
  }
};

}  // namespace deltawire
