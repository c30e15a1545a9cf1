#include "common/wire/messages.h"

#include <algorithm>

#include "common/layout/names.h"
#include "common/wire/frame.h"

namespace deltawire::wire {
namespace {

// Sums of the fields in docs/wire_format.md, "Payloads".
constexpr size_t kHelloBytes =
    16 + 16 + 2 + 2 + 4;  // ticket, fingerprint, stream, streams, reserved
constexpr size_t kProofBytes = sizeof(HelloProof);  // follows them, from a receiver with a token
// epoch, version, lineage, root, count, history, reserved
constexpr size_t kHaveHeadBytes = 8 + 8 + 16 + 8 + 4 + 1 + 3;
constexpr size_t kHaveCountAt = 8 + 8 + 16 + 8;
constexpr size_t kHaveHistoryAt = kHaveCountAt + 4;
constexpr size_t kHaveStateBytes = 8 + 8;      // epoch, version: per delta of the history
constexpr size_t kHaveEntryBytes = 8 + 8;      // version, digest
constexpr size_t kHaveDepthBytes = 1;          // per chunk, if there is history
static_assert(kEndPayload == 16 + 8 + 8 + 8);  // lineage, root, attempt, side files
constexpr size_t kErrorHeadBytes = 4 + 4;      // code, message bytes
constexpr size_t kMaxMessageBytes = 4096;
static_assert(kErrorHeadBytes + kMaxMessageBytes <= kMaxControlPayload);

constexpr uint32_t kFirstCode = static_cast<uint32_t>(StatusCode::kCancelled);
constexpr uint32_t kLastCode = static_cast<uint32_t>(StatusCode::kUnauthenticated);

constexpr std::string_view kSameRelease = "run the same deltawire release at both ends";

bool IsCode(uint32_t code) { return code >= kFirstCode && code <= kLastCode; }

Status WrongSize(std::string_view what, size_t got, uint64_t want) {
  return Errorf(StatusCode::kDataLoss,
                "{} payload has {} bytes, want {}: it is cut short or too long; {}", what, got,
                want, kSameRelease);
}

Status ReservedSet(std::string_view what, uint32_t bits) {
  return Errorf(StatusCode::kDataLoss, "{} payload has reserved bits {:#010x} set; {}", what, bits,
                kSameRelease);
}

/// Makes an error text valid UTF-8, so that the error arrives even if it quotes other bytes, e.g. a
/// file name.
std::string FitMessage(std::string_view text) { return FitUtf8(text, kMaxMessageBytes); }

}  // namespace

uint64_t HaveBytes(uint64_t chunks, size_t history) {
  return kHaveHeadBytes + kHaveStateBytes * history +
         (kHaveEntryBytes + (history > 0 ? kHaveDepthBytes : 0)) * chunks;
}

std::vector<std::byte> Encode(const Hello& m) {
  std::vector<std::byte> out(kHelloBytes + (m.proof ? kProofBytes : 0));
  std::byte* p = std::copy(m.ticket.begin(), m.ticket.end(), out.data());
  StoreLe<uint64_t>(p, m.fingerprint.lo);
  StoreLe<uint64_t>(p + 8, m.fingerprint.hi);
  StoreLe<uint16_t>(p + 16, m.stream);
  StoreLe<uint16_t>(p + 18, m.streams);
  StoreLe<uint32_t>(p + 20, 0);
  if (m.proof) std::copy(m.proof->begin(), m.proof->end(), out.data() + kHelloBytes);
  return out;
}

std::vector<std::byte> Encode(const Have& m) {
  std::vector<std::byte> out(HaveBytes(m.chunks.size(), m.history.size()));
  std::byte* p = out.data();
  StoreLe<uint64_t>(p, m.held.id.epoch);
  StoreLe<uint64_t>(p + 8, m.held.id.version);
  StoreLe<uint64_t>(p + 16, m.held.lineage.lo);
  StoreLe<uint64_t>(p + 24, m.held.lineage.hi);
  StoreLe<uint64_t>(p + 32, m.held.root);
  StoreLe<uint32_t>(p + kHaveCountAt, static_cast<uint32_t>(m.chunks.size()));
  StoreLe<uint32_t>(p + kHaveHistoryAt, static_cast<uint32_t>(m.history.size()));
  p += kHaveHeadBytes;
  for (const StateId& before : m.history) {
    StoreLe<uint64_t>(p, before.epoch);
    StoreLe<uint64_t>(p + 8, before.version);
    p += kHaveStateBytes;
  }
  for (const Have::Entry& e : m.chunks) {
    StoreLe<uint64_t>(p, e.version);
    StoreLe<uint64_t>(p + 8, e.digest);
    p += kHaveEntryBytes;
  }
  if (m.history.empty()) return out;
  for (const Have::Entry& e : m.chunks) {
    StoreLe<uint8_t>(p, e.depth);
    p += kHaveDepthBytes;
  }
  return out;
}

std::vector<std::byte> Encode(const End& m) {
  std::vector<std::byte> out(kEndPayload);
  std::byte* p = out.data();
  StoreLe<uint64_t>(p, m.lineage.lo);
  StoreLe<uint64_t>(p + 8, m.lineage.hi);
  StoreLe<uint64_t>(p + 16, m.root);
  StoreLe<uint64_t>(p + 24, m.attempt);
  StoreLe<uint64_t>(p + 32, m.side_files_hash);
  return out;
}

std::vector<std::byte> Encode(const WireError& m) {
  const std::string message = FitMessage(m.message);
  std::vector<std::byte> out(kErrorHeadBytes + message.size());
  StoreLe<uint32_t>(out.data(), m.code);
  StoreLe<uint32_t>(out.data() + 4, static_cast<uint32_t>(message.size()));
  std::ranges::copy(AsBytes(message), out.data() + kErrorHeadBytes);
  return out;
}

StatusOr<Hello> DecodeHello(Bytes payload) {
  const bool proves = payload.size() == kHelloBytes + kProofBytes;
  if (!proves && payload.size() != kHelloBytes) {
    return WrongSize("Hello", payload.size(), kHelloBytes);
  }
  const std::byte* p = payload.data();
  Hello m;
  std::copy_n(p, m.ticket.size(), m.ticket.begin());
  p += m.ticket.size();
  m.fingerprint = {.hi = LoadLe<uint64_t>(p + 8), .lo = LoadLe<uint64_t>(p)};
  m.stream = LoadLe<uint16_t>(p + 16);
  m.streams = LoadLe<uint16_t>(p + 18);
  const auto reserved = LoadLe<uint32_t>(p + 20);
  if (reserved != 0) return ReservedSet("Hello", reserved);
  if (m.streams > kMaxStreams) {
    return Errorf(StatusCode::kResourceExhausted,
                  "Hello asks for {} streams, more than {}; set fewer streams at the receiver",
                  m.streams, kMaxStreams);
  }
  if (m.stream >= m.streams) {
    return Errorf(StatusCode::kDataLoss, "Hello says stream {} of {}, want 0 .. streams-1; {}",
                  m.stream, m.streams, kSameRelease);
  }
  if (proves) {
    std::copy_n(payload.data() + kHelloBytes, kProofBytes, m.proof.emplace().begin());
  }
  return m;
}

StatusOr<Have> DecodeHave(Bytes payload, uint32_t chunks) {
  if (payload.size() > kMaxHavePayload) {
    return Errorf(StatusCode::kResourceExhausted, "Have payload has {} bytes, more than {}",
                  payload.size(), kMaxHavePayload);
  }
  if (payload.size() < kHaveHeadBytes) return WrongSize("Have", payload.size(), kHaveHeadBytes);
  const std::byte* p = payload.data();
  const auto count = LoadLe<uint32_t>(p + kHaveCountAt);
  const auto history = LoadLe<uint8_t>(p + kHaveHistoryAt);
  const uint32_t reserved = LoadLe<uint32_t>(p + kHaveHistoryAt) & 0xffffff00u;
  if (reserved != 0) return ReservedSet("Have", reserved);
  if (history > kMaxHistory) {
    return Errorf(StatusCode::kResourceExhausted,
                  "Have names {} deltas of history, more than {}; {}", history, kMaxHistory,
                  kSameRelease);
  }
  if (count != chunks) {
    return Errorf(
        StatusCode::kDataLoss,
        "Have lists {} chunks, the layout has {}: the receiver holds another layout; describe "
        "the model again",
        count, chunks);
  }
  const uint64_t want = HaveBytes(count, history);
  if (payload.size() != want) return WrongSize("Have", payload.size(), want);
  Have m;
  m.held.id = {.epoch = LoadLe<uint64_t>(p), .version = LoadLe<uint64_t>(p + 8)};
  m.held.lineage = {.hi = LoadLe<uint64_t>(p + 24), .lo = LoadLe<uint64_t>(p + 16)};
  m.held.root = LoadLe<uint64_t>(p + 32);
  m.history.resize(history);
  m.chunks.resize(count);
  p += kHaveHeadBytes;
  for (StateId& before : m.history) {
    before = {.epoch = LoadLe<uint64_t>(p), .version = LoadLe<uint64_t>(p + 8)};
    p += kHaveStateBytes;
  }
  for (Have::Entry& e : m.chunks) {
    e.version = LoadLe<uint64_t>(p);
    e.digest = LoadLe<uint64_t>(p + 8);
    p += kHaveEntryBytes;
  }
  if (history == 0) return m;
  for (uint32_t i = 0; i < count; ++i) {
    m.chunks[i].depth = LoadLe<uint8_t>(p + i * kHaveDepthBytes);
    if (m.chunks[i].depth > history) {
      return Errorf(StatusCode::kDataLoss, "Have claims {} deltas of chunk {} and names {}; {}",
                    m.chunks[i].depth, i, history, kSameRelease);
    }
  }
  return m;
}

Status CheckHaveSize(uint64_t payload_bytes, uint32_t chunks) {
  const uint64_t least = HaveBytes(chunks, 0);
  const uint64_t most = HaveBytes(chunks, kMaxHistory);
  if (payload_bytes >= least && payload_bytes <= most) return absl::OkStatus();
  return Errorf(
      StatusCode::kDataLoss,
      "Have payload has {} bytes; of the layout's {} chunks it has {} to {}: the receiver "
      "holds another layout; describe the model again",
      payload_bytes, chunks, least, most);
}

StatusOr<End> DecodeEnd(Bytes payload) {
  if (payload.size() != kEndPayload) return WrongSize("End", payload.size(), kEndPayload);
  const std::byte* p = payload.data();
  End m;
  m.lineage = {.hi = LoadLe<uint64_t>(p + 8), .lo = LoadLe<uint64_t>(p)};
  m.root = LoadLe<uint64_t>(p + 16);
  m.attempt = LoadLe<uint64_t>(p + 24);
  m.side_files_hash = LoadLe<uint64_t>(p + 32);
  return m;
}

StatusOr<WireError> DecodeWireError(Bytes payload) {
  if (payload.size() < kErrorHeadBytes) return WrongSize("Error", payload.size(), kErrorHeadBytes);
  WireError m;
  m.code = LoadLe<uint32_t>(payload.data());
  const auto bytes = LoadLe<uint32_t>(payload.data() + 4);
  if (bytes > kMaxMessageBytes) {
    return Errorf(StatusCode::kResourceExhausted,
                  "Error claims a message of {} bytes, more than {}", bytes, kMaxMessageBytes);
  }
  if (payload.size() != kErrorHeadBytes + bytes) {
    return WrongSize("Error", payload.size(), kErrorHeadBytes + bytes);
  }
  if (!IsCode(m.code)) {
    return Errorf(StatusCode::kDataLoss, "Error has code {}, want {} .. {}; {}", m.code, kFirstCode,
                  kLastCode, kSameRelease);
  }
  const std::string_view text = AsChars(payload.subspan(kErrorHeadBytes));
  if (!IsUtf8(text)) {
    return Errorf(StatusCode::kDataLoss, "Error (code {}) has a message that is not UTF-8; {}",
                  m.code, kSameRelease);
  }
  m.message = text;
  return m;
}

WireError FromStatus(const Status& s) {
  // An Error frame always means failure, even when a caller passes an OK status.
  if (s.ok()) return {static_cast<uint32_t>(StatusCode::kUnknown), "error frame without an error"};
  const auto code = static_cast<uint32_t>(s.code());
  return {IsCode(code) ? code : static_cast<uint32_t>(StatusCode::kUnknown),
          FitMessage(MessageOf(s))};
}

Status ToStatus(const WireError& e) {
  return Status(IsCode(e.code) ? static_cast<StatusCode>(e.code) : StatusCode::kUnknown, e.message);
}

}  // namespace deltawire::wire
