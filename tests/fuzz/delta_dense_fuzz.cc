// Fuzzes the decoder of dense payloads, which uses zstd, on chunks of up to 700 elements: what it
// accepts is a valid delta, which encoded and decoded again is the same delta, and the backends
// agree.
// Input: one byte (bits 0-4 shape, bit 5: described), then a payload, or changes and their damage.
#include "common/delta/dense.h"
#include "tests/fuzz/delta_input.h"

namespace {

using namespace deltawire::kernels;  // NOLINT(google-build-using-namespace): one small program
using namespace deltawire::kernels::fuzz;  // NOLINT(google-build-using-namespace)

/// The fast payload; empty where `dense` is refused.
Buffer Decode(const Backend& backend, const Shape& shape, const Buffer& dense,
              DecodeStatus* status) {
  Buffer out(MaxEncodedBytes(shape.bytes(), shape.width));
  size_t bytes = 0;
  *status = deltawire::DenseDecode(backend, dense, shape.bytes(), shape.width, out, &bytes);
  if (*status != DecodeStatus::kOk) return {};
  Require(bytes > 0 && bytes <= out.size(), "a payload of a possible size", backend);
  return Buffer(out.begin(), out.begin() + static_cast<ptrdiff_t>(bytes));
}

Buffer Encode(const Backend& backend, const Shape& shape, const Buffer& fast) {
  std::vector<std::byte> out;
  const size_t bytes =
      deltawire::DenseEncode(backend, fast, shape.bytes(), shape.width, SIZE_MAX, out);
  Require(bytes > 0, "a valid payload is encoded", backend);
  return Buffer(out.begin(), out.begin() + static_cast<ptrdiff_t>(bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size < 2) return 0;
  const auto backends = TwoBackends(bytes, size);
  Input in(bytes, size);
  const uint8_t head = in.Byte();
  const Shape shape = Shape::Small(head);
  Buffer dense;
  DecodeStatus status;
  if ((head & 32) != 0) {
    const Buffer fast = DescribedDelta(in, shape);
    if (fast.empty()) return 0;
    dense = Encode(*backends[1], shape, fast);
    Require(Decode(*backends[1], shape, dense, &status) == fast, "it decodes again", *backends[1]);
    Damage(in, dense);
  } else {
    dense = in.Take(size);
  }
  DecodeStatus expected_status;
  const Buffer expected = Decode(*backends[0], shape, dense, &expected_status);
  Require(Decode(*backends[1], shape, dense, &status) == expected, "backends agree on the result",
          *backends[1]);
  Require(status == expected_status, "backends agree on what is valid", *backends[1]);
  if (status != DecodeStatus::kOk) return 0;
  Require(Scalar().validate(expected, shape.bytes(), shape.width, nullptr) == DecodeStatus::kOk,
          "a decoded payload validates", *backends[1]);
  Require(Decode(*backends[1], shape, Encode(*backends[1], shape, expected), &status) == expected,
          "encoded and decoded it is itself", *backends[1]);
  return 0;
}
