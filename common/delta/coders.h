// The coders of the codecs other than fast, one row of a table each: a fast payload becomes another
// codec's for the way, and turns back on arrival (docs/delta_format.md, "Codecs").
// Constant. Coders are pure functions, of any thread, which keep megabytes of memory a thread.
// Cost: some passes over the chunk. Errors: DecodeStatus; an encoder gets a valid fast payload.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "kernels/kernels.h"

namespace deltawire {

/// A value for each codec.
template <typename T>
class PerCodec {
 public:
  T& operator[](kernels::Codec codec) { return values_[kernels::FormOf(codec)]; }
  const T& operator[](kernels::Codec codec) const { return values_[kernels::FormOf(codec)]; }

 private:
  std::array<T, kernels::kForms> values_{};
};

/// What a coder may use besides the payload.
struct CodedChunk {
  const kernels::Backend& backend;
  size_t bytes = 0;
  unsigned width = 0;
  kernels::ClassFunction function = kernels::ClassFunction::kNone;  ///< for encoders
  kernels::Bytes old_data;                                          ///< where needs_old
  kernels::History history;                                         ///< where read_need
};

/// The history that a payload was coded with; see kernels::History.
struct HistoryNeed {
  unsigned depth = 0;
  uint32_t context = 0;
};

/// Work per second of one thread, as Coder::work counts it.
struct ThreadSpeeds {
  double encode = 0, decode = 0;
  double history_encode = 0, history_decode = 0;  ///< with past deltas; where read_need
};

struct Coder {
  kernels::Codec codec;
  /// The payload, in this thread's memory until the next call; empty when it would not be smaller
  /// than `limit`, which is limit().
  kernels::Bytes (*encode)(const CodedChunk& chunk, kernels::Bytes fast, size_t limit);
  /// The fast payload, wholly checked. REQUIRES: out.size() >= MaxEncodedBytes; *bytes = its size.
  kernels::DecodeStatus (*decode)(const CodedChunk& chunk, kernels::Bytes payload,
                                  kernels::MutableBytes out, size_t* bytes);
  /// Payloads are coded given the bytes that they apply to: where those are wrong, so may be the
  /// result, and a payload that does not decode says nothing against its sender.
  bool needs_old = false;
  /// What a payload asks for; null where payloads never look back to past deltas.
  kernels::DecodeStatus (*read_need)(kernels::Bytes payload, HistoryNeed* need) = nullptr;
  /// A payload is of use while it is smaller than the chunk, even if it is larger than fast's.
  bool may_outgrow_fast = false;

  // For the choice by speeds (codec_choice.h), and for what is predicted of a fleet (common/plan).
  /// The work on one chunk, in the unit in which the codec's speed is measured.
  double (*work)(size_t chunk_bytes, size_t fast_bytes);
  /// Size over fast's, until it is measured: what a training step's deltas showed on average.
  double usual_ratio = 1;
  /// For who cannot measure, as where a fleet is only predicted: docs/benchmarks.md, machine A.
  ThreadSpeeds usual_speeds{};
  /// Not tried where the fast payload takes less than this share of the chunk.
  double from_share = 0;

  size_t limit(size_t chunk_bytes, size_t fast_bytes) const {
    return may_outgrow_fast ? chunk_bytes : fast_bytes;
  }
};

/// In the order of the codecs' numbers.
std::span<const Coder> Coders();
/// Null for fast.
const Coder* CoderOf(kernels::Codec codec);
/// The coder of a payload, by its first bytes; null where they are those of a fast payload or of no
/// codec.
const Coder* CoderOf(kernels::Bytes payload);

}  // namespace deltawire
