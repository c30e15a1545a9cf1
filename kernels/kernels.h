// The lowest layer: diff+encode, decode+apply, tight coding, fold, negate, digest, strided place.
// They are pure functions over byte ranges, in a table of function pointers per backend. They
// allocate nothing, are thread-safe and accept unaligned data. docs/delta_format.md specifies
// payloads; the scalar backend is the oracle. A payload that `validate` rejects must not be passed
// to another function.
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

struct EncodeResult {
  uint64_t changed = 0;        ///< elements that differ
  uint64_t digest_after = 0;   ///< digest of the new bytes
  size_t bytes = 0;            ///< payload bytes written; 0 when nothing changed
  uint64_t digest_before = 0;  ///< the argument; from diff_encode_checked: that of the old bytes
};

/// The past deltas that led to a chunk's old bytes, for the codec tight.
struct History {
  /// Valid fast payloads, newest first; empty for a delta that did not change the chunk.
  std::span<const Bytes> deltas;
  /// The check of these deltas, as the format defines it; unused when there are none.
  uint32_t context = 0;
};

/// A tight payload's decoding needs, from its first bytes.
struct TightHead {
  ClassFunction function = ClassFunction::kNone;
  unsigned depth = 0;    ///< number of past deltas that it needs
  uint32_t context = 0;  ///< the check of these deltas; 0 when depth is 0
};
/// Reads a tight payload's head, from which the caller looks up the history. It does not check the
/// rest of the payload.
DecodeStatus ReadTightHead(Bytes payload, TightHead* head);

/// Returns the most bytes of a fast payload for `raw_bytes` of data in elements of `width` bytes.
size_t MaxEncodedBytes(size_t raw_bytes, unsigned width);

/// One strided copy: runs of `run_bytes` in a loop nest of `dims` dimensions, outermost first, with
/// `counts[i]` steps each. Offsets and strides are in bytes; strides may be negative. Kernels copy
/// the runs in any order, so no destination byte may be written twice.
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

/// The number format of an element to convert: little-endian IEEE numbers; a bf16 is the upper half
/// of an fp32. kBytes means bytes that only move.
enum class Element : uint8_t { kBytes = 0, kBF16 = 1, kF16 = 2, kF32 = 3 };

constexpr size_t WidthOf(Element e) {
  return e == Element::kF32 ? 4 : e == Element::kBytes ? 1 : 2;
}

/// The conversion of each element of a copy. Widening is exact. Narrowing rounds to nearest, ties
/// to even; it gives subnormal numbers, and infinity beyond the largest number. A NaN keeps its
/// sign and the leading bits of its payload and becomes quiet (bf16 -> fp32 without `add` only
/// appends zeros).
struct Convert {
  Element from = Element::kBytes;
  Element to = Element::kBytes;
  /// -1, 0 or 1: added in fp32 before the result is rounded to `to`.
  int8_t add = 0;

  /// Returns true when elements move unchanged, bit by bit.
  constexpr bool moves_only() const { return from == to && add == 0; }
  friend constexpr bool operator==(const Convert&, const Convert&) = default;
};

/// A payload's changes in one block of a chunk.
struct BlockChanges {
  size_t first = 0;                       ///< the block's first element in the chunk
  std::span<const uint16_t> at;           ///< elements, counted from `first`, rising
  std::span<const uint64_t> differences;  ///< mod 2^(8 width), zero-extended; none is zero
};
using ChangeVisitor = void (*)(void* context, const BlockChanges& changes);

/// Every `width` is 1, 2, 4 or 8 and divides the data's size; sizes are <= kMaxChunkBytes. Payloads
/// are of the codec fast unless noted.
struct Backend {
  const char* name;

  /// Returns the digest of `data` (docs/delta_format.md, "Digest").
  uint64_t (*digest)(const DigestKey& key, Bytes data);

  /// Returns the part of `data`, the bytes at `offset` of a chunk, in the chunk's digest. The
  /// results for all parts of a chunk add up to digest(), in any order, modulo 2^64. REQUIRES:
  /// offset is a multiple of 4, and so is data.size() unless the chunk ends there; offset +
  /// data.size() <= kMaxChunkBytes.
  uint64_t (*digest_range)(const DigestKey& key, Bytes data, size_t offset);

  /// Encodes new - old (mod 2^(8 width)) into `out` and computes the new bytes' digest. REQUIRES:
  /// both of the same size; out.size() >= MaxEncodedBytes(size, width); digest_before = digest(key,
  /// old_data).
  EncodeResult (*diff_encode)(const DigestKey& key, Bytes old_data, Bytes new_data, unsigned width,
                              uint64_t digest_before, MutableBytes out);

  /// Does diff_encode, but computes the old bytes' digest in the same pass and returns it, so that
  /// the caller can check it. digest_after is right in any case.
  EncodeResult (*diff_encode_checked)(const DigestKey& key, Bytes old_data, Bytes new_data,
                                      unsigned width, MutableBytes out);

  /// Adds a payload's differences to `data` in place and computes the new digest. It never accesses
  /// memory out of bounds, whatever the payload. A malformed payload may have been applied in part
  /// when its error is found, so callers validate first.
  DecodeStatus (*decode_apply)(const DigestKey& key, Bytes payload, MutableBytes data,
                               unsigned width, uint64_t digest_before, uint64_t* digest_after);

  /// Checks the full structure of a payload for `raw_bytes` of data; `changed` may be null.
  DecodeStatus (*validate)(Bytes payload, size_t raw_bytes, unsigned width, uint64_t* changed);

  /// Calls `visit` for every block with changes, for elements that are not adjacent in memory.
  /// `scratch` is the caller's, aligned to 8 bytes, at least kChangesScratchBytes. Visits before an
  /// error are not undone, so callers validate first.
  DecodeStatus (*changes)(Bytes payload, size_t raw_bytes, unsigned width, MutableBytes scratch,
                          ChangeVisitor visit, void* context);

  /// Writes the sum of `payloads` into `out`. All are for the same chunk, in any order, since
  /// addition commutes. `scratch` has at least FoldScratchBytes(width). Sets *bytes to the
  /// payload's size; 0 when the sum is no change.
  DecodeStatus (*fold)(std::span<const Bytes> payloads, size_t raw_bytes, unsigned width,
                       MutableBytes scratch, MutableBytes out, size_t* bytes);

  /// Writes the payload that undoes `payload` to `out`. REQUIRES: scratch and out as for fold.
  DecodeStatus (*negate)(Bytes payload, size_t raw_bytes, unsigned width, MutableBytes scratch,
                         MutableBytes out, size_t* bytes);

  /// Encodes `payload`'s changes as tight, given the bytes that they apply to and their history.
  /// Sets *bytes to the payload's size; 0 when it would be no smaller than `payload`. REQUIRES:
  /// `payload` is valid and does not overlap `out`; function fits width; scratch.size() >=
  /// kTightScratchBytes; out.size() >= payload.size(); at most kMaxHistory deltas, each valid for
  /// the chunk.
  DecodeStatus (*tight_encode)(Bytes old_data, Bytes payload, unsigned width,
                               ClassFunction function, const History& history, MutableBytes scratch,
                               MutableBytes out, size_t* bytes);

  /// Decodes a tight payload into the fast one, and checks it fully (except its choice of
  /// parameters). The caller has compared the history's check with that of the payload's head.
  /// REQUIRES: `history` has at least the deltas that the head names; scratch.size() >=
  /// kTightScratchBytes; out.size() >= MaxEncodedBytes.
  DecodeStatus (*tight_decode)(Bytes old_data, Bytes tight, unsigned width, const History& history,
                               MutableBytes scratch, MutableBytes out, size_t* bytes);

  /// Runs one strided copy. REQUIRES: every run lies inside its span; src and dst do not overlap.
  void (*place)(const StridedCopy& copy, Bytes src, MutableBytes dst);

  /// Runs one strided copy and converts each element. `copy.run_bytes` counts destination bytes: a
  /// run has run_bytes / WidthOf(to) elements, adjacent in the source and in the destination.
  /// Offsets and strides are bytes of their own side. With convert.moves_only() it equals place.
  /// REQUIRES: as place; run_bytes is a multiple of WidthOf(to); kBytes only on both sides, and
  /// without `add`.
  void (*place_convert)(const StridedCopy& copy, const Convert& convert, Bytes src,
                        MutableBytes dst);
};

/// The scratch for changes, of any width.
inline constexpr size_t kChangesScratchBytes = kBlockElements * (sizeof(uint64_t) + 2);

/// Returns the scratch for fold and negate: one block of elements.
size_t FoldScratchBytes(unsigned width);

/// The scratch for tight_encode and tight_decode, for any width.
inline constexpr size_t kTightScratchBytes = size_t{3} << 19;

/// Returns the plain backend: always built, and the oracle of every test.
const Backend& Scalar();
/// Returns the fastest backend for this machine (Highway chooses the instruction set at run time).
const Backend& Best();
/// Returns every backend that this machine can run, the scalar one first.
std::span<const Backend* const> All();

}  // namespace deltawire::kernels
