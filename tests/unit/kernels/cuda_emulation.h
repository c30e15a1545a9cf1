// Does the CUDA kernels' work on the CPU, with the same block algorithms. The lanes run one after
// the other in a seeded random order, so a lane that relied on another's unfinished work would give
// other bytes. Not thread-safe; allocates freely.
#pragma once

#include <array>
#include <numeric>

#include "kernels/cuda/block_decode.h"
#include "kernels/cuda/block_encode.h"
#include "kernels/cuda/digest.h"
#include "kernels/cuda/table.h"
#include "kernels/payload.h"
#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::kernels::test {

/// The Team of kernels/cuda/team.h whose lanes run one after the other.
class SerialTeam {
 public:
  explicit SerialTeam(uint64_t seed) : random_(seed) {
    std::iota(order_.begin(), order_.end(), 0);
    for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random_.Below(i)]);
  }
  template <typename T>
  using PerLane = std::array<T, gpu::kLanes>;

  template <typename F>
  void Each(F f) {
    // An odd step visits all lanes. Each phase starts at another lane.
    const size_t start = random_.Below(gpu::kLanes), step = 2 * random_.Below(gpu::kLanes / 2) + 1;
    for (size_t i = 0; i < gpu::kLanes; ++i) f(order_[(start + i * step) % gpu::kLanes]);
  }
  template <typename T>
  T Share(const T& shared) {
    return shared;
  }
  template <typename T>
  T ExclusiveScan(PerLane<T>& values) {
    T total{};
    for (T& v : values) {
      const T before = total;
      total = T::Combine(total, v);
      v = before;
    }
    return total;
  }

 private:
  Random random_;
  std::array<uint32_t, gpu::kLanes> order_;
};

inline gpu::KeyView ViewOf(const DigestKey& key) { return {key.words(), key.multipliers()}; }

/// A copy of some bytes that begins at a multiple of 16 and has room for whole words at its end.
class AlignedCopy {
 public:
  explicit AlignedCopy(Bytes bytes) : words_(bytes.size() / 16 + 2), size_(bytes.size()) {
    std::memset(words_.data(), 0xee, words_.size() * sizeof(Quad));
    if (!bytes.empty()) std::memcpy(words_.data(), bytes.data(), bytes.size());
  }
  uint8_t* data() { return words_.data()->bytes; }
  size_t size() const { return size_; }
  Bytes bytes() { return {reinterpret_cast<const std::byte*>(data()), size_}; }

 private:
  struct alignas(16) Quad {
    uint8_t bytes[16];
  };
  std::vector<Quad> words_;
  size_t size_;
};

struct Emulated {
  std::vector<std::byte> payload;
  uint64_t changed = 0;
  uint64_t digest_after = 0;
};

template <typename T>
Emulated EmulateEncode(const DigestKey& key, Bytes old_data, Bytes new_data, uint64_t digest_before,
                       uint64_t seed) {
  AlignedCopy o(old_data), n(new_data);
  const gpu::KeyView view = ViewOf(key);
  const auto elements = static_cast<uint32_t>(old_data.size() / sizeof(T));
  const uint32_t blocks = (elements + gpu::kBlock - 1) / gpu::kBlock;
  std::vector<uint32_t> slots(old_data.size() / 4 + 4, 0xabababab);
  std::vector<gpu::BlockOut> rows;
  gpu::RowSummary sum;
  Emulated result;
  result.digest_after = digest_before;
  SerialTeam team(seed);
  const auto shared = std::make_unique<gpu::EncodeShared>();
  std::memset(shared.get(), 0xcd, sizeof(*shared));
  const T* first = reinterpret_cast<const T*>(o.data());
  const T* second = reinterpret_cast<const T*>(n.data());
  for (uint32_t b = 0; b < blocks; ++b) {
    const uint32_t at = b * gpu::kBlock, byte = at * static_cast<uint32_t>(sizeof(T));
    rows.push_back(gpu::EncodeBlock<T>(team, *shared, first + at, second + at,
                                       std::min(gpu::kBlock, elements - at), byte, view,
                                       slots.data() + byte / 4));
    sum.Add(rows.back());
    result.digest_after += rows.back().digest;
  }
  if (blocks == 0) return result;
  const gpu::TablePlan plan = gpu::PlanTable(sum, blocks);
  result.changed = plan.changed;
  if (plan.payload_bytes == 0) return result;
  const auto append = [&](uint64_t byte) {
    result.payload.push_back(static_cast<std::byte>(byte));
  };
  for (uint32_t i = 0; i < plan.bytes; ++i) {
    append(gpu::TableByte(plan, rows.data(), elements, sizeof(T), i));
  }
  for (uint32_t b = 0; b < blocks; ++b) {
    const uint32_t at = b * gpu::kBlock;
    for (uint32_t i = 0; i < rows[b].bytes; ++i) {
      if (rows[b].raw != 0) {
        const uint32_t e = at + i / sizeof(T);
        append(static_cast<T>(second[e] - first[e]) >> 8 * (i % sizeof(T)));
      } else {
        append(slots[at * sizeof(T) / 4 + i / 4] >> 8 * (i % 4));
      }
    }
  }
  return result;
}

/// Applies `payload` to `data`. False when a block says that it is malformed.
template <typename T>
bool EmulateApply(const DigestKey& key, Bytes payload, AlignedCopy& data, uint64_t digest_before,
                  uint64_t* digest_after, uint64_t seed) {
  PayloadView view;
  if (PayloadView::Parse(payload, data.size(), sizeof(T), &view) != DecodeStatus::kOk) return false;
  AlignedCopy copy(payload);
  const gpu::KeyView keys = ViewOf(key);
  SerialTeam team(seed);
  const auto shared = std::make_unique<gpu::DecodeShared>();
  std::memset(shared.get(), 0xcd, sizeof(*shared));
  *digest_after = digest_before;
  bool ok = true;
  BlockCursor at(view);
  for (size_t b = 0; b < view.blocks(); ++b, at.Next()) {
    const gpu::BlockIn in{copy.data() + (at.stream() - Ptr(payload)), at.row().changed,
                          at.row().large, at.row().bytes};
    uint64_t grown = 0;
    ok &= gpu::ApplyBlock<T>(team, *shared, in,
                             reinterpret_cast<T*>(data.data()) + b * kBlockElements,
                             static_cast<uint32_t>(view.BlockElements(b)),
                             static_cast<uint32_t>(b * kBlockElements * sizeof(T)), keys, &grown);
    *digest_after += grown;
  }
  return ok;
}

inline uint64_t EmulateDigest(const DigestKey& key, Bytes bytes) {
  AlignedCopy data(bytes);
  const gpu::KeyView view = ViewOf(key);
  uint64_t digest = 0;
  for (uint32_t slice = 0; slice < gpu::kSlices; ++slice) {
    for (uint32_t lane = 0; lane < gpu::kDigestLanes; ++lane) {
      digest += gpu::DigestLane(data.data(), static_cast<uint32_t>(data.size()), view, slice, lane);
    }
  }
  return digest;
}

}  // namespace deltawire::kernels::test
