// The ground floor: diff+encode, decode+apply, tight coding, fold, negate, digest, strided place:
// pure functions over byte ranges, behind a table of function pointers (one per backend).
// They own nothing, allocate nothing, are thread-safe and safe for unaligned data.
// Payload bytes are specified in docs/delta_format.md; the scalar backend is the oracle.
// Errors are a DecodeStatus; on anything but kOk of Validate no other function may be called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/digest_key.h"
#include "kernels/format.h"

namespace deltawire::kernels {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

enum class DecodeStatus : uint8_t { kOk, kTruncated, kMalformed, kTooLarge };
std::string_view ToString(DecodeStatus s);

/// What one diff found and wrote.
struct EncodeResult {
  uint64_t changed = 0;        ///< elements that differ
  uint64_t digest_after = 0;   ///< digest of the new bytes
  size_t bytes = 0;            ///< payload bytes written; 0 when nothing changed
  uint64_t digest_before = 0;  ///< as given; of diff_encode_checked that of the bytes as read
};

/// The deltas of a chunk that led to its old bytes, for `tight`.
struct History {
  /// Valid fast payloads, newest first; an empty one where the chunk did not change.
  std::span<const Bytes> deltas;
  /// Their check, as the format defines it; unused when there are none.
  uint32_t context = 0;
};

/// What the first bytes of a tight payload ask for.
struct TightHead {
  ClassFunction function = ClassFunction::kNone;
  unsigned depth = 0;    ///< deltas of history that it needs
  uint32_t context = 0;  ///< their check; 0 when depth is 0
};
/// Reads what can be read before any history is looked up; the rest is not checked.
DecodeStatus ReadTightHead(Bytes payload, TightHead* head);

/// Upper bound of a payload for `raw_bytes` of data in elements of `width` bytes.
size_t MaxEncodedBytes(size_t raw_bytes, unsigned width);

/// One strided copy: `count` runs nested `dims` deep (outermost first), each of `run_bytes`.
/// Offsets and strides in bytes; strides may be negative. The dimensions' order is no promise: runs
/// are copied in the order that suits the kernel, so no destination byte may be written twice.
struct StridedCopy {
  static constexpr size_t kMaxDims = 6;
  int64_t src_offset = 0;
  int64_t dst_offset = 0;
  size_t run_bytes = 0;
  size_t dims = 0;
  uint64_t counts[kMaxDims] = {};
  int64_t src_strides[kMaxDims] = {};
  int64_t dst_strides[kMaxDims] = {};
};

/// What a conversion takes an element for. Little-endian IEEE numbers; a bf16 is the upper half of
/// an fp32. kBytes is no number: bytes that only move.
enum class Element : uint8_t { kBytes = 0, kBF16 = 1, kF16 = 2, kF32 = 3 };

/// Bytes of one element.
constexpr size_t WidthOf(Element e) {
  return e == Element::kF32 ? 4 : e == Element::kBytes ? 1 : 2;
}

/// What happens to each element on its way. Widening is exact; narrowing rounds to nearest even,
/// beyond the largest number to infinity, and knows subnormal numbers. A NaN keeps its sign and the
/// leading bits of its payload and turns quiet (bf16 -> fp32 without `add` only appends zeros).
struct Convert {
  Element from = Element::kBytes;
  Element to = Element::kBytes;
  /// -1, 0 or 1: added as one fp32 addition, whose result is then rounded to `to`.
  int8_t add = 0;

  /// True when elements move as they are, bit by bit.
  constexpr bool moves_only() const { return from == to && add == 0; }
  friend constexpr bool operator==(const Convert&, const Convert&) = default;
};

/// What a payload changes in one block of a chunk.
struct BlockChanges {
  size_t first = 0;                       ///< element of the chunk with which the block begins
  std::span<const uint16_t> at;           ///< elements, counted from `first`, rising
  std::span<const uint64_t> differences;  ///< mod 2^(8 width), zero-extended; none is zero
};
using ChangeVisitor = void (*)(void* context, const BlockChanges& changes);

/// Every `width` is 1, 2, 4 or 8 and divides the data's size; sizes are <= kMaxChunkBytes.
/// Payloads are of the codec fast where nothing else is said.
struct Backend {
  const char* name;

  /// Digest of `data` (docs/delta_format.md, "Digest").
  uint64_t (*digest)(const DigestKey& key, Bytes data);

  /// What the bytes `data` that stand at `offset` of a chunk add to its digest: the parts of a
  /// chunk add up to digest(), in any order, modulo 2^64. REQUIRES: offset is a multiple of 4, and
  /// so is data.size() where the chunk goes on behind it; offset + data.size() <= kMaxChunkBytes.
  uint64_t (*digest_range)(const DigestKey& key, Bytes data, size_t offset);

  /// Encodes new - old (mod 2^(8 width)) into `out` and brings the digest forward.
  /// REQUIRES: both of the same size; out.size() >= MaxEncodedBytes(size, width);
  /// digest_before = digest(key, old_data).
  EncodeResult (*diff_encode)(const DigestKey& key, Bytes old_data, Bytes new_data, unsigned width,
                              uint64_t digest_before, MutableBytes out);

  /// As diff_encode, but nobody has to know the old bytes' digest: it is computed in the same pass
  /// and returned, so that the caller sees whether they are still those that he believes them to
  /// be. digest_after is that of the new bytes in any case.
  EncodeResult (*diff_encode_checked)(const DigestKey& key, Bytes old_data, Bytes new_data,
                                      unsigned width, MutableBytes out);

  /// Adds a payload's differences to `data` in place and brings the digest forward.
  /// Never reads or writes out of bounds, whatever the payload; a malformed one may have been
  /// applied in part when the error is found, so callers validate first.
  DecodeStatus (*decode_apply)(const DigestKey& key, Bytes payload, MutableBytes data,
                               unsigned width, uint64_t digest_before, uint64_t* digest_after);

  /// Full structural check of a payload for `raw_bytes` of data; `changed` may be null.
  DecodeStatus (*validate)(Bytes payload, size_t raw_bytes, unsigned width, uint64_t* changed);

  /// Hands every change of a payload to `visit`, blocks without any left out. For elements that do
  /// not lie side by side in memory. `scratch`: caller's, aligned to 8 bytes, at least
  /// kChangesScratchBytes. What was visited before an error is the caller's to undo, so callers
  /// validate first.
  DecodeStatus (*changes)(Bytes payload, size_t raw_bytes, unsigned width, MutableBytes scratch,
                          ChangeVisitor visit, void* context);

  /// Sum of `payloads` (each for the same chunk, in any order: addition commutes) into `out`.
  /// `scratch` is caller's memory of at least FoldScratchBytes(width).
  /// *bytes = payload size; 0 when the sum is no change.
  DecodeStatus (*fold)(std::span<const Bytes> payloads, size_t raw_bytes, unsigned width,
                       MutableBytes scratch, MutableBytes out, size_t* bytes);

  /// The payload that undoes `payload`; same bounds as fold.
  DecodeStatus (*negate)(Bytes payload, size_t raw_bytes, unsigned width, MutableBytes scratch,
                         MutableBytes out, size_t* bytes);

  /// Codes `payload`'s changes tightly, given the bytes that they apply to and their history.
  /// *bytes = payload size; 0 when it would be no smaller than `payload`.
  /// `out` must not overlap `payload`.
  /// REQUIRES: a valid payload; function fits width; scratch.size() >= kTightScratchBytes;
  /// out.size() >= payload.size(); at most kMaxHistory deltas, each valid for the chunk.
  DecodeStatus (*tight_encode)(Bytes old_data, Bytes payload, unsigned width,
                               ClassFunction function, const History& history, MutableBytes scratch,
                               MutableBytes out, size_t* bytes);

  /// The fast payload of a tight one, which is fully checked on the way (except its choice of
  /// parameters). `history` holds at least the deltas that the payload's head asks for; its check
  /// is the caller's. REQUIRES: scratch as above; out.size() >= MaxEncodedBytes.
  DecodeStatus (*tight_decode)(Bytes old_data, Bytes tight, unsigned width, const History& history,
                               MutableBytes scratch, MutableBytes out, size_t* bytes);

  /// Runs one strided copy. REQUIRES: every run lies inside its span; src and dst do not overlap.
  void (*place)(const StridedCopy& copy, Bytes src, MutableBytes dst);

  /// Runs one strided copy and converts each element. `copy.run_bytes` counts destination bytes: a
  /// run is run_bytes / WidthOf(to) elements, side by side in the source as in the destination;
  /// offsets and strides are bytes of their own side. With convert.moves_only() the same as place.
  /// REQUIRES: as place; run_bytes is a multiple of WidthOf(to); kBytes is never one side alone
  /// and has no `add`.
  void (*place_convert)(const StridedCopy& copy, const Convert& convert, Bytes src,
                        MutableBytes dst);
};

/// Scratch for changes, of any width.
inline constexpr size_t kChangesScratchBytes = kBlockElements * (sizeof(uint64_t) + 2);

/// Scratch for fold and negate: one block of elements.
size_t FoldScratchBytes(unsigned width);

/// Scratch for tight_encode and tight_decode, of any width.
inline constexpr size_t kTightScratchBytes = size_t{3} << 19;

/// The plain backend: always there, the oracle of every test.
const Backend& Scalar();
/// The fastest that this machine runs (Highway picks the instruction set at run time).
const Backend& Best();
/// Every backend that this machine can run, the scalar one first.
std::span<const Backend* const> All();

}  // namespace deltawire::kernels
