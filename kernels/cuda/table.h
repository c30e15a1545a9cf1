// The header and packed columns of a fast payload (docs/delta_format.md, "fast"), written from the
// blocks' rows on device or CPU. Only the CPU reads them (kernels/payload.h).
#pragma once

#include "kernels/cuda/block_encode.h"

namespace deltawire::kernels::gpu {

DW_HD uint32_t ColumnValue(const BlockOut& row, uint32_t column) {
  return column == 0 ? row.changed : column == 1 ? row.large : row.bytes;
}

/// The sums over all rows that a table's plan needs.
struct RowSummary {
  uint32_t least[kFastColumns] = {~0u, ~0u, ~0u};
  uint32_t most[kFastColumns] = {};
  uint32_t changed = 0;
  uint32_t stream_bytes = 0;

  DW_HD void Add(const BlockOut& row) {
    for (uint32_t c = 0; c < kFastColumns; ++c) {
      const uint32_t v = ColumnValue(row, c);
      least[c] = Least(least[c], v);
      most[c] = v > most[c] ? v : most[c];
    }
    changed += row.changed;
    stream_bytes += row.bytes;
  }
};

struct TablePlan {
  uint32_t least[kFastColumns] = {};
  uint32_t width[kFastColumns] = {};  ///< in bits
  uint32_t row_bits = 0;
  uint32_t bytes = 0;          ///< of header and columns; also the first stream's offset
  uint32_t payload_bytes = 0;  ///< 0 when nothing changed
  uint32_t changed = 0;
};

/// REQUIRES: blocks >= 1, and `sum` has all their rows.
DW_HD TablePlan PlanTable(const RowSummary& sum, uint32_t blocks) {
  TablePlan plan;
  for (uint32_t c = 0; c < kFastColumns; ++c) {
    plan.least[c] = sum.least[c];
    plan.width[c] = BitLength(sum.most[c] - sum.least[c]);
    plan.row_bits += plan.width[c];
  }
  plan.bytes = kTableOffset + (blocks * plan.row_bits + 7) / 8;
  plan.changed = sum.changed;
  plan.payload_bytes = sum.changed == 0 ? 0 : plan.bytes + sum.stream_bytes;
  return plan;
}

/// Returns byte `i` of header and columns. REQUIRES: i < plan.bytes.
DW_HD uint8_t TableByte(const TablePlan& plan, const BlockOut* rows, uint32_t elements,
                        uint32_t element_width, uint32_t i) {
  if (i <= kHeadBytes) {  // the head, and the reserved byte after it
    const uint32_t head = kFormat | static_cast<uint32_t>(Codec::kFast) << 8 | element_width << 16;
    return static_cast<uint8_t>(head >> 8 * i);
  }
  if (i < kHeaderBytes) return static_cast<uint8_t>(elements >> 8 * (i % 4));
  if (i < kTableOffset) {
    const uint32_t c = (i - kHeaderBytes) / kColumnBytes;
    return static_cast<uint8_t>(ColumnWord(plan.least[c], plan.width[c]) >> 8 * (i % 4));
  }
  const uint32_t blocks = (elements + kBlock - 1) / kBlock;
  uint32_t byte = 0;
  for (uint32_t b = 0; b < 8; ++b) {
    const uint32_t at = (i - kTableOffset) * 8 + b;
    const uint32_t row = at / plan.row_bits;
    if (row >= blocks) break;
    uint32_t bit = at - row * plan.row_bits, c = 0;
    for (; bit >= plan.width[c]; ++c) bit -= plan.width[c];
    byte |= ((ColumnValue(rows[row], c) - plan.least[c]) >> bit & 1) << b;
  }
  return static_cast<uint8_t>(byte);
}

}  // namespace deltawire::kernels::gpu
