// Payloads of the control frames: Hello, Have, End, WireError. Pure encode and decode.
// Byte tables: docs/wire_format.md. Decoders check every length before taking memory and never read
// past their span. Errors: kDataLoss, also for trailing bytes and for reserved bits that are set.
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

/// Ties TCP streams to the pull that gRPC granted; random, valid for one pull and a short time.
using Ticket = std::array<std::byte, 16>;

/// HMAC-SHA256 by which a receiver shows that it knows its token (docs/security.md).
using HelloProof = std::array<std::byte, 32>;

struct Hello {
  Ticket ticket{};
  Hash128 fingerprint;              ///< of the receiver's layout
  uint16_t stream = 0;              ///< this stream's index, 0 .. streams-1
  uint16_t streams = 1;             ///< number of the pull's streams, 1 .. kMaxStreams
  std::optional<HelloProof> proof;  ///< of a receiver with a token
  friend bool operator==(const Hello&, const Hello&) = default;
};
inline constexpr uint16_t kMaxStreams = 64;
/// The most deltas that Have may name.
inline constexpr size_t kMaxHistory = 8;
/// Chunks that a receiver may name as suspects of a pull, when it asks for its ticket.
inline constexpr size_t kMaxSuspects = 65'536;

/// What the receiver holds, one entry per chunk, so that each pull itself says which bytes its
/// deltas apply to.
struct Have {
  /// A chunk of this version has unknown content: it is asked for whole.
  static constexpr uint64_t kUnknown = ~uint64_t{0};
  struct Entry {
    uint64_t version = kUnknown;
    uint64_t digest = 0;
    uint8_t depth = 0;  ///< how many deltas of `history` the receiver has for this chunk
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  /// The state last committed, with lineage and root as this sender's End named them; the attempt
  /// is not sent.
  Identity held;
  /// The deltas that led to `held` and that the receiver keeps, newest first; each is named by the
  /// state before it.
  std::vector<StateId> history;
  std::vector<Entry> chunks;
  friend bool operator==(const Have&, const Have&) = default;
};

/// The state that a pull has brought, together with the epoch and version in the End frame's
/// header. Every stream of a pull ends with the same.
struct End {
  Hash128 lineage;
  uint64_t root = 0;             ///< over the chunks that this sender owns
  uint64_t attempt = 0;          ///< of the offload that was published
  uint64_t side_files_hash = 0;  ///< of the side files that belong to the state
  friend bool operator==(const End&, const End&) = default;
};

/// Why a stream ends. Codes are absl's StatusCode numbers.
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

/// The payload of a Have of `chunks` entries that names `history` deltas.
uint64_t HaveBytes(uint64_t chunks, size_t history);

/// kDataLoss when no Have of `chunks` entries can have `payload_bytes`. For use before memory is
/// taken for the payload.
Status CheckHaveSize(uint64_t payload_bytes, uint32_t chunks);

WireError FromStatus(const Status& s);
Status ToStatus(const WireError& e);

}  // namespace deltawire::wire
