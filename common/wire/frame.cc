#include "common/wire/frame.h"

#include "common/base/checksum.h"

namespace deltawire::wire {
namespace {

// Field offsets, in the order of the table in docs/wire_format.md, "Frame header".
constexpr size_t kMagicAt = 0;
constexpr size_t kWireVersionAt = kMagicAt + 4;
constexpr size_t kTypeAt = kWireVersionAt + 1;
constexpr size_t kReservedAt = kTypeAt + 1;
constexpr size_t kChunkAt = kReservedAt + 2;
constexpr size_t kPayloadBytesAt = kChunkAt + 4;
constexpr size_t kEpochAt = kPayloadBytesAt + 4;
constexpr size_t kVersionAt = kEpochAt + 8;
constexpr size_t kDigestBeforeAt = kVersionAt + 8;
constexpr size_t kDigestAfterAt = kDigestBeforeAt + 8;
constexpr size_t kPayloadHashAt = kDigestAfterAt + 8;
constexpr size_t kHeaderHashAt = kPayloadHashAt + 8;
static_assert(kHeaderHashAt + 8 == kFrameHeaderBytes);

bool IsKnownType(uint8_t t) {
  return t >= static_cast<uint8_t>(FrameType::kHello) &&
         t <= static_cast<uint8_t>(FrameType::kError);
}

bool IsChunkFrame(FrameType t) { return t == FrameType::kChunkFull || t == FrameType::kChunkDelta; }

/// Guesses the protocol of a peer that does not speak ours, by its first bytes.
std::string_view GuessPeer(Bytes header) {
  const std::string_view head = AsChars(header.first(4));
  if (head == "PRI ") return "the peer speaks gRPC: this is the bulk port, dial the gRPC port";
  if (head == "GET " || head == "POST" || head == "HEAD" || head == "HTTP") {
    return "the peer speaks HTTP: check which port it was given";
  }
  if (head[0] == 0x16 && head[1] == 0x03) {
    return "the peer speaks TLS, which this port does not: check which port it was given";
  }
  return "check that the peer is a deltawire bulk port";
}

/// Returns kDataLoss when a field that this type does not use is not zero.
Status CheckUnusedFields(const FrameHeader& h) {
  const bool chunk_frame = IsChunkFrame(h.type);
  const bool has_version = chunk_frame || h.type == FrameType::kEnd;
  const struct {
    std::string_view name;
    uint64_t value;
    bool used;
  } fields[] = {
      {"chunk", h.chunk, chunk_frame},
      {"epoch", h.epoch, has_version},
      {"version", h.version, has_version},
      {"digest_before", h.digest_before, h.type == FrameType::kChunkDelta},
      {"digest_after", h.digest_after, chunk_frame},
      {"payload_xxh3", h.payload_xxh3, h.type != FrameType::kChunkFull},
  };
  for (const auto& f : fields) {
    if (f.used || f.value == 0) continue;
    return Errorf(StatusCode::kDataLoss,
                  "{} frame has {} = {}, which must be zero in this type: the peer violates "
                  "wire version {}; run the same deltawire release at both ends",
                  ToString(h.type), f.name, f.value, kWireVersion);
  }
  return absl::OkStatus();
}

Status CheckPayloadSize(const FrameHeader& h) {
  const uint32_t limit = MaxPayload(h.type);
  if (h.payload_bytes <= limit) return absl::OkStatus();
  return Errorf(
      StatusCode::kResourceExhausted,
      "{} frame claims a payload of {} bytes, more than its type's limit of {}; the stream "
      "is closed and the frame not read",
      ToString(h.type), h.payload_bytes, limit);
}

uint64_t PayloadHash(const FrameHeader& h) {
  if (h.type == FrameType::kChunkFull) return 0;
  return h.payload_bytes == 0 ? Xxh3({}) : h.payload_xxh3;
}

FrameHeader LoadFields(const std::byte* p) {
  FrameHeader h;
  h.type = static_cast<FrameType>(p[kTypeAt]);
  h.chunk = LoadLe<uint32_t>(p + kChunkAt);
  h.payload_bytes = LoadLe<uint32_t>(p + kPayloadBytesAt);
  h.epoch = LoadLe<uint64_t>(p + kEpochAt);
  h.version = LoadLe<uint64_t>(p + kVersionAt);
  h.digest_before = LoadLe<uint64_t>(p + kDigestBeforeAt);
  h.digest_after = LoadLe<uint64_t>(p + kDigestAfterAt);
  h.payload_xxh3 = LoadLe<uint64_t>(p + kPayloadHashAt);
  return h;
}

/// Checks everything that must hold before any field can be trusted.
Status CheckEnvelope(Bytes header) {
  if (header.size() != kFrameHeaderBytes) {
    return Errorf(StatusCode::kDataLoss,
                  "frame header of {} bytes, it has {}: the stream was cut; connect again",
                  header.size(), kFrameHeaderBytes);
  }
  const std::byte* p = header.data();
  const uint32_t magic = LoadLe<uint32_t>(p + kMagicAt);
  if (magic != kMagic) {
    return Errorf(StatusCode::kDataLoss,
                  "not a deltawire frame (magic {:#010x}, want {:#010x}): {}", magic, kMagic,
                  GuessPeer(header));
  }
  // Comes before the checksum, which another version may place elsewhere.
  const auto version = static_cast<uint8_t>(p[kWireVersionAt]);
  if (version != kWireVersion) {
    return Errorf(StatusCode::kUnimplemented,
                  "the peer speaks wire version {}, this end {}: run the same deltawire release at "
                  "both ends",
                  version, kWireVersion);
  }
  const uint64_t want = LoadLe<uint64_t>(p + kHeaderHashAt);
  const uint64_t got = Xxh3(header.first(kHeaderHashAt));
  if (want != got) {
    return Errorf(StatusCode::kDataLoss,
                  "frame header is corrupt (XXH3 {:#018x}, it says {:#018x}): connect again; if it "
                  "comes back, check the network card and memory of both hosts",
                  got, want);
  }
  return absl::OkStatus();
}

}  // namespace

uint32_t MaxPayload(FrameType type) {
  switch (type) {
    case FrameType::kHello:
    case FrameType::kError:
      return kMaxControlPayload;
    case FrameType::kHave:
      return kMaxHavePayload;
    case FrameType::kChunkFull:
    case FrameType::kChunkDelta:
      return kMaxChunkPayload;
    case FrameType::kEnd:
      return kEndPayload;
    case FrameType::kWelcome:
    case FrameType::kPing:
      return 0;
  }
  return 0;
}

HeaderBytes EncodeHeader(const FrameHeader& h) {
  HeaderBytes out{};
  std::byte* p = out.data();
  StoreLe<uint32_t>(p + kMagicAt, kMagic);
  StoreLe<uint8_t>(p + kWireVersionAt, kWireVersion);
  StoreLe<uint8_t>(p + kTypeAt, static_cast<uint8_t>(h.type));
  StoreLe<uint16_t>(p + kReservedAt, 0);
  StoreLe<uint32_t>(p + kChunkAt, h.chunk);
  StoreLe<uint32_t>(p + kPayloadBytesAt, h.payload_bytes);
  StoreLe<uint64_t>(p + kEpochAt, h.epoch);
  StoreLe<uint64_t>(p + kVersionAt, h.version);
  StoreLe<uint64_t>(p + kDigestBeforeAt, h.digest_before);
  StoreLe<uint64_t>(p + kDigestAfterAt, h.digest_after);
  StoreLe<uint64_t>(p + kPayloadHashAt, PayloadHash(h));
  StoreLe<uint64_t>(p + kHeaderHashAt, Xxh3(Bytes(out).first(kHeaderHashAt)));
  return out;
}

StatusOr<FrameHeader> DecodeHeader(Bytes header) {
  DW_RETURN_IF_ERROR(CheckEnvelope(header));
  const std::byte* p = header.data();
  const auto type = static_cast<uint8_t>(p[kTypeAt]);
  if (!IsKnownType(type)) {
    return Errorf(StatusCode::kDataLoss,
                  "frame type {} does not exist in wire version {}: the peer violates it; run "
                  "the same deltawire release at both ends",
                  type, kWireVersion);
  }
  const FrameHeader h = LoadFields(p);
  const auto reserved = LoadLe<uint16_t>(p + kReservedAt);
  if (reserved != 0) {
    return Errorf(StatusCode::kDataLoss,
                  "{} frame has reserved bits {:#06x} set: the peer violates wire version {}; "
                  "run the same deltawire release at both ends",
                  ToString(h.type), reserved, kWireVersion);
  }
  DW_RETURN_IF_ERROR(CheckUnusedFields(h));
  DW_RETURN_IF_ERROR(CheckPayloadSize(h));
  if (h.payload_bytes == 0 && h.type != FrameType::kChunkFull) {
    DW_RETURN_IF_ERROR(CheckPayload(h, Xxh3({})));
  }
  return h;
}

Status CheckPayload(const FrameHeader& h, uint64_t payload_hash) {
  if (payload_hash == h.payload_xxh3) return absl::OkStatus();
  const std::string chunk =
      IsChunkFrame(h.type)
          ? fmt::format(" of chunk {} at epoch {} version {}", h.chunk, h.epoch, h.version)
          : std::string();
  return Errorf(
      StatusCode::kDataLoss,
      "{} frame{}: its payload of {} bytes is corrupt (XXH3 {:#018x}, the header says "
      "{:#018x}); connect again; if it comes back, check the network card and memory of both "
      "hosts",
      ToString(h.type), chunk, h.payload_bytes, payload_hash, h.payload_xxh3);
}

std::string_view ToString(FrameType t) {
  switch (t) {
    case FrameType::kHello:
      return "Hello";
    case FrameType::kWelcome:
      return "Welcome";
    case FrameType::kHave:
      return "Have";
    case FrameType::kChunkFull:
      return "ChunkFull";
    case FrameType::kChunkDelta:
      return "ChunkDelta";
    case FrameType::kEnd:
      return "End";
    case FrameType::kPing:
      return "Ping";
    case FrameType::kError:
      return "Error";
  }
  return "unknown";
}

}  // namespace deltawire::wire
