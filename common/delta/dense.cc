#include "common/delta/dense.h"

#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>

#include "common/base/of_this_thread.h"
#include "kernels/element_width.h"

namespace deltawire {
namespace {

using kernels::Bytes;
using kernels::Codec;
using kernels::DecodeStatus;
using kernels::kDenseHeadBytes;
using kernels::kFormat;
using kernels::MutableBytes;

constexpr int kLevel = 1;

struct Contexts {
  struct Free {
    void operator()(ZSTD_CCtx* c) const { ZSTD_freeCCtx(c); }
    void operator()(ZSTD_DCtx* c) const { ZSTD_freeDCtx(c); }
  };
  std::unique_ptr<ZSTD_CCtx, Free> compress{ZSTD_createCCtx()};
  std::unique_ptr<ZSTD_DCtx, Free> decompress{ZSTD_createDCtx()};
  std::vector<std::byte> differences, planes;
};

Contexts& ThreadContexts() { return OfThisThread<Contexts>(); }

// The kernels below also update a digest, which is unused here, so any key will do.
const kernels::DigestKey& AnyKey() {
  static const kernels::DigestKey key(0);
  return key;
}

// The format's code z of a difference: 0, 1, 2, ... for 0, -1, 1, ...
template <typename T>
T Zigzag(T d) {
  return static_cast<T>(static_cast<T>(d << 1) ^ static_cast<T>(-(d >> (8 * sizeof(T) - 1))));
}
template <typename T>
T Unzigzag(T z) {
  return static_cast<T>((z >> 1) ^ static_cast<T>(-(z & 1)));
}

template <typename T>
void SplitPlanes(const std::byte* differences, size_t n, std::byte* planes) {
  for (size_t i = 0; i < n; ++i) {
    T d;
    std::memcpy(&d, differences + i * sizeof(T), sizeof(T));
    const T z = Zigzag(d);
    for (size_t p = 0; p < sizeof(T); ++p) planes[p * n + i] = static_cast<std::byte>(z >> (8 * p));
  }
}

/// Returns whether any difference is not 0.
template <typename T>
bool JoinPlanes(const std::byte* planes, size_t n, std::byte* differences) {
  T any = 0;
  for (size_t i = 0; i < n; ++i) {
    T z = 0;
    for (size_t p = 0; p < sizeof(T); ++p) {
      z = static_cast<T>(z | static_cast<T>(static_cast<T>(planes[p * n + i]) << (8 * p)));
    }
    any |= z;
    const T d = Unzigzag(z);
    std::memcpy(differences + i * sizeof(T), &d, sizeof(T));
  }
  return any != 0;
}

DecodeStatus CheckHead(Bytes dense, size_t raw_bytes, unsigned width) {
  if (raw_bytes > kernels::kMaxChunkBytes) return DecodeStatus::kTooLarge;
  if (dense.size() < kDenseHeadBytes) return DecodeStatus::kTruncated;
  if (dense[0] != std::byte{kFormat} || dense[1] != static_cast<std::byte>(Codec::kDense) ||
      dense[2] != static_cast<std::byte>(width) || dense[3] != std::byte{0}) {
    return DecodeStatus::kMalformed;
  }
  const Bytes frame = dense.subspan(kDenseHeadBytes);
  const size_t frame_bytes = ZSTD_findFrameCompressedSize(frame.data(), frame.size());
  if (ZSTD_isError(frame_bytes)) {
    return ZSTD_getErrorCode(frame_bytes) == ZSTD_error_srcSize_wrong ? DecodeStatus::kTruncated
                                                                      : DecodeStatus::kMalformed;
  }
  const bool whole = frame_bytes == frame.size();
  // This also rejects skippable frames (size 0) and frames that do not state their content size.
  const bool sized = ZSTD_getFrameContentSize(frame.data(), frame.size()) == raw_bytes;
  return whole && sized && raw_bytes > 0 ? DecodeStatus::kOk : DecodeStatus::kMalformed;
}

}  // namespace

size_t DenseEncode(const kernels::Backend& backend, Bytes fast, size_t raw_bytes, unsigned width,
                   size_t limit, std::vector<std::byte>& out) {
  if (limit <= kDenseHeadBytes) return 0;
  Contexts& t = ThreadContexts();
  // Applying a delta to zeros gives its differences.
  t.differences.assign(raw_bytes, std::byte{0});
  uint64_t digest = 0;
  if (backend.decode_apply(AnyKey(), fast, t.differences, width, 0, &digest) != DecodeStatus::kOk) {
    return 0;
  }
  t.planes.resize(raw_bytes);
  kernels::WithWidth(width, [&](auto zero) {
    SplitPlanes<decltype(zero)>(t.differences.data(), raw_bytes / width, t.planes.data());
  });
  // The room is always the same, because zstd's output depends on it.
  const size_t room = kDenseHeadBytes + ZSTD_compressBound(raw_bytes);
  if (out.size() < room) out.resize(room);
  const size_t frame =
      ZSTD_compressCCtx(t.compress.get(), out.data() + kDenseHeadBytes, room - kDenseHeadBytes,
                        t.planes.data(), raw_bytes, kLevel);
  if (ZSTD_isError(frame) || kDenseHeadBytes + frame >= limit) return 0;
  out[0] = std::byte{kFormat};
  out[1] = static_cast<std::byte>(Codec::kDense);
  out[2] = static_cast<std::byte>(width);
  out[3] = std::byte{0};
  return kDenseHeadBytes + frame;
}

DecodeStatus DenseDecode(const kernels::Backend& backend, Bytes dense, size_t raw_bytes,
                         unsigned width, MutableBytes out, size_t* bytes) {
  *bytes = 0;
  if (const DecodeStatus s = CheckHead(dense, raw_bytes, width); s != DecodeStatus::kOk) return s;
  const Bytes frame = dense.subspan(kDenseHeadBytes);
  Contexts& t = ThreadContexts();
  t.planes.resize(raw_bytes);
  const size_t got = ZSTD_decompressDCtx(t.decompress.get(), t.planes.data(), raw_bytes,
                                         frame.data(), frame.size());
  if (ZSTD_isError(got) || got != raw_bytes) return DecodeStatus::kMalformed;
  // The diff from zeros to the differences is the fast payload.
  t.differences.resize(raw_bytes);
  const bool any = kernels::WithWidth(width, [&](auto zero) {
    return JoinPlanes<decltype(zero)>(t.planes.data(), raw_bytes / width, t.differences.data());
  });
  if (!any) return DecodeStatus::kMalformed;
  std::memset(t.planes.data(), 0, raw_bytes);
  const auto r = backend.diff_encode(AnyKey(), t.planes, t.differences, width, 0, out);
  *bytes = r.bytes;
  return DecodeStatus::kOk;
}

}  // namespace deltawire
