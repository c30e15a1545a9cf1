// The algorithms of the CUDA kernels, run lane by lane on the CPU, compared with the scalar oracle.
#include <catch2/catch.hpp>

#include "kernels/cuda/place_plan.h"
#include "kernels/cuda/scatter.h"
#include "kernels/element_width.h"
#include "tests/unit/kernels/cuda_emulation.h"

namespace deltawire::kernels::test::cuda_logic_test {
namespace {

const DigestKey& Key() {
  static const DigestKey key(0xc0da);
  return key;
}

void CheckPair(Bytes old_data, Bytes new_data, unsigned width, uint64_t seed) {
  const uint64_t before = Scalar().digest(Key(), old_data);
  const uint64_t after = Scalar().digest(Key(), new_data);
  const Buffer expected = Encode(Scalar(), Key(), old_data, new_data, width);
  WithWidth(width, [&]<typename T>(T) {
    const Emulated e = EmulateEncode<T>(Key(), old_data, new_data, before, seed);
    REQUIRE(e.changed == CountChanged(old_data, new_data, width));
    REQUIRE(e.digest_after == after);
    REQUIRE(e.payload.size() == expected.size());
    REQUIRE(Equal(e.payload, expected));
    if (e.payload.empty()) return;
    AlignedCopy data(old_data);
    uint64_t digest = 0;
    REQUIRE(EmulateApply<T>(Key(), expected, data, before, &digest, seed));
    REQUIRE(Equal(data.bytes(), new_data));
    REQUIRE(digest == after);
  });
}

TEST_CASE("CUDA block algorithms give the oracle's bytes at every width and size and density") {
  const uint64_t seed = 20240611;
  CAPTURE(seed);
  Random random(seed);
  const size_t block = kBlockElements;
  for (const unsigned width : kWidths) {
    for (const size_t elements :
         {size_t{1}, size_t{2}, size_t{7}, size_t{8}, size_t{9}, size_t{31}, size_t{128},
          size_t{129}, size_t{1001}, block - 1, block, block + 1, 2 * block + 777}) {
      Buffer old_data(elements * width), new_data(elements * width);
      old_data.Fill(random);
      for (const double density : {0.0, 0.0001, 0.01, 0.1, 0.5, 1.0}) {
        for (const Change how : kChanges) {
          std::memcpy(new_data.data(), old_data.data(), old_data.size());
          Mutate(new_data, width, density, how, random);
          CAPTURE(width, elements, density, static_cast<int>(how));
          CheckPair(old_data, new_data, width, random.Next());
        }
      }
    }
  }
}

TEST_CASE("CUDA block algorithms take uneven blocks and one changed element anywhere") {
  const uint64_t seed = 5;
  CAPTURE(seed);
  Random random(seed);
  for (const unsigned width : kWidths) {
    const size_t elements = 3 * kBlockElements + 5;
    Buffer old_data(elements * width), new_data(elements * width);
    old_data.Fill(random);
    for (const size_t at : {size_t{0}, size_t{31}, size_t{32}, size_t{127}, size_t{128},
                            kBlockElements - 1, kBlockElements, 3 * kBlockElements, elements - 1}) {
      std::memcpy(new_data.data(), old_data.data(), old_data.size());
      StoreAt(new_data, at, width,
              Changed(LoadAt(old_data, at, width), Change::kAny, width, random));
      CAPTURE(width, at);
      CheckPair(old_data, new_data, width, random.Next());
    }
    // The new bytes have a quiet block, a crowded stretch, a block of noise, and a tail.
    std::memcpy(new_data.data(), old_data.data(), old_data.size());
    Mutate(MutableBytes(new_data).subspan((kBlockElements + 1000) * width, 500 * width), width, 1.0,
           Change::kSmall, random);
    Mutate(MutableBytes(new_data).subspan(2 * kBlockElements * width), width, 0.9, Change::kAny,
           random);
    CAPTURE(width);
    CheckPair(old_data, new_data, width, random.Next());
  }
}

// One block has differences of every length. Their size codes are long, and the lanes must agree on
// where each one ends.
TEST_CASE("CUDA size codes of every length are found by lanes that start anywhere") {
  const uint64_t seed = 77;
  CAPTURE(seed);
  Random random(seed);
  for (const unsigned width : kWidths) {
    for (const unsigned most : {1u, 3u, 8u, 8 * width}) {
      Buffer old_data(kBlockElements * width), new_data(kBlockElements * width);
      old_data.Fill(random);
      for (size_t i = 0; i < kBlockElements; ++i) {
        const uint64_t v = LoadAt(old_data, i, width);
        const unsigned bits = static_cast<unsigned>(random.Below(std::min(most, 8 * width) + 1));
        const uint64_t d = bits == 0 ? 0 : random.Next() >> (64 - bits);
        StoreAt(new_data, i, width, random.Chance(0.5) ? v + d : v - d);
      }
      CAPTURE(width, most);
      CheckPair(old_data, new_data, width, random.Next());
    }
  }
}

TEST_CASE("CUDA decoding of damaged payloads stays within its block") {
  const uint64_t seed = 4711;
  CAPTURE(seed);
  Random random(seed);
  size_t refused = 0;
  for (int round = 0; round < 400; ++round) {
    const unsigned width = kWidths[random.Below(4)];
    const size_t elements = 1 + random.Below(3000);
    Buffer old_data(elements * width), new_data(elements * width);
    old_data.Fill(random);
    std::memcpy(new_data.data(), old_data.data(), old_data.size());
    Mutate(new_data, width, 0.1, kChanges[random.Below(4)], random);
    Buffer payload = Encode(Scalar(), Key(), old_data, new_data, width);
    if (payload.size() < 24) continue;
    const size_t at = 20 + random.Below(payload.size() - 20);
    payload.data()[at] ^= static_cast<std::byte>(1 + random.Below(255));
    CAPTURE(round, width, elements, at);
    const bool valid =
        Scalar().validate(payload, old_data.size(), width, nullptr) == DecodeStatus::kOk;
    WithWidth(width, [&]<typename T>(T) {
      AlignedCopy data(old_data);
      uint64_t digest = 0;
      const bool ok = EmulateApply<T>(Key(), payload, data, Scalar().digest(Key(), old_data),
                                      &digest, random.Next());
      // The digest must follow what was applied, whether or not the payload was sound.
      if (ok) CHECK(digest == Scalar().digest(Key(), data.bytes()));
      if (valid) CHECK(ok);
      refused += !ok;
    });
  }
  CHECK(refused > 50);
}

TEST_CASE("CUDA digest slices sum to the digest") {
  const uint64_t seed = 3;
  CAPTURE(seed);
  Random random(seed);
  for (const size_t bytes : {size_t{1}, size_t{2}, size_t{3}, size_t{4}, size_t{15}, size_t{16},
                             size_t{17}, size_t{16384}, size_t{131071}, size_t{131072},
                             size_t{131089}, size_t{2} << 20, kMaxChunkBytes}) {
    Buffer data(bytes);
    data.Fill(random);
    CAPTURE(bytes);
    CHECK(EmulateDigest(Key(), data) == Scalar().digest(Key(), data));
  }
}

TEST_CASE("CUDA place units cover what the oracle copies") {
  const uint64_t seed = 9;
  CAPTURE(seed);
  Random random(seed);
  for (int round = 0; round < 300; ++round) {
    // The destination is dense, with random dimensions. The source has gaps, and some of its
    // strides are negative.
    StridedCopy copy;
    copy.run_bytes = size_t{1} << random.Below(7);
    if (random.Chance(0.3)) copy.run_bytes += 1 + random.Below(40);
    copy.dims = random.Below(StridedCopy::kMaxDims + 1);
    int64_t src = static_cast<int64_t>(copy.run_bytes), dst = src;
    for (size_t i = copy.dims; i-- > 0;) {
      copy.counts[i] = 1 + random.Below(i < 4 ? 5 : 2);
      src += static_cast<int64_t>(random.Below(3) * copy.run_bytes);
      copy.src_strides[i] = src;
      copy.dst_strides[i] = dst;
      const auto count = static_cast<int64_t>(copy.counts[i]);
      src *= count, dst *= count;
      if (random.Chance(0.3)) {
        copy.src_offset += copy.src_strides[i] * (count - 1);
        copy.src_strides[i] = -copy.src_strides[i];
      }
    }
    Buffer from(static_cast<size_t>(src)), wanted(static_cast<size_t>(dst));
    Buffer placed(static_cast<size_t>(dst));
    from.Fill(random);
    Scalar().place(copy, from, wanted);
    const uint64_t address = round % 3 == 0 ? random.Below(16) : 0;  // of the destination
    const gpu::PlacePlan plan = gpu::PlanPlace(copy, {}, 0, address);
    CAPTURE(round, copy.run_bytes, copy.dims, plan.unit, address);
    for (uint64_t i = 0; plan.shifted_run != 0 && i < plan.units; ++i) {
      const gpu::PlacePiece piece = gpu::PieceOf(plan, i, address);
      REQUIRE(piece.bytes <= 16);
      if (piece.bytes == 16) REQUIRE((address + static_cast<uint64_t>(piece.dst)) % 16 == 0);
      gpu::MovePiece(reinterpret_cast<const uint8_t*>(from.data()) + piece.src,
                     reinterpret_cast<uint8_t*>(placed.data()) + piece.dst, piece.bytes);
    }
    for (uint64_t i = 0; plan.shifted_run == 0 && i < plan.units; ++i) {
      const gpu::PlaceStep step = gpu::PlaceUnit(plan, i);
      REQUIRE(step.src % plan.unit == 0);
      REQUIRE((address + static_cast<uint64_t>(step.dst)) % plan.unit == 0);
      std::memcpy(placed.data() + step.dst, from.data() + step.src, plan.unit);
    }
    REQUIRE(Equal(placed, wanted));
  }
}

TEST_CASE("CUDA conversions give the oracle's bytes aligned or not") {
  const uint64_t seed = 10;
  CAPTURE(seed);
  Random random(seed);
  static constexpr Element kNumbers[] = {Element::kBF16, Element::kF16, Element::kF32};
  for (int round = 0; round < 270; ++round) {
    const Convert convert{kNumbers[round % 3], kNumbers[round / 3 % 3],
                          static_cast<int8_t>(round / 9 % 3 - 1)};
    if (convert.moves_only()) continue;
    const auto from = static_cast<int64_t>(WidthOf(convert.from));
    const auto to = static_cast<int64_t>(WidthOf(convert.to));
    // The destination holds the rows in reverse order. The gaps between rows are no whole elements,
    // so most rows are not aligned.
    const auto elements = static_cast<int64_t>(1 + random.Below(300));
    const auto gap = static_cast<int64_t>(random.Below(4));
    constexpr int64_t kRows = 17;
    StridedCopy copy;
    copy.run_bytes = static_cast<size_t>(elements * to);
    copy.dims = 1;
    copy.counts[0] = kRows;
    copy.src_strides[0] = elements * from + gap;
    copy.dst_strides[0] = -(elements * to + gap);
    copy.dst_offset = -(kRows - 1) * copy.dst_strides[0];
    Buffer src(static_cast<size_t>(kRows * copy.src_strides[0]));
    Buffer wanted(static_cast<size_t>(-kRows * copy.dst_strides[0])), got(wanted.size());
    src.Fill(random);
    Scalar().place_convert(copy, convert, src, wanted);
    const auto address = [](const Buffer& b) { return reinterpret_cast<uintptr_t>(b.data()); };
    const gpu::PlacePlan plan = gpu::PlanPlace(copy, convert, address(src), address(got));
    CAPTURE(round, plan.aligned);
    REQUIRE(plan.units == static_cast<uint64_t>(kRows * elements));
    for (uint64_t i = 0; i < plan.units; ++i) {
      const gpu::PlaceStep step = gpu::PlaceUnit(plan, i);
      gpu::ConvertUnit(plan, reinterpret_cast<const uint8_t*>(src.data()) + step.src,
                       reinterpret_cast<uint8_t*>(got.data()) + step.dst);
    }
    REQUIRE(Equal(got, wanted));
  }
}

TEST_CASE("CUDA scatter finds each byte of a box, and none that it lacks") {
  const uint64_t seed = 91;
  CAPTURE(seed);
  Random random(seed);
  for (int round = 0; round < 300; ++round) {
    gpu::PlaceBox box;
    box.run_bytes = 1 + random.Below(9);
    box.dims = static_cast<uint32_t>(random.Below(4));
    box.first = random.Below(50);
    uint64_t span = box.run_bytes;
    for (uint32_t d = box.dims; d-- > 0;) {  // from the innermost
      box.counts[d] = 2 + random.Below(4);
      // Some strides are beyond 32 bits, for the other division.
      const uint64_t gap = random.Chance(0.1) ? uint64_t{5} << 32 : random.Below(6);
      box.src_strides[d] = span + gap;
      box.dst_strides[d] = static_cast<int64_t>(random.Below(1000)) - 500;
      span += (box.counts[d] - 1) * box.src_strides[d];
    }
    box.last = box.first + span;
    uint8_t origin = 0;
    box.memory = &origin;
    CAPTURE(round, box.dims, box.run_bytes);
    uint64_t runs = 1;
    for (uint32_t d = 0; d < box.dims; ++d) runs *= box.counts[d];
    for (uint64_t run = 0; run < runs; ++run) {
      uint64_t at = box.first, rest = run;
      int64_t place = 0;
      for (uint32_t d = 0; d < box.dims; ++d) {
        const uint64_t digit = rest % box.counts[d];
        rest /= box.counts[d];
        at += digit * box.src_strides[d];
        place += static_cast<int64_t>(digit) * box.dst_strides[d];
      }
      for (uint64_t b = 0; b < box.run_bytes; ++b) {
        REQUIRE(reinterpret_cast<intptr_t>(gpu::PlaceOf(box, at + b)) ==
                reinterpret_cast<intptr_t>(&origin) + place + static_cast<int64_t>(b));
      }
    }
    if (span > 5000) continue;
    uint64_t found = 0;
    for (uint64_t at = 0; at < box.last + 20; ++at) found += gpu::PlaceOf(box, at) != nullptr;
    CHECK(found == runs * box.run_bytes);
  }
}

TEST_CASE("CUDA place of rows behind a tensor of odd size moves 16 bytes at a time") {
  StridedCopy copy;
  copy.run_bytes = 2048;
  copy.dims = 1;
  copy.counts[0] = 5;
  copy.src_strides[0] = 2048;
  copy.dst_strides[0] = 4096;
  for (const uint64_t odd : {1, 2, 6}) {
    const gpu::PlacePlan plan = gpu::PlanPlace(copy, {}, 0, odd);
    uint64_t moved = 0, alone = 0;
    for (uint64_t i = 0; i < plan.units; ++i) {
      const gpu::PlacePiece piece = gpu::PieceOf(plan, i, odd);
      moved += piece.bytes;
      alone += piece.bytes < 16 ? piece.bytes : 0;
    }
    CHECK(moved == 5 * 2048);
    CHECK(alone == 5 * 16);  // both ends of each row
  }
}

TEST_CASE("CUDA place of nothing has no units") {
  StridedCopy copy;
  copy.run_bytes = 16;
  copy.dims = 1;
  CHECK(gpu::PlanPlace(copy, {}, 0, 0).units == 0);
  copy.counts[0] = 3;
  copy.src_strides[0] = copy.dst_strides[0] = 16;
  CHECK(gpu::PlanPlace(copy, {}, 0, 0).units == 3);
  CHECK(gpu::PlanPlace(copy, {}, 8, 0).unit == 8);
  CHECK(gpu::PlanPlace(copy, {}, 8, 0).units == 6);
}

}  // namespace
}  // namespace deltawire::kernels::test::cuda_logic_test
