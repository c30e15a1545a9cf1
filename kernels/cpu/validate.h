// The full structural check of a fast payload; each backend passes its reader of sparse blocks.
// Input is untrusted. Costs as much as the reader, and 1 ns per large change.
#pragma once

#include "kernels/payload.h"

namespace deltawire::kernels {

/// Counts the sizes' bit lengths, which determine the order of their code.
template <typename T>
struct LengthSink {
  void Prefetch(uint32_t) const {}
  void Change(uint32_t, T d) {
    const T magnitude = Magnitude(d);
    if (magnitude > 1) ++lengths[Bits(static_cast<T>(magnitude - 2))];
  }
  uint32_t lengths[kBitLengths] = {};
};

/// Returns the row that the block's sparse form would have, from its dense differences.
template <typename T>
inline BlockRow MeasureSparse(const uint8_t* diffs, size_t elements) {
  BlockRow row;
  uint32_t lengths[kBitLengths] = {};
  for (size_t i = 0; i < elements; ++i) {
    const T magnitude = Magnitude(LoadElement<T>(diffs, i));
    row.changed += magnitude != 0;
    if (magnitude < 2) continue;
    ++row.large;
    ++lengths[Bits(static_cast<T>(magnitude - 2))];
  }
  if (row.changed == 0) return row;
  const unsigned k = RiceParameter(row.changed, elements);
  const unsigned kl = row.large > 0 ? RiceParameter(row.large, row.changed) : 0;
  const unsigned order = row.large > 0 ? SizeOrder(lengths, row.large) : 0;
  uint64_t bits = uint64_t{row.changed} * (k + 2);
  if (row.large > 0) bits += uint64_t{row.large} * (kl + 1) + kOrderBits;
  size_t next = 0, next_large = 0, change = 0;
  for (size_t i = 0; i < elements; ++i) {
    const T magnitude = Magnitude(LoadElement<T>(diffs, i));
    if (magnitude == 0) continue;
    bits += (i - next) >> k;
    next = i + 1;
    if (magnitude >= 2) {
      bits += (change - next_large) >> kl;
      next_large = change + 1;
      const uint64_t u = (uint64_t{static_cast<T>(magnitude - 2)} >> order) + 1;
      bits += 2 * Bits(u) - 1 + order;
    }
    ++change;
  }
  row.bytes = static_cast<uint32_t>(std::min<uint64_t>((bits + 7) / 8, kMaxChunkBytes));
  return row;
}

/// Checks every block's stream. `walk(row, stream, elements, sink, &order)` passes a sparse block's
/// changes to the sink and sets the order of its sizes' code; it returns false when the stream is
/// malformed.
template <typename T, typename Walk>
DecodeStatus ValidateStreams(const PayloadView& view, Walk walk) {
  BlockCursor cursor(view);
  for (size_t b = 0; b < view.blocks(); ++b, cursor.Next()) {
    const BlockRow& row = cursor.row();
    if (row.changed == 0) continue;
    const size_t elements = view.BlockElements(b);
    if (row.IsRaw(elements, sizeof(T))) {
      const BlockRow sparse = MeasureSparse<T>(cursor.stream(), elements);
      if (sparse.changed != row.changed || sparse.bytes < row.bytes) {
        return DecodeStatus::kMalformed;
      }
      continue;
    }
    LengthSink<T> sink;
    unsigned order = 0;
    if (!walk(row, cursor.stream(), elements, sink, &order) ||
        (row.large > 0 && order != SizeOrder(sink.lengths, row.large))) {
      return DecodeStatus::kMalformed;
    }
  }
  return DecodeStatus::kOk;
}

}  // namespace deltawire::kernels
