// A tensor in chunks, some versions of it, and an engine's memory on a GPU that has parts of it:
// the upper rows as they are, the lower rows' right halves transposed, and their left halves twice.
// All follows from the caller's Random. The test owns it. Threads: one. Errors end the test.
#pragma once

#include <catch2/catch.hpp>

#include "kernels/gpu_scatter.h"
#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::kernels::test {

inline void RequireGpu(const GpuStatus& status) {
  CAPTURE(status.message);
  REQUIRE(status.ok());
}

class ScatterModel {
 public:
  static constexpr size_t kRows = 96, kColumns = 700;
  /// Elements of a chunk: no whole rows.
  static constexpr size_t kChunkElements = 20011;

  ScatterModel(unsigned width, size_t versions, double density, Change how, Random& random)
      : width_(width) {
    Buffer tensor(kRows * kColumns * width);
    tensor.Fill(random);
    for (size_t v = 0; v <= versions; ++v) {
      versions_.push_back(Copy(tensor));
      Mutate(tensor, width, density, how, random);
    }
    for (size_t v = 0; v < versions; ++v) Diff(v);
    for (size_t v = 0; v <= versions; ++v) memory_.push_back(MemoryOf(v));
    RequireGpu(GpuBuffer::Create(memory_[0].size(), &device_));
    RequireGpu(GpuCopy(device_->bytes(), memory_[0]));
  }

  /// A box that nothing uses, and then the tensor's.
  std::vector<GpuBox> boxes() const {
    std::vector<GpuBox> boxes = {{device_->bytes().data(), StridedCopy{.run_bytes = width_}}};
    for (const StridedCopy& copy : copies()) boxes.push_back({device_->bytes().data(), copy});
    return boxes;
  }
  /// What leads over `count` versions, or all. REQUIRES: each of them changes each chunk, or all.
  std::vector<GpuScatterItem> items(size_t first = 0, size_t count = 0) const {
    std::vector<GpuScatterItem> items;
    for (size_t c = 0; c < payloads_.size(); ++c) {
      const std::span<const Bytes> chain(payloads_[c]);
      items.push_back({.first_byte = c * kChunkElements * width_,
                       .bytes = static_cast<uint32_t>(ChunkOf(0, c).size()),
                       .width = width_,
                       .first_box = 1,
                       .boxes = static_cast<uint32_t>(copies().size()),
                       .payloads = chain.subspan(first, count == 0 ? chain.size() : count)});
    }
    return items;
  }
  /// Whether the device's memory is that of a version, bit by bit, with all that surrounds it.
  bool Holds(size_t version) const {
    std::vector<std::byte> now(memory_[0].size());
    RequireGpu(GpuCopy(now, device_->bytes()));
    return now == memory_[version];
  }

 private:
  static std::vector<std::byte> Copy(Bytes bytes) { return {bytes.begin(), bytes.end()}; }

  std::vector<StridedCopy> copies() const {
    const auto w = static_cast<int64_t>(width_);
    const auto columns = static_cast<int64_t>(kColumns), upper = static_cast<int64_t>(kRows / 2);
    const int64_t half = columns / 2, lower = static_cast<int64_t>(kRows) - upper;
    StridedCopy plain{
        .src_offset = 0, .dst_offset = 64, .run_bytes = static_cast<size_t>(upper * columns * w)};
    StridedCopy turned{.src_offset = (upper * columns + half) * w,
                       .dst_offset = 64 + upper * columns * w + 16,
                       .run_bytes = width_,
                       .dims = 2,
                       // The tensor's columns come first, so the boxes must put them in order.
                       .counts = {static_cast<uint64_t>(half), static_cast<uint64_t>(lower)},
                       .src_strides = {w, columns * w},
                       .dst_strides = {lower * w, w}};
    StridedCopy left{.src_offset = upper * columns * w,
                     .dst_offset = turned.dst_offset + half * lower * w + 32,
                     .run_bytes = static_cast<size_t>(half * w),
                     .dims = 1,
                     .counts = {static_cast<uint64_t>(lower)},
                     .src_strides = {columns * w},
                     .dst_strides = {(half + 8) * w}};
    StridedCopy again = left;
    again.dst_offset += lower * (half + 8) * w + 8;
    return {plain, turned, left, again};
  }

  std::vector<std::byte> MemoryOf(size_t version) const {
    const size_t bytes = 3 * versions_[0].size() + 4096;
    std::vector<std::byte> memory(bytes, std::byte{0x5a});
    for (const StridedCopy& copy : copies()) {
      Scalar().place(copy, versions_[version], memory);
    }
    return memory;
  }

  Bytes ChunkOf(size_t version, size_t chunk) const {
    const size_t at = chunk * kChunkElements * width_;
    const Bytes all(versions_[version]);
    return all.subspan(at, std::min(kChunkElements * width_, all.size() - at));
  }

  void Diff(size_t version) {
    static const DigestKey key(7);
    const size_t chunks = (kRows * kColumns + kChunkElements - 1) / kChunkElements;
    payloads_.resize(chunks);
    for (size_t c = 0; c < chunks; ++c) {
      encoded_.push_back(
          Encode(Scalar(), key, ChunkOf(version, c), ChunkOf(version + 1, c), width_));
      if (encoded_.back().size() > 0) payloads_[c].push_back(encoded_.back());
    }
  }

  const unsigned width_;
  std::vector<std::vector<std::byte>> versions_, memory_;
  std::vector<Buffer> encoded_;
  std::vector<std::vector<Bytes>> payloads_;  // by chunk
  std::unique_ptr<GpuBuffer> device_;
};

}  // namespace deltawire::kernels::test
