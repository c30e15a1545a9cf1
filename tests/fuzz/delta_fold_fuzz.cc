// Fuzzes fold with up to eight payloads, valid, damaged or arbitrary. Each backend's fold must be
// byte for byte the encoding of the sum of the differences, in any order. With an invalid payload
// among them nothing may be read or written out of bounds.
// Input: one byte (bits 0-4 shape, bits 5-7 number of payloads - 1), then for each payload one byte
// (bits 0-1: 0 changes, 1 changes and damage, 2 plain bytes, 3 the payload before) and these.
#include <algorithm>
#include <span>

#include "tests/fuzz/delta_input.h"

namespace {

using namespace deltawire::kernels;  // NOLINT(google-build-using-namespace): one small program
using namespace deltawire::kernels::fuzz;  // NOLINT(google-build-using-namespace)

Buffer NextPayload(Input& in, const Shape& shape, const std::vector<Buffer>& before) {
  const uint8_t kind = in.Byte();
  if ((kind & 3) == 3 && !before.empty()) return before.back();
  if ((kind & 3) == 2) return in.Take(in.Number(2) & 1023);
  Buffer payload = DescribedDelta(in, shape);
  if ((kind & 3) == 1) {
    const Buffer bits = in.Take(2 * size_t{kind >> 2 & 7u});
    Input damage(reinterpret_cast<const uint8_t*>(bits.data()), bits.size());
    Damage(damage, payload);
  }
  return payload;
}

/// Applies all payloads to zeros, one after the other.
Buffer Applied(std::span<const Buffer> payloads, const Shape& shape) {
  Buffer data(shape.bytes());
  uint64_t digest = 0;
  for (const Buffer& payload : payloads) {
    const DecodeStatus status =
        Scalar().decode_apply(Key(), payload, data, shape.width, digest, &digest);
    Require(status == DecodeStatus::kOk, "what validates applies", Scalar());
  }
  return data;
}

/// Folds into a buffer of exactly the size that fold may ask for; empty where it fails.
Buffer Fold(const Backend& backend, std::span<const Bytes> payloads, const Shape& shape,
            DecodeStatus* status) {
  const MutableBytes scratch = FoldScratch(shape.width);
  Buffer out(MaxEncodedBytes(shape.bytes(), shape.width));
  size_t bytes = 0;
  *status = backend.fold(payloads, shape.bytes(), shape.width, scratch, out, &bytes);
  if (*status != DecodeStatus::kOk) return {};
  Require(bytes <= out.size(), "output stays within MaxEncodedBytes", backend);
  out.resize(bytes);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size < 2) return 0;
  Input in(bytes, size);
  const uint8_t head = in.Byte();
  const Shape shape = Shape::Small(head);
  std::vector<Buffer> payloads;
  bool sound = true;
  for (unsigned left = 1 + (head >> 5); left > 0 && !in.empty(); --left) {
    Buffer payload = NextPayload(in, shape, payloads);
    if (payload.empty()) continue;  // a delta without changes has no payload
    sound &= Scalar().validate(payload, shape.bytes(), shape.width, nullptr) == DecodeStatus::kOk;
    payloads.push_back(std::move(payload));
  }
  std::vector<Bytes> forth(payloads.begin(), payloads.end());
  std::vector<Bytes> back(forth.rbegin(), forth.rend());
  Buffer expected;
  if (sound) {
    expected = Diff(Scalar(), Buffer(shape.bytes()), Applied(payloads, shape), shape.width);
  }
  for (const Backend* backend : TwoBackends(bytes, size)) {
    DecodeStatus status;
    const Buffer sum = Fold(*backend, forth, shape, &status);
    if (!sound) continue;
    Require(status == DecodeStatus::kOk, "validated payloads fold", *backend);
    Require(sum == expected, "a fold is the direct encoding of the sum", *backend);
    Require(Fold(*backend, back, shape, &status) == expected, "in any order", *backend);
  }
  return 0;
}
