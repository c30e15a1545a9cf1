// A made-up model for the GPU tests: chunks of all widths and awkward sizes, versions of their
// bytes, and the scalar oracle's results for them. Everything follows from the caller's Random. The
// test owns it. Threads: one makes it; any may read it.
#pragma once

#include <catch2/catch.hpp>

#include "kernels/gpu.h"
#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::kernels::test {

class GpuModel {
 public:
  struct Version {
    std::vector<std::byte> data;
    std::vector<uint64_t> digests;  // one per chunk
    Bytes bytes() const { return data; }
  };

  /// Chunks of widths 1, 2, 4 and 8 with sizes around those of blocks, odd tails, gaps between
  /// chunks, and unaligned offsets.
  static GpuModel Mixed(Random& random) {
    GpuModel model;
    uint64_t at = 0;
    for (const size_t elements : {kBlockElements + 1, size_t{1}, size_t{777}, kBlockElements,
                                  2 * kBlockElements - 3, size_t{16}}) {
      for (const unsigned width : kWidths) {
        at = (at + width - 1) / width * width;
        model.chunks_.push_back({at, static_cast<uint32_t>(elements * width), width});
        at += elements * width + random.Below(2) * 5;
      }
    }
    model.Fill(at, random);
    return model;
  }

  /// `count` chunks of a few elements.
  static GpuModel Crumbs(size_t count, Random& random) {
    GpuModel model;
    uint64_t at = 0;
    for (size_t i = 0; i < count; ++i) {
      const unsigned width = kWidths[random.Below(4)];
      const auto bytes = static_cast<uint32_t>((1 + random.Below(40)) * width);
      model.chunks_.push_back({at, bytes, width});
      at += bytes;
    }
    model.Fill(at, random);
    return model;
  }

  const DigestKey& key() const { return *key_; }
  const std::vector<GpuChunk>& chunks() const { return chunks_; }
  const Version& current() const { return current_; }
  std::vector<uint32_t> AllChunks() const {
    std::vector<uint32_t> all(chunks_.size());
    for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
    return all;
  }

  Version Mutated(double density, Change how, Random& random) const {
    Version next = current_;
    for (size_t i = 0; i < chunks_.size(); ++i) {
      const GpuChunk& chunk = chunks_[i];
      Mutate(In(next.data, chunk), chunk.width, density, how, random);
      next.digests[i] = Scalar().digest(*key_, In(next.data, chunk));
    }
    return next;
  }
  void Become(const Version& next) { current_ = next; }
  void Become(const Version& next, const std::vector<uint32_t>& which) {
    for (const uint32_t i : which) {
      std::memcpy(In(current_.data, chunks_[i]).data(), next.data.data() + chunks_[i].offset,
                  chunks_[i].bytes);
      current_.digests[i] = next.digests[i];
    }
  }

  /// Diffs current() against `next` and compares each chunk with the oracle.
  void CheckDiff(GpuDiffer& differ, const Version& next, const std::vector<uint32_t>& which) const {
    CheckEncoded(next, which, [&](const GpuEncoded& encoded) {
      return differ.Diff(current_.data, next.data, which, current_.digests, encoded);
    });
  }
  /// The same of a base on the device, and of `next`'s bytes there.
  void CheckDiffLive(GpuDiffer& differ, const Version& next,
                     const std::vector<uint32_t>& which) const {
    const LiveBytes live(*this, next, which);
    CheckEncoded(next, which,
                 [&](const GpuEncoded& encoded) { return differ.DiffLive(live.pieces, encoded); });
  }
  /// A version's chunks in one block of device memory, at odd multiples of their widths, and every
  /// other one with a gap behind each element.
  struct LiveBytes {
    LiveBytes(const GpuModel& model, const Version& version, const std::vector<uint32_t>& which) {
      constexpr size_t kStep = 16;
      std::vector<std::byte> host;
      copies.reserve(which.size());
      for (const uint32_t i : which) {
        const size_t width = model.chunks_[i].width;
        const size_t at = (host.size() + kStep - 1) / kStep * kStep + width;
        const Bytes bytes = model.At(version, i);
        const size_t step = copies.size() % 2 == 0 ? width : 2 * width;
        host.resize(at + bytes.size() / width * step);
        for (size_t e = 0; e < bytes.size() / width; ++e) {
          std::memcpy(&host[at + e * step], &bytes[e * width], width);
        }
        GpuPiece& piece = copies.emplace_back();
        piece.copy.src_offset = static_cast<int64_t>(at);
        piece.copy.run_bytes = step == width ? bytes.size() : width;
        piece.copy.dims = step == width ? 0 : 1;
        piece.copy.counts[0] = bytes.size() / width;
        piece.copy.src_strides[0] = static_cast<int64_t>(step);
        piece.copy.dst_strides[0] = static_cast<int64_t>(width);
      }
      REQUIRE(GpuBuffer::Create(host.size(), &memory).ok());
      REQUIRE(GpuCopy(memory->bytes(), host).ok());
      for (size_t k = 0; k < which.size(); ++k) {
        copies[k].src = memory->bytes();
        pieces.push_back({which[k], std::span(copies).subspan(k, 1)});
      }
    }
    std::unique_ptr<GpuBuffer> memory;
    std::vector<GpuPiece> copies;
    std::vector<GpuLive> pieces;
  };
  template <typename Diff>
  void CheckEncoded(const Version& next, const std::vector<uint32_t>& which, Diff diff) const {
    std::vector<int> seen(chunks_.size());
    const GpuStatus status = diff([&](uint32_t i, const EncodeResult& result, Bytes payload) {
      ++seen[i];
      const Buffer expected = Payload(i, next);
      CAPTURE(i, chunks_[i].bytes, chunks_[i].width);
      REQUIRE(result.digest_before == current_.digests[i]);
      REQUIRE(result.digest_after == next.digests[i]);
      REQUIRE(result.bytes == payload.size());
      REQUIRE(result.changed == CountChanged(At(current_, i), At(next, i), chunks_[i].width));
      REQUIRE(Equal(payload, expected));
    });
    CAPTURE(status.message);
    REQUIRE(status.ok());
    std::vector<int> wanted(chunks_.size());
    for (const uint32_t i : which) wanted[i] = 1;
    REQUIRE(seen == wanted);
  }

  /// The oracle's payload of each chunk; empty where nothing changed.
  std::vector<std::vector<std::byte>> Payloads(const Version& next) const {
    std::vector<std::vector<std::byte>> all;
    for (uint32_t i = 0; i < chunks_.size(); ++i) {
      const Buffer payload = Payload(i, next);
      all.emplace_back(payload.data(), payload.data() + payload.size());
    }
    return all;
  }
  std::vector<GpuApplyItem> ApplyItems(const std::vector<std::vector<std::byte>>& payloads) const {
    std::vector<GpuApplyItem> items;
    for (uint32_t i = 0; i < chunks_.size(); ++i) {
      if (!payloads[i].empty()) items.push_back({i, payloads[i], current_.digests[i]});
    }
    return items;
  }

  bool SameChunks(Bytes a, Bytes b, const std::vector<uint32_t>& which) const {
    for (const uint32_t i : which) {
      const GpuChunk& c = chunks_[i];
      if (!Equal(a.subspan(c.offset, c.bytes), b.subspan(c.offset, c.bytes))) return false;
    }
    return true;
  }

 private:
  static MutableBytes In(std::vector<std::byte>& data, const GpuChunk& chunk) {
    return MutableBytes(data).subspan(chunk.offset, chunk.bytes);
  }
  Bytes At(const Version& version, uint32_t i) const {
    return version.bytes().subspan(chunks_[i].offset, chunks_[i].bytes);
  }
  Buffer Payload(uint32_t i, const Version& next) const {
    return Encode(Scalar(), *key_, At(current_, i), At(next, i), chunks_[i].width);
  }
  void Fill(uint64_t bytes, Random& random) {
    current_.data.resize(bytes);
    for (std::byte& b : current_.data) b = static_cast<std::byte>(random.Next());
    for (uint32_t i = 0; i < chunks_.size(); ++i) {
      current_.digests.push_back(Scalar().digest(*key_, At(current_, i)));
    }
  }

  std::shared_ptr<const DigestKey> key_ = std::make_shared<DigestKey>(0x6b65);
  std::vector<GpuChunk> chunks_;
  Version current_;
};

}  // namespace deltawire::kernels::test
