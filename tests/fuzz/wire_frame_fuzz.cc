// Fuzz target: any bytes as header and as each payload. What decodes must encode to the same bytes.
// The first byte of the input chooses the decoder. `wire_golden_maker --corpus` writes the corpus.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "common/base/checksum.h"
#include "common/wire/frame.h"
#include "common/wire/messages.h"

using deltawire::Bytes;
using deltawire::LoadLe;

namespace {

void Require(bool ok) {
  if (!ok) std::abort();
}

bool Same(Bytes a, Bytes b) { return deltawire::AsChars(a) == deltawire::AsChars(b); }

void FuzzHeader(Bytes in) {
  namespace wire = deltawire::wire;
  // A random checksum never matches, so the bytes are tried as they are, then with the right magic
  // and checksum.
  if (const auto h = wire::DecodeHeader(in); h.ok()) Require(Same(wire::EncodeHeader(*h), in));
  if (in.size() < wire::kFrameHeaderBytes) return;
  wire::HeaderBytes fixed;
  std::copy_n(in.begin(), fixed.size(), fixed.begin());
  constexpr size_t kHashAt = wire::kFrameHeaderBytes - 8;
  deltawire::StoreLe<uint32_t>(fixed.data(), wire::kMagic);
  deltawire::StoreLe<uint64_t>(fixed.data() + kHashAt,
                               deltawire::Xxh3(Bytes(fixed).first(kHashAt)));
  const auto h = wire::DecodeHeader(fixed);
  if (!h.ok()) return;
  Require(h->payload_bytes <= wire::MaxPayload(h->type));
  Require(Same(wire::EncodeHeader(*h), fixed));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace wire = deltawire::wire;
  if (size == 0) return 0;
  const Bytes in(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      FuzzHeader(in);
      break;
    case 1:
      if (const auto m = wire::DecodeHello(in); m.ok()) Require(Same(wire::Encode(*m), in));
      break;
    case 2: {
      // The decoder expects the number of chunks that the input claims, so that well-formed input
      // gets through.
      const uint32_t chunks = in.size() >= 44 ? LoadLe<uint32_t>(in.data() + 40) : 1;
      if (const auto m = wire::DecodeHave(in, chunks); m.ok()) {
        Require(m->chunks.size() == chunks && Same(wire::Encode(*m), in));
        Require(wire::CheckHaveSize(in.size(), chunks).ok());
      }
      break;
    }
    case 3:
      if (const auto m = wire::DecodeEnd(in); m.ok()) Require(Same(wire::Encode(*m), in));
      break;
    default:
      if (const auto m = wire::DecodeWireError(in); m.ok()) {
        Require(Same(wire::Encode(*m), in));
        Require(!wire::ToStatus(*m).ok());
      }
  }
  return 0;
}
