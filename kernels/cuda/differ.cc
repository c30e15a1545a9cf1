// The implementation of GpuDiffer: a ring of slabs of chunks. Each slab has its copies in, its
// kernels and its copies out on one stream.
#include <algorithm>

#include "kernels/cuda/slab.h"
#include "kernels/payload.h"
#include "kernels/place_pieces.h"

namespace deltawire::kernels {

using gpu::Aligned;
using gpu::Check;
using gpu::Piece;
using gpu::Slab;

struct GpuDiffer::Impl {
  GpuOptions options;
  std::vector<GpuChunk> chunks;
  gpu::DeviceArray<uint64_t> key;  // words, then multipliers
  gpu::KeyView key_view;
  std::vector<std::unique_ptr<Slab>> slabs;

  // Resident mode: chunk i's base is at base_at[i] in one of `bases`, and has base_digest[i] if
  // known[i]. Those of staged[i] are in one of `host_bases`, and pass through a slab's `before`.
  std::vector<gpu::DeviceArray<uint8_t>> bases;
  std::vector<gpu::PinnedArray<uint8_t>> host_bases;
  std::vector<uint8_t*> base_at;
  std::vector<uint64_t> base_digest;
  std::vector<uint8_t> known, staged;

  bool resident() const { return options.mode == GpuMode::kResident; }

  GpuStatus Make(const DigestKey& digest_key);
  /// Adds chunks, and in resident mode the memory of their base.
  GpuStatus Add(std::span<const GpuChunk> added, GpuHome home);
  /// Sets `at` to new memory for bases.
  GpuStatus MakeBase(uint64_t bytes, GpuHome home, uint8_t** at);
  GpuStatus CheckCall(size_t half_bytes, uint32_t chunk) const;
  GpuStatus CheckLive(std::span<const GpuLive> live, bool with_base) const;

  /// Passes items 0..count through the slabs: `start` queues a slab's work, `finish` receives its
  /// results.
  template <typename ChunkOf, typename Start, typename Finish>
  GpuStatus Run(size_t count, ChunkOf chunk_of, Start start, Finish finish);

  /// Calls f(host offset, slab offset, base, bytes) for each stretch of pieces that are adjacent on
  /// the host, in the slab and in the base. The base is null outside of resident mode.
  template <typename F>
  GpuStatus ForEachStretch(const std::vector<Piece>& pieces, F f) const;

  /// `bring`: queues the copy of the new bytes into the slab.
  template <typename Bring>
  GpuStatus StartDiff(Slab& slab, Bytes before, std::span<const uint64_t> digests, Bring bring);
  GpuStatus BringHalf(Slab& slab, const gpu::DeviceArray<uint8_t>& to, Bytes half);
  GpuStatus BringLive(Slab& slab, std::span<const GpuLive> live);
  /// Queues the part of `piece` that writes `bytes` bytes at `offset` of its destination, to `to`.
  GpuStatus BringPiece(Slab& slab, const GpuPiece& piece, uint64_t offset, uint64_t bytes,
                       uint8_t* to);
  GpuStatus FinishDiff(Slab& slab, const GpuEncoded& encoded);
  template <typename Bring>
  GpuStatus StartDigest(Slab& slab, Bring bring);
  /// The digests of a slab's pieces are there; digest_of(piece) is where one of them goes.
  template <typename DigestOf>
  GpuStatus FinishDigest(Slab& slab, DigestOf digest_of);
  /// Queues the digests of the slab's new bytes, which are on the device.
  GpuStatus QueueDigests(Slab& slab);
  GpuStatus StartApply(Slab& slab, Bytes half, std::span<GpuApplyItem> items);
  GpuStatus FinishApply(Slab& slab, MutableBytes half, std::span<GpuApplyItem> items);
  void QueueBlocks(Slab& slab, const Piece& piece, const GpuApplyItem& item, uint64_t at);
  void DescribeChunks(Slab& slab);
  GpuStatus BringBase(Slab& slab, Bytes before, std::span<const uint64_t> digests);
  GpuStatus AdvanceBase(Slab& slab);
};

GpuStatus GpuDiffer::Impl::Make(const DigestKey& digest_key) {
  constexpr size_t kWords = DigestKey::kWordsPerBlock, kBlocks = DigestKey::kMaxBlocks;
  std::vector<uint64_t> words(digest_key.words(), digest_key.words() + kWords);
  for (size_t b = 0; b < kBlocks; ++b) words.push_back(digest_key.multiplier(b));
  DW_GPU_RETURN_IF_ERROR(key.Make(words.size()));
  DW_GPU_RETURN_IF_ERROR(Check(
      cudaMemcpy(key.data(), words.data(), words.size() * sizeof(words[0]), cudaMemcpyDefault),
      "copying the digest key"));
  key_view = {key.data(), key.data() + kWords};
  return {};
}

GpuStatus GpuDiffer::Impl::MakeBase(uint64_t bytes, GpuHome home, uint8_t** at) {
  if (home == GpuHome::kDevice) {
    gpu::DeviceArray<uint8_t> base;
    DW_GPU_RETURN_IF_ERROR(base.Make(bytes));
    *at = base.data();
    bases.push_back(std::move(base));
    return {};
  }
  for (const auto& slab : slabs) {
    if (slab->before.size() > 0) continue;
    DW_GPU_RETURN_IF_ERROR(slab->before.Make(options.slab_bytes + Slab::kSlack));
  }
  gpu::PinnedArray<uint8_t> base;
  DW_GPU_RETURN_IF_ERROR(base.Make(bytes));
  *at = base.data();
  host_bases.push_back(std::move(base));
  return {};
}

GpuStatus GpuDiffer::Impl::Add(std::span<const GpuChunk> added, GpuHome home) {
  for (const GpuChunk& chunk : added) {
    if (chunk.bytes == 0 || !SizesAllowed(chunk.bytes, chunk.width)) {
      return {GpuError::kArgument, "a chunk of " + std::to_string(chunk.bytes) +
                                       " bytes in elements of " + std::to_string(chunk.width)};
    }
  }
  if (resident()) {
    uint64_t bytes = Slab::kSlack;
    for (const GpuChunk& chunk : added) bytes += Aligned(chunk.bytes);
    uint8_t* at = nullptr;
    DW_GPU_RETURN_IF_ERROR(MakeBase(bytes, home, &at));
    for (const GpuChunk& chunk : added) {
      base_at.push_back(at);
      at += Aligned(chunk.bytes);
    }
  }
  chunks.insert(chunks.end(), added.begin(), added.end());
  base_digest.resize(base_at.size());
  known.resize(base_at.size());
  staged.resize(base_at.size(), home == GpuHome::kHost);
  return {};
}

GpuStatus GpuDiffer::Impl::CheckCall(size_t half_bytes, uint32_t chunk) const {
  if (chunk >= chunks.size()) {
    return {GpuError::kArgument, "there is no chunk " + std::to_string(chunk)};
  }
  const GpuChunk& c = chunks[chunk];
  if (c.offset > half_bytes || half_bytes - c.offset < c.bytes) {
    return {GpuError::kArgument,
            "chunk " + std::to_string(chunk) + " lies outside of the half that was given"};
  }
  return {};
}

GpuStatus GpuDiffer::Impl::CheckLive(std::span<const GpuLive> live, bool with_base) const {
  if (!resident()) return {GpuError::kArgument, "there is no base on the device"};
  for (const GpuLive& piece : live) {
    DW_GPU_RETURN_IF_ERROR(CheckCall(SIZE_MAX, piece.chunk));
    if (with_base && !known[piece.chunk]) {
      return {GpuError::kArgument,
              "the device does not hold the base of chunk " + std::to_string(piece.chunk)};
    }
  }
  return {};
}

template <typename ChunkOf, typename Start, typename Finish>
GpuStatus GpuDiffer::Impl::Run(size_t count, ChunkOf chunk_of, Start start, Finish finish) {
  const gpu::OnDevice here(options.device);
  DW_GPU_RETURN_IF_ERROR(here.status());
  const auto drain = [&](Slab& slab) -> GpuStatus {
    if (slab.empty()) return {};
    DW_GPU_RETURN_IF_ERROR(slab.stream.Wait());
    DW_GPU_RETURN_IF_ERROR(finish(slab));
    slab.Clear();
    return {};
  };
  const auto work = [&]() -> GpuStatus {
    size_t turn = 0;
    for (size_t item = 0; item < count; ++turn) {
      Slab& slab = *slabs[turn % slabs.size()];
      DW_GPU_RETURN_IF_ERROR(drain(slab));
      for (; item < count && slab.HasRoom(chunks[chunk_of(item)]); ++item) {
        slab.Take(chunk_of(item), item, chunks[chunk_of(item)]);
      }
      DW_GPU_RETURN_IF_ERROR(start(slab));
    }
    for (size_t i = 0; i < slabs.size(); ++i, ++turn) {
      DW_GPU_RETURN_IF_ERROR(drain(*slabs[turn % slabs.size()]));
    }
    return {};
  };
  GpuStatus status = work();
  if (status.ok()) return status;
  // After an error all queued work must end, and the content of the base is unknown.
  for (const auto& slab : slabs) {
    (void)slab->stream.Wait();
    slab->Clear();
  }
  std::fill(known.begin(), known.end(), 0);
  return status;
}

template <typename F>
GpuStatus GpuDiffer::Impl::ForEachStretch(const std::vector<Piece>& pieces, F f) const {
  for (size_t first = 0; first < pieces.size();) {
    const GpuChunk& head = chunks[pieces[first].chunk];
    uint64_t bytes = head.bytes;
    size_t last = first + 1;
    for (; last < pieces.size(); ++last) {
      const uint32_t chunk = pieces[last].chunk;
      if (chunk != pieces[last - 1].chunk + 1 || chunks[chunk].offset != head.offset + bytes) break;
      if (pieces[last].at != pieces[first].at + bytes) break;
      if (resident() && base_at[chunk] != base_at[pieces[first].chunk] + bytes) break;
      bytes += chunks[chunk].bytes;
    }
    uint8_t* const base = resident() ? base_at[pieces[first].chunk] : nullptr;
    DW_GPU_RETURN_IF_ERROR(f(head.offset, pieces[first].at, base, bytes));
    first = last;
  }
  return {};
}

void GpuDiffer::Impl::DescribeChunks(Slab& slab) {
  uint32_t blocks = 0;
  for (size_t i = 0; i < slab.pieces.size(); ++i) {
    const Piece& piece = slab.pieces[i];
    const GpuChunk& chunk = chunks[piece.chunk];
    gpu::DeviceChunk d;
    const bool on_device = resident() && !staged[piece.chunk];
    d.before = on_device ? base_at[piece.chunk] : slab.before.data() + piece.at;
    d.after = slab.after.data() + piece.at;
    d.slot = reinterpret_cast<uint32_t*>(slab.slots.data() + piece.at);
    d.bytes = chunk.bytes;
    d.width = chunk.width;
    d.first_block = blocks;
    d.blocks = gpu::BlocksOf(chunk);
    slab.host_chunks[i] = d;
    for (uint32_t b = 0; b < d.blocks; ++b) {
      slab.host_blocks[blocks++] = {static_cast<uint32_t>(i), b};
    }
  }
}

GpuStatus GpuDiffer::Impl::BringBase(Slab& slab, Bytes before, std::span<const uint64_t> digests) {
  std::vector<Piece> missing, on_host;
  for (const Piece& piece : slab.pieces) {
    if (staged[piece.chunk]) {
      on_host.push_back(piece);
    } else if (!known[piece.chunk] || base_digest[piece.chunk] != digests[piece.chunk]) {
      missing.push_back(piece);
    }
  }
  DW_GPU_RETURN_IF_ERROR(
      ForEachStretch(missing, [&](uint64_t host, uint64_t, uint8_t* base, uint64_t bytes) {
        return slab.stream.Copy(base, before.data() + host, bytes);
      }));
  return ForEachStretch(on_host, [&](uint64_t, uint64_t at, uint8_t* base, uint64_t bytes) {
    return slab.stream.Copy(slab.before.data() + at, base, bytes);
  });
}

GpuStatus GpuDiffer::Impl::AdvanceBase(Slab& slab) {
  return ForEachStretch(slab.pieces, [&](uint64_t, uint64_t at, uint8_t* base, uint64_t bytes) {
    return slab.stream.Copy(base, slab.after.data() + at, bytes);
  });
}

GpuStatus GpuDiffer::Impl::BringHalf(Slab& slab, const gpu::DeviceArray<uint8_t>& to, Bytes half) {
  return ForEachStretch(slab.pieces, [&](uint64_t host, uint64_t at, uint8_t*, uint64_t bytes) {
    return slab.stream.Copy(to.data() + at, half.data() + host, bytes);
  });
}

GpuStatus GpuDiffer::Impl::BringLive(Slab& slab, std::span<const GpuLive> live) {
  const std::vector<Piece>& pieces = slab.pieces;
  for (size_t first = 0; first < pieces.size();) {
    const GpuLive& head = live[pieces[first].item];
    uint64_t bytes = chunks[head.chunk].bytes;
    size_t last = first + 1;
    for (; last < pieces.size(); ++last) {
      const GpuLive& next = live[pieces[last].item];
      if (next.pieces.data() != head.pieces.data() || next.offset != head.offset + bytes) break;
      if (pieces[last].at != pieces[first].at + bytes) break;
      bytes += chunks[next.chunk].bytes;
    }
    for (const GpuPiece& piece : head.pieces) {
      DW_GPU_RETURN_IF_ERROR(
          BringPiece(slab, piece, head.offset, bytes, slab.after.data() + pieces[first].at));
    }
    first = last;
  }
  return {};
}

GpuStatus GpuDiffer::Impl::BringPiece(Slab& slab, const GpuPiece& piece, uint64_t offset,
                                      uint64_t bytes, uint8_t* to) {
  const auto* from = reinterpret_cast<const uint8_t*>(piece.src.data());
  for (StridedCopy copy : ClipCopy(piece.copy, piece.convert, offset, offset + bytes)) {
    copy.dst_offset -= static_cast<int64_t>(offset);
    DW_GPU_RETURN_IF_ERROR(gpu::QueuePlace(copy, piece.convert, from, to, slab.stream));
  }
  return {};
}

GpuStatus GpuDiffer::Impl::QueueDigests(Slab& slab) {
  const size_t n = slab.pieces.size();
  const auto& stream = slab.stream;
  DW_GPU_RETURN_IF_ERROR(
      Check(cudaMemsetAsync(slab.digests.data(), 0, n * sizeof(uint64_t), stream.get()),
            "clearing the digests"));
  DW_GPU_RETURN_IF_ERROR(gpu::Start("starting a digest", [&] {
    gpu::LaunchDigest(slab.chunks.data(), static_cast<uint32_t>(n), key_view, slab.digests.data(),
                      stream.get());
  }));
  return stream.Copy(slab.host_digests.data(), slab.digests.data(), n * sizeof(uint64_t));
}

template <typename Bring>
GpuStatus GpuDiffer::Impl::StartDiff(Slab& slab, Bytes before, std::span<const uint64_t> digests,
                                     Bring bring) {
  DescribeChunks(slab);
  for (size_t i = 0; i < slab.pieces.size(); ++i) {
    slab.host_chunks[i].digest_before = digests[slab.pieces[i].chunk];
  }
  const size_t n = slab.pieces.size();
  const auto& stream = slab.stream;
  if (resident()) DW_GPU_RETURN_IF_ERROR(BringBase(slab, before, digests));
  if (!resident()) DW_GPU_RETURN_IF_ERROR(BringHalf(slab, slab.before, before));
  DW_GPU_RETURN_IF_ERROR(bring(slab));
  DW_GPU_RETURN_IF_ERROR(
      stream.Copy(slab.chunks.data(), slab.host_chunks.data(), n * sizeof(gpu::DeviceChunk)));
  DW_GPU_RETURN_IF_ERROR(stream.Copy(slab.blocks.data(), slab.host_blocks.data(),
                                     slab.blocks_used * sizeof(gpu::DeviceBlock)));
  gpu::EncodeBatch batch;
  batch.chunks = slab.chunks.data();
  batch.blocks = slab.blocks.data();
  batch.chunk_count = static_cast<uint32_t>(n);
  batch.block_count = slab.blocks_used;
  batch.rows = slab.rows.data();
  batch.stream_at = slab.stream_at.data();
  batch.plans = slab.plans.data();
  batch.results = slab.results.data();
  batch.out = slab.payloads.data();
  batch.key = key_view;
  DW_GPU_RETURN_IF_ERROR(
      gpu::Start("starting a diff", [&] { gpu::LaunchEncode(batch, stream.get()); }));
  DW_GPU_RETURN_IF_ERROR(
      stream.Copy(slab.host_results.data(), slab.results.data(), n * sizeof(gpu::ChunkOut)));
  DW_GPU_RETURN_IF_ERROR(QueueDigests(slab));
  return resident() ? AdvanceBase(slab) : GpuStatus{};
}

GpuStatus GpuDiffer::Impl::FinishDiff(Slab& slab, const GpuEncoded& encoded) {
  const gpu::ChunkOut& last = slab.host_results[slab.pieces.size() - 1];
  DW_GPU_RETURN_IF_ERROR(
      slab.stream.Copy(slab.host_payloads.data(), slab.payloads.data(), last.offset + last.bytes));
  DW_GPU_RETURN_IF_ERROR(slab.stream.Wait());
  const auto* payloads = reinterpret_cast<const std::byte*>(slab.host_payloads.data());
  for (size_t i = 0; i < slab.pieces.size(); ++i) {
    const gpu::ChunkOut& out = slab.host_results[i];
    const uint32_t chunk = slab.pieces[i].chunk;
    const uint64_t digest = slab.host_digests[i];
    if (resident()) {
      base_digest[chunk] = digest;
      known[chunk] = 1;
    }
    // The growth of the digest is right even if the given old digest is wrong. So subtracting it
    // from the new bytes' digest gives the digest of the old bytes that the device read.
    const uint64_t growth = out.digest_after - slab.host_chunks[i].digest_before;
    encoded(chunk, {out.changed, out.digest_after, out.bytes, digest - growth},
            Bytes(payloads + out.offset, out.bytes));
  }
  return {};
}

template <typename Bring>
GpuStatus GpuDiffer::Impl::StartDigest(Slab& slab, Bring bring) {
  DescribeChunks(slab);
  DW_GPU_RETURN_IF_ERROR(bring(slab));
  DW_GPU_RETURN_IF_ERROR(slab.stream.Copy(slab.chunks.data(), slab.host_chunks.data(),
                                          slab.pieces.size() * sizeof(gpu::DeviceChunk)));
  DW_GPU_RETURN_IF_ERROR(QueueDigests(slab));
  return resident() ? AdvanceBase(slab) : GpuStatus{};
}

template <typename DigestOf>
GpuStatus GpuDiffer::Impl::FinishDigest(Slab& slab, DigestOf digest_of) {
  for (size_t i = 0; i < slab.pieces.size(); ++i) {
    const uint32_t chunk = slab.pieces[i].chunk;
    digest_of(slab.pieces[i]) = slab.host_digests[i];
    if (!resident()) continue;
    base_digest[chunk] = slab.host_digests[i];
    known[chunk] = 1;
  }
  return {};
}

void GpuDiffer::Impl::QueueBlocks(Slab& slab, const Piece& piece, const GpuApplyItem& item,
                                  uint64_t at) {
  const GpuChunk& chunk = chunks[piece.chunk];
  const auto place = static_cast<uint32_t>(&piece - slab.pieces.data());
  const PayloadView view = PayloadView::Parsed(item.payload, chunk.bytes, chunk.width);
  gpu::ApplyBlockIn* blocks = &slab.host_apply_in[slab.host_chunks[place].first_block];
  BlockCursor cursor(view);
  for (uint32_t b = 0; b < view.blocks(); ++b, cursor.Next()) {
    const BlockRow& row = cursor.row();
    gpu::ApplyBlockIn in;
    in.stream_at = at + static_cast<uint64_t>(cursor.stream() - Ptr(item.payload));
    in.chunk = place;
    in.index = b;
    in.changed = row.changed;
    in.large = row.large;
    in.bytes = row.bytes;
    blocks[b] = in;
  }
}

GpuStatus GpuDiffer::Impl::StartApply(Slab& slab, Bytes half, std::span<GpuApplyItem> items) {
  DescribeChunks(slab);
  const auto& stream = slab.stream;
  uint64_t at = 0;
  for (size_t i = 0; i < slab.pieces.size(); ++i) {
    const Piece& piece = slab.pieces[i];
    if (resident()) {
      slab.host_chunks[i].after = base_at[piece.chunk];
      known[piece.chunk] = 0;
    }
    const GpuApplyItem& item = items[piece.item];
    std::memcpy(slab.host_payloads.data() + at, item.payload.data(), item.payload.size());
    QueueBlocks(slab, piece, item, at);
    at += Aligned(item.payload.size());
  }
  if (!resident()) {
    DW_GPU_RETURN_IF_ERROR(BringHalf(slab, slab.after, half));
  }
  DW_GPU_RETURN_IF_ERROR(stream.Copy(slab.payloads.data(), slab.host_payloads.data(), at));
  DW_GPU_RETURN_IF_ERROR(stream.Copy(slab.chunks.data(), slab.host_chunks.data(),
                                     slab.pieces.size() * sizeof(gpu::DeviceChunk)));
  DW_GPU_RETURN_IF_ERROR(stream.Copy(slab.apply_in.data(), slab.host_apply_in.data(),
                                     slab.blocks_used * sizeof(gpu::ApplyBlockIn)));
  gpu::ApplyBatch batch;
  batch.chunks = slab.chunks.data();
  batch.blocks = slab.apply_in.data();
  batch.block_count = slab.blocks_used;
  batch.payloads = slab.payloads.data();
  batch.results = slab.apply_out.data();
  batch.key = key_view;
  DW_GPU_RETURN_IF_ERROR(
      gpu::Start("starting to apply", [&] { gpu::LaunchApply(batch, stream.get()); }));
  return stream.Copy(slab.host_apply_out.data(), slab.apply_out.data(),
                     slab.blocks_used * sizeof(gpu::ApplyBlockOut));
}

GpuStatus GpuDiffer::Impl::FinishApply(Slab& slab, MutableBytes half,
                                       std::span<GpuApplyItem> items) {
  for (size_t i = 0; i < slab.pieces.size(); ++i) {
    const Piece& piece = slab.pieces[i];
    GpuApplyItem& item = items[piece.item];
    const gpu::DeviceChunk& chunk = slab.host_chunks[i];
    item.digest_after = item.digest_before;
    for (uint32_t b = chunk.first_block; b < chunk.first_block + chunk.blocks; ++b) {
      item.digest_after += slab.host_apply_out[b].digest;
      if (slab.host_apply_out[b].ok == 0) item.status = DecodeStatus::kMalformed;
    }
    if (resident() && item.status == DecodeStatus::kOk) {
      base_digest[piece.chunk] = item.digest_after;
      known[piece.chunk] = 1;
    }
  }
  if (resident()) return {};
  DW_GPU_RETURN_IF_ERROR(
      ForEachStretch(slab.pieces, [&](uint64_t host, uint64_t at, uint8_t*, uint64_t bytes) {
        return slab.stream.Copy(half.data() + host, slab.after.data() + at, bytes);
      }));
  return slab.stream.Wait();
}

GpuDiffer::GpuDiffer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GpuDiffer::~GpuDiffer() = default;

GpuStatus GpuDiffer::Create(const GpuOptions& options, const DigestKey& key,
                            std::span<const GpuChunk> chunks, std::unique_ptr<GpuDiffer>* differ) {
  GpuInfo info;
  DW_GPU_RETURN_IF_ERROR(FindGpu(options.device, &info));
  if (options.slabs == 0 || options.slab_bytes < kMaxChunkBytes ||
      options.slab_bytes % gpu::kAlign != 0) {
    return {GpuError::kArgument, "a slab must hold the largest chunk and be a multiple of 16"};
  }
  const gpu::OnDevice here(options.device);
  DW_GPU_RETURN_IF_ERROR(here.status());
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  DW_GPU_RETURN_IF_ERROR(impl->Make(key));
  DW_GPU_RETURN_IF_ERROR(impl->Add(chunks, GpuHome::kDevice));
  for (size_t i = 0; i < options.slabs; ++i) {
    impl->slabs.push_back(std::make_unique<Slab>());
    DW_GPU_RETURN_IF_ERROR(impl->slabs.back()->Make(options.slab_bytes, !impl->resident()));
  }
  differ->reset(new GpuDiffer(std::move(impl)));
  return {};
}

GpuStatus GpuDiffer::Diff(Bytes before, Bytes after, std::span<const uint32_t> which,
                          std::span<const uint64_t> digests_before, const GpuEncoded& encoded) {
  if (digests_before.size() != impl_->chunks.size()) {
    return {GpuError::kArgument, "a diff needs one digest a chunk"};
  }
  for (const uint32_t chunk : which) {
    DW_GPU_RETURN_IF_ERROR(impl_->CheckCall(std::min(before.size(), after.size()), chunk));
  }
  return impl_->Run(
      which.size(), [&](size_t item) { return which[item]; },
      [&](Slab& slab) {
        return impl_->StartDiff(slab, before, digests_before,
                                [&](Slab& to) { return impl_->BringHalf(to, to.after, after); });
      },
      [&](Slab& slab) { return impl_->FinishDiff(slab, encoded); });
}

GpuStatus GpuDiffer::Digest(Bytes half, std::span<const uint32_t> which,
                            std::span<uint64_t> digests) {
  if (digests.size() != impl_->chunks.size()) {
    return {GpuError::kArgument, "room for one digest a chunk is needed"};
  }
  for (const uint32_t chunk : which) DW_GPU_RETURN_IF_ERROR(impl_->CheckCall(half.size(), chunk));
  return impl_->Run(
      which.size(), [&](size_t item) { return which[item]; },
      [&](Slab& slab) {
        return impl_->StartDigest(slab,
                                  [&](Slab& to) { return impl_->BringHalf(to, to.after, half); });
      },
      [&](Slab& slab) {
        return impl_->FinishDigest(
            slab, [&](const Piece& piece) -> uint64_t& { return digests[piece.chunk]; });
      });
}

GpuStatus GpuDiffer::Add(std::span<const GpuChunk> chunks, GpuHome home) {
  const gpu::OnDevice here(impl_->options.device);
  DW_GPU_RETURN_IF_ERROR(here.status());
  return impl_->Add(chunks, home);
}

GpuStatus GpuDiffer::Adopt(std::span<const GpuLive> live, std::span<uint64_t> digests) {
  DW_GPU_RETURN_IF_ERROR(impl_->CheckLive(live, false));
  if (digests.size() != live.size()) {
    return {GpuError::kArgument, "room for one digest of each live chunk is needed"};
  }
  return impl_->Run(
      live.size(), [&](size_t item) { return live[item].chunk; },
      [&](Slab& slab) {
        return impl_->StartDigest(slab, [&](Slab& to) { return impl_->BringLive(to, live); });
      },
      [&](Slab& slab) {
        return impl_->FinishDigest(
            slab, [&](const Piece& piece) -> uint64_t& { return digests[piece.item]; });
      });
}

GpuStatus GpuDiffer::DiffLive(std::span<const GpuLive> live, const GpuEncoded& encoded) {
  DW_GPU_RETURN_IF_ERROR(impl_->CheckLive(live, true));
  return impl_->Run(
      live.size(), [&](size_t item) { return live[item].chunk; },
      [&](Slab& slab) {
        return impl_->StartDiff(slab, {}, impl_->base_digest,
                                [&](Slab& to) { return impl_->BringLive(to, live); });
      },
      [&](Slab& slab) { return impl_->FinishDiff(slab, encoded); });
}

GpuStatus GpuDiffer::Apply(MutableBytes half, std::span<GpuApplyItem> items) {
  const size_t half_bytes = impl_->resident() ? SIZE_MAX : half.size();
  std::vector<size_t> sound;
  for (size_t i = 0; i < items.size(); ++i) {
    GpuApplyItem& item = items[i];
    DW_GPU_RETURN_IF_ERROR(impl_->CheckCall(half_bytes, item.chunk));
    const GpuChunk& chunk = impl_->chunks[item.chunk];
    if (impl_->resident() &&
        (!impl_->known[item.chunk] || impl_->base_digest[item.chunk] != item.digest_before)) {
      return {GpuError::kArgument, "the device does not hold the base of chunk " +
                                       std::to_string(item.chunk) + "; bring it by Digest"};
    }
    PayloadView view;
    item.status = PayloadView::Parse(item.payload, chunk.bytes, chunk.width, &view);
    if (item.status == DecodeStatus::kOk) sound.push_back(i);
  }
  std::vector<GpuApplyItem> queue;
  for (const size_t i : sound) queue.push_back(items[i]);
  DW_GPU_RETURN_IF_ERROR(impl_->Run(
      queue.size(), [&](size_t item) { return queue[item].chunk; },
      [&](Slab& slab) { return impl_->StartApply(slab, half, queue); },
      [&](Slab& slab) { return impl_->FinishApply(slab, half, queue); }));
  for (size_t i = 0; i < sound.size(); ++i) items[sound[i]] = queue[i];
  return {};
}

GpuStatus GpuDiffer::ReadBase(MutableBytes half, std::span<const uint32_t> which) {
  if (!impl_->resident()) return {GpuError::kArgument, "there is no base on the device"};
  const gpu::OnDevice here(impl_->options.device);
  DW_GPU_RETURN_IF_ERROR(here.status());
  for (const uint32_t i : which) {
    DW_GPU_RETURN_IF_ERROR(impl_->CheckCall(half.size(), i));
    const GpuChunk& chunk = impl_->chunks[i];
    const auto* from = reinterpret_cast<const std::byte*>(impl_->base_at[i]);
    DW_GPU_RETURN_IF_ERROR(GpuCopy(half.subspan(chunk.offset, chunk.bytes), {from, chunk.bytes}));
  }
  return {};
}

uint64_t GpuDiffer::device_bytes() const {
  uint64_t bytes = 0;
  for (const auto& base : impl_->bases) bytes += base.size();
  for (const auto& slab : impl_->slabs) bytes += slab->device_bytes();
  return bytes;
}

}  // namespace deltawire::kernels
