// The frames that wire version 4's golden files and the worked example of docs/wire_format.md hold.
// They are frozen, as golden files never change: a new wire version gets samples of its own.
// wire_golden_maker.cc writes the files, and the tests compare with them. Pure functions, of any
// thread.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/checksum.h"
#include "common/layout/layout.h"
#include "common/wire/frame.h"
#include "common/wire/messages.h"

namespace deltawire::wire::samples {

/// One frame of the exchange; `file` is its golden file's middle part, `who` the direction.
struct Frame {
  std::string_view file;
  std::string_view who;
  FrameHeader header;
  std::vector<std::byte> payload;
};

inline std::vector<std::byte> ToVector(std::string_view text) {
  const Bytes b = AsBytes(text);
  return {b.begin(), b.end()};
}

/// The example's layout.
inline std::vector<TensorMeta> Tensors() {
  return {{"a", DType::kBF16, {4}}, {"b", DType::kBF16, {2, 2}}, {"c", DType::kBF16, {2}}};
}

/// That layout's canonical bytes, written out here again so that the fingerprint is tested against
/// the document and not against itself (docs/wire_format.md, "Layout fingerprint").
inline std::vector<std::byte> CanonicalLayout() {
  constexpr std::string_view kDType = "BF16";
  std::string out;
  const auto put = [&out](uint64_t v, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) out += static_cast<char>(v >> (8 * i));
  };
  for (const TensorMeta& t : Tensors()) {
    put(t.name.size(), 4);
    out += t.name;
    put(kDType.size(), 1);
    out += kDType;
    put(t.shape.size(), 1);
    for (const uint64_t d : t.shape) put(d, 8);
  }
  return ToVector(out);
}

inline Hello SampleHello() {
  Hello m;
  for (size_t i = 0; i < m.ticket.size(); ++i) m.ticket[i] = static_cast<std::byte>(0xA0 + i);
  m.fingerprint = Xxh3_128(CanonicalLayout());
  m.stream = 0;
  m.streams = 1;
  return m;
}

inline Hello SampleHelloWithProof() {
  Hello m = SampleHello();
  HelloProof& proof = m.proof.emplace();
  for (size_t i = 0; i < proof.size(); ++i) proof[i] = static_cast<std::byte>(0xC0 + i);
  return m;
}

inline constexpr uint64_t kDigestA7 = 0xA70000000000000A;
inline constexpr uint64_t kDigestB7 = 0xB70000000000000B;
inline constexpr uint64_t kDigestB9 = 0xB90000000000000B;
inline constexpr uint64_t kDigestC9 = 0xC90000000000000C;
inline constexpr uint64_t kDigestC10 = 0xCA0000000000000C;

/// The lineage and the roots are made up, like the digests.
inline constexpr Hash128 kLineage{.hi = 0x11E0A6E100000002, .lo = 0x11E0A6E100000001};
inline constexpr uint64_t kRoot7 = 0x2007000000000007;
inline constexpr uint64_t kRoot10 = 0x200A00000000000A;

inline Have SampleHave() {
  return {.held = {.lineage = kLineage, .id = {1, 7}, .root = kRoot7, .attempt = 0},
          .history = {{1, 6}, {1, 5}},
          .chunks = {{7, kDigestA7, 2}, {7, kDigestB7, 1}, {~uint64_t{0}, 0, 0}}};
}

inline End SampleEnd() {
  return {.lineage = kLineage,
          .root = kRoot10,
          .attempt = 0xA77E00000000000A,
          .side_files_hash = 0x51DE000000000001};
}

inline WireError SampleError() {
  return {
      static_cast<uint32_t>(StatusCode::kFailedPrecondition),
      "the receiver has version 12, the newest here is 10 \xE2\x80\x94 check the sender's address"};
}

/// Chunk a is unchanged from 7 on, b changed in 9; c is unknown, so it goes whole at 9, and the
/// publish of 10, which changed c alone, lifts it. Error stands apart: it would end the stream.
inline std::vector<Frame> Exchange() {
  std::vector<Frame> frames = {
      {"hello", "receiver to sender", {.type = FrameType::kHello}, Encode(SampleHello())},
      {"welcome", "sender to receiver", {.type = FrameType::kWelcome}, {}},
      {"have", "receiver to sender", {.type = FrameType::kHave}, Encode(SampleHave())},
      {"ping", "sender to receiver", {.type = FrameType::kPing}, {}},
      {"chunk_delta",
       "sender to receiver",
       {.type = FrameType::kChunkDelta,
        .chunk = 1,
        .epoch = 1,
        .version = 9,
        .digest_before = kDigestB7,
        .digest_after = kDigestB9},
       ToVector("delta b 7-9")},
      {"chunk_full",
       "sender to receiver",
       {.type = FrameType::kChunkFull,
        .chunk = 2,
        .epoch = 1,
        .version = 9,
        .digest_after = kDigestC9},
       ToVector("\x80\x3f\x01\x40")},
      {"chunk_lift",
       "sender to receiver",
       {.type = FrameType::kChunkDelta,
        .chunk = 2,
        .epoch = 1,
        .version = 10,
        .digest_before = kDigestC9,
        .digest_after = kDigestC10},
       ToVector("delta c 9-10")},
      {"end",
       "sender to receiver",
       {.type = FrameType::kEnd, .epoch = 1, .version = 10},
       Encode(SampleEnd())},
      {"error", "either", {.type = FrameType::kError}, Encode(SampleError())},
  };
  for (Frame& f : frames) {
    f.header.payload_bytes = static_cast<uint32_t>(f.payload.size());
    if (f.header.type != FrameType::kChunkFull) f.header.payload_xxh3 = Xxh3(f.payload);
  }
  return frames;
}

/// A golden file: its path in tests/golden and what it must hold.
struct Golden {
  std::string name;
  std::vector<std::byte> bytes;
};

inline std::vector<Golden> GoldenFiles() {
  std::vector<Golden> out;
  for (const Frame& f : Exchange()) {
    const HeaderBytes header = EncodeHeader(f.header);
    out.push_back(
        {"wire_v4/header_" + std::string(f.file) + ".bin", {header.begin(), header.end()}});
  }
  out.push_back({"wire_v4/payload_hello.bin", Encode(SampleHello())});
  out.push_back({"wire_v4/payload_hello_proof.bin", Encode(SampleHelloWithProof())});
  out.push_back({"wire_v4/payload_have.bin", Encode(SampleHave())});
  out.push_back({"wire_v4/payload_end.bin", Encode(SampleEnd())});
  out.push_back({"wire_v4/payload_error.bin", Encode(SampleError())});
  return out;
}

/// Inputs of tests/fuzz/wire_frame_fuzz.cc: a byte that chooses the decoder, then what it decodes.
inline std::vector<Golden> FuzzCorpus() {
  std::vector<Golden> out;
  for (Golden& g : GoldenFiles()) {
    std::string name = g.name.substr(0, g.name.rfind('.'));
    std::replace(name.begin(), name.end(), '/', '_');
    const int decoder = name.find("payload_hello") != std::string::npos ? 1
                        : name.ends_with("payload_have")                ? 2
                        : name.ends_with("payload_end")                 ? 3
                        : name.ends_with("payload_error")               ? 4
                                                                        : 0;
    g.bytes.insert(g.bytes.begin(), static_cast<std::byte>(decoder));
    out.push_back({name, std::move(g.bytes)});
  }
  return out;
}

/// The worked example as it stands in docs/wire_format.md, between its two marker lines.
inline std::string DocumentExample() {
  std::string out;
  for (const Frame& f : Exchange()) {
    const HeaderBytes header = EncodeHeader(f.header);
    std::vector<std::byte> bytes(header.begin(), header.end());
    bytes.insert(bytes.end(), f.payload.begin(), f.payload.end());
    out += fmt::format("# {} ({})\n", f.file, f.who);
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (i % 16 == 0) out += fmt::format("{}{:04x} ", i == 0 ? "" : "\n", i);
      out += fmt::format(" {:02x}", static_cast<unsigned>(bytes[i]));
    }
    out += "\n";
  }
  return out;
}

}  // namespace deltawire::wire::samples
