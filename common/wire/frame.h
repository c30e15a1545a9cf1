// The 64-byte frame header of the bulk protocol, little-endian: encode, decode, check, without I/O.
// Byte table and worked example: docs/wire_format.md. Errors are kDataLoss (not a frame, corrupt),
// kUnimplemented (another wire version) and kResourceExhausted (over a limit, which is checked
// here, before memory is allocated for the payload).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace deltawire::wire {

inline constexpr uint32_t kMagic = 0x31465744;  // "DWF1" as bytes on the wire
inline constexpr uint8_t kWireVersion = 4;

/// The order of frames is in docs/wire_format.md, "Life of a stream".
enum class FrameType : uint8_t {
  kHello = 1,       ///< receiver: opens a stream; payload Hello
  kWelcome = 2,     ///< sender: stream accepted; no payload
  kHave = 3,        ///< receiver, stream 0 only: payload Have
  kChunkFull = 4,   ///< sender: payload = the chunk's bytes at `version`
  kChunkDelta = 5,  ///< sender: payload = delta from digest_before to digest_after
  kEnd = 6,         ///< sender: this stream has sent all; payload End names the pull's state
  kPing = 7,        ///< sender: alive, but nothing to send yet
  kError = 8,       ///< either: payload WireError; the stream ends
};

inline constexpr uint32_t kMaxChunkPayload = (8u << 20) + 4096;
inline constexpr uint32_t kMaxHavePayload = 256u << 20;
inline constexpr uint32_t kMaxControlPayload = 8192;
inline constexpr uint32_t kEndPayload = 40;

uint32_t MaxPayload(FrameType type);

struct FrameHeader {
  FrameType type = FrameType::kPing;
  uint32_t chunk = 0;  ///< chunk frames: index in the chunk table; else 0
  uint32_t payload_bytes = 0;
  uint64_t epoch = 0;          ///< chunk frames, kEnd
  uint64_t version = 0;        ///< chunk frames, kEnd: the version that the chunk has afterwards
  uint64_t digest_before = 0;  ///< kChunkDelta: digest of the base that it applies to
  uint64_t digest_after = 0;   ///< chunk frames: the chunk's digest afterwards
  /// XXH3-64 of the payload (of no bytes when there is none). kChunkFull: 0, since digest_after
  /// checks the payload.
  uint64_t payload_xxh3 = 0;
  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

// magic, wire version, type, reserved, chunk, payload_bytes, epoch, version, digest_before,
// digest_after, payload_xxh3, header_xxh3 (over the bytes before it)
inline constexpr size_t kFrameHeaderBytes = 4 + 1 + 1 + 2 + 4 + 4 + 8 + 8 + 8 + 8 + 8 + 8;
static_assert(kFrameHeaderBytes == 64);

using HeaderBytes = std::array<std::byte, kFrameHeaderBytes>;

/// For frames without payload and for kChunkFull, ignores h.payload_xxh3 and writes the only value
/// that the format allows.
HeaderBytes EncodeHeader(const FrameHeader& h);

/// Checks magic, version, header checksum, type, reserved bits, zeros in the fields that the type
/// does not use, and payload_bytes against MaxPayload.
StatusOr<FrameHeader> DecodeHeader(Bytes header);

/// Returns kDataLoss unless `payload_hash` matches the header; the message names type and chunk.
/// REQUIRES: not kChunkFull, whose payload is checked against digest_after.
Status CheckPayload(const FrameHeader& h, uint64_t payload_hash);

std::string_view ToString(FrameType t);

}  // namespace deltawire::wire
