// The payloads of the control frames Hello, Have, End and WireError, with encoders and decoders.
// Byte tables: docs/wire_format.md. Decoders check every length before they allocate and never read
// past their span. Trailing bytes and reserved bits that are set are kDataLoss too.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/checksum.h"
#include "common/base/identity.h"
#include "common/base/status.h"

namespace deltawire::wire {

/// The key that ties TCP streams to a pull granted by gRPC: random, valid for one pull and a short
/// time.
using Ticket = std::array<std::byte, 16>;

/// An HMAC-SHA256 that proves that the receiver knows its token (docs/security.md).
using HelloProof = std::array<std::byte, 32>;

struct Hello {
  Ticket ticket{};
  Hash128 fingerprint;              ///< the receiver's layout
  uint16_t stream = 0;              ///< this stream's index, 0 .. streams-1
  uint16_t streams = 1;             ///< number of the pull's streams, 1 .. kMaxStreams
  std::optional<HelloProof> proof;  ///< only from a receiver with a token
  friend bool operator==(const Hello&, const Hello&) = default;
};
inline constexpr uint16_t kMaxStreams = 64;
inline constexpr size_t kMaxHistory = 8;
/// The largest number of corrupt chunks that a receiver may name when it asks for its ticket.
inline constexpr size_t kMaxSuspects = 65'536;

/// The receiver's chunks, one entry each, so that each pull itself names the bytes that its deltas
/// apply to.
struct Have {
  /// The version of a chunk with unknown content, which is fetched whole.
  static constexpr uint64_t kUnknown = ~uint64_t{0};
  struct Entry {
    uint64_t version = kUnknown;
    uint64_t digest = 0;
    uint8_t depth = 0;  ///< number of deltas in `history` that the receiver has for this chunk
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  /// The state last committed, with lineage and root from this sender's End. The attempt is not
  /// sent.
  Identity held;
  /// The kept deltas that led to `held`, newest first. Each is named by the state before it.
  std::vector<StateId> history;
  std::vector<Entry> chunks;
  friend bool operator==(const Have&, const Have&) = default;
};

/// The state that a pull delivered, together with the epoch and version in the End frame's header.
/// All streams of a pull end with the same.
struct End {
  Hash128 lineage;
  uint64_t root = 0;             ///< over the chunks that this sender owns
  uint64_t attempt = 0;          ///< of the published offload
  uint64_t side_files_hash = 0;  ///< of the state's side files
  friend bool operator==(const End&, const End&) = default;
};

/// The reason why a stream ends. Codes are absl's StatusCode numbers.
struct WireError {
  uint32_t code = 0;
  std::string message;  ///< UTF-8, at most 4096 bytes; says what to do
  friend bool operator==(const WireError&, const WireError&) = default;
};

std::vector<std::byte> Encode(const Hello& m);
std::vector<std::byte> Encode(const Have& m);
std::vector<std::byte> Encode(const End& m);
std::vector<std::byte> Encode(const WireError& m);

StatusOr<Hello> DecodeHello(Bytes payload);
/// `chunks` is the required number of entries.
StatusOr<Have> DecodeHave(Bytes payload, uint32_t chunks);
StatusOr<End> DecodeEnd(Bytes payload);
StatusOr<WireError> DecodeWireError(Bytes payload);

uint64_t HaveBytes(uint64_t chunks, size_t history);

/// Returns kDataLoss when no Have of `chunks` entries can have `payload_bytes`. Call it before
/// memory is allocated for the payload.
Status CheckHaveSize(uint64_t payload_bytes, uint32_t chunks);

WireError FromStatus(const Status& s);
Status ToStatus(const WireError& e);

}  // namespace deltawire::wire
