// The table of coders, one row for each codec but fast. A coder turns a fast payload into its
// codec's for the transfer, and back on arrival (docs/delta_format.md, "Codecs"). Thread-safe; each
// thread keeps megabytes of memory. An encoder needs a valid fast payload.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "kernels/kernels.h"

namespace deltawire {

template <typename T>
class PerCodec {
 public:
  T& operator[](kernels::Codec codec) { return values_[kernels::FormOf(codec)]; }
  const T& operator[](kernels::Codec codec) const { return values_[kernels::FormOf(codec)]; }

 private:
  std::array<T, kernels::kForms> values_{};
};

struct CodedChunk {
  const kernels::Backend& backend;
  size_t bytes = 0;
  unsigned width = 0;
  kernels::ClassFunction function = kernels::ClassFunction::kNone;  ///< for encoders
  kernels::Bytes old_data;                                          ///< if needs_old
  kernels::History history;                                         ///< if read_need is set
};

/// The history that a payload was coded with; see kernels::History.
struct HistoryNeed {
  unsigned depth = 0;
  uint32_t context = 0;
};

/// Work per second of one thread, as Coder::work counts it.
struct ThreadSpeeds {
  double encode = 0, decode = 0;
  double history_encode = 0, history_decode = 0;  ///< with past deltas, if read_need is set
};

struct Coder {
  kernels::Codec codec;
  /// Returns the payload, in this thread's memory until the next call; empty when it would not be
  /// smaller than `limit`, which is limit().
  kernels::Bytes (*encode)(const CodedChunk& chunk, kernels::Bytes fast, size_t limit);
  /// Writes and checks the fast payload, and sets *bytes to its size. REQUIRES: out.size() >=
  /// MaxEncodedBytes.
  kernels::DecodeStatus (*decode)(const CodedChunk& chunk, kernels::Bytes payload,
                                  kernels::MutableBytes out, size_t* bytes);
  /// Payloads depend on the bytes that they apply to. If those are corrupt, the result may be too,
  /// so a payload that does not decode does not prove its sender wrong.
  bool needs_old = false;
  /// Reads the history that a payload needs. Null if the codec never uses past deltas.
  kernels::DecodeStatus (*read_need)(kernels::Bytes payload, HistoryNeed* need) = nullptr;
  /// A payload is useful while it is smaller than the chunk, even if it is larger than fast's.
  bool may_outgrow_fast = false;

  // For the choice by speeds (codec_choice.h) and the predictions for a fleet (common/plan).
  /// The work on one chunk, in the unit in which the codec's speed is measured.
  double (*work)(size_t chunk_bytes, size_t fast_bytes);
  /// Size over fast's until it is measured: the average over a training step's deltas.
  double usual_ratio = 1;
  /// For predictions, which cannot measure: docs/benchmarks.md, machine A.
  ThreadSpeeds usual_speeds{};
  /// The codec is tried if the fast payload takes at least this share of the chunk.
  double from_share = 0;

  size_t limit(size_t chunk_bytes, size_t fast_bytes) const {
    return may_outgrow_fast ? chunk_bytes : fast_bytes;
  }
};

/// Returns the coders in the order of the codecs' numbers.
std::span<const Coder> Coders();
/// Returns null for fast.
const Coder* CoderOf(kernels::Codec codec);
/// Returns a payload's coder, by its first bytes; null for a fast payload or an unknown codec.
const Coder* CoderOf(kernels::Bytes payload);

}  // namespace deltawire
