#include "bench/delta/references.h"

#include <zstd.h>

#include <limits>

#include "common/base/human.h"
#include "kernels/element_width.h"

namespace deltawire::bench {
namespace {

constexpr int kZstdLevel = 1;

class Pairs : public Reference {
 public:
  std::string_view name() const override { return "pairs"; }
  std::string_view about() const override { return "u32 index + new value"; }

  Status Encode(Bytes old_data, Bytes new_data, unsigned width,
                std::vector<std::byte>& out) override {
    if (old_data.size() / width > std::numeric_limits<uint32_t>::max()) {
      return absl::InvalidArgumentError("a tensor has more than 2^32 elements: no u32 indices");
    }
    return kernels::WithWidth(width, [&](auto zero) {
      using T = decltype(zero);
      const size_t n = old_data.size() / sizeof(T);
      if (index_.size() < n) index_.resize(n);
      if (value_.size() < n * sizeof(T)) value_.resize(n * sizeof(T));
      size_t count = 0;
      for (size_t i = 0; i < n; ++i) {
        const T after = LoadLe<T>(&new_data[i * sizeof(T)]);
        if (LoadLe<T>(&old_data[i * sizeof(T)]) == after) continue;
        index_[count] = static_cast<uint32_t>(i);
        StoreLe<T>(&value_[count * sizeof(T)], after);
        ++count;
      }
      out.resize(count * (sizeof(uint32_t) + sizeof(T)));
      if (count == 0) return absl::OkStatus();
      std::memcpy(out.data(), index_.data(), count * sizeof(uint32_t));
      std::memcpy(out.data() + count * sizeof(uint32_t), value_.data(), count * sizeof(T));
      return absl::OkStatus();
    });
  }

  Status Apply(Bytes payload, unsigned width, MutableBytes data) override {
    return kernels::WithWidth(width, [&](auto zero) {
      using T = decltype(zero);
      const size_t count = payload.size() / (sizeof(uint32_t) + sizeof(T));
      const std::byte* const index = payload.data();
      const std::byte* const value = index + count * sizeof(uint32_t);
      for (size_t i = 0; i < count; ++i) {
        const size_t at = LoadLe<uint32_t>(index + i * sizeof(uint32_t));
        StoreLe<T>(data.data() + at * sizeof(T), LoadLe<T>(value + i * sizeof(T)));
      }
      return absl::OkStatus();
    });
  }

 private:
  std::vector<uint32_t> index_;
  std::vector<std::byte> value_;
};

// Gaps of type Gap, whose largest value means "this many, and no change yet".
template <typename Gap, bool kXor>
class Gaps : public Reference {
 public:
  Gaps() : compress_(ZSTD_createCCtx()), decompress_(ZSTD_createDCtx()) {}
  ~Gaps() override {
    ZSTD_freeCCtx(compress_);
    ZSTD_freeDCtx(decompress_);
  }
  std::string_view name() const override { return kXor ? "xor_zstd" : "gaps_zstd"; }
  std::string_view about() const override {
    return kXor ? "u16 gaps + XOR, zstd-1" : "byte gaps + values, zstd-1";
  }

  Status Encode(Bytes old_data, Bytes new_data, unsigned width,
                std::vector<std::byte>& out) override {
    kernels::WithWidth(width, [&](auto zero) { Split<decltype(zero)>(old_data, new_data); });
    out.resize(2 * sizeof(uint64_t) + ZSTD_compressBound(gap_bytes_) +
               ZSTD_compressBound(value_bytes_));
    size_t at = 2 * sizeof(uint64_t);
    StoreLe<uint64_t>(out.data(), gap_bytes_);
    for (const Bytes part : {Bytes(gaps_).first(gap_bytes_), Bytes(values_).first(value_bytes_)}) {
      const size_t size = ZSTD_compressCCtx(compress_, out.data() + at, out.size() - at,
                                            part.data(), part.size(), kZstdLevel);
      if (ZSTD_isError(size) != 0) return ZstdError("compress", size);
      at += size;
      if (part.data() == gaps_.data()) StoreLe<uint64_t>(out.data() + sizeof(uint64_t), at);
    }
    out.resize(at);
    return absl::OkStatus();
  }

  Status Apply(Bytes payload, unsigned width, MutableBytes data) override {
    const size_t gap_bytes = LoadLe<uint64_t>(payload.data());
    const size_t values_at = LoadLe<uint64_t>(payload.data() + sizeof(uint64_t));
    const size_t head = 2 * sizeof(uint64_t);
    DW_RETURN_IF_ERROR(Decompress(payload.subspan(head, values_at - head), gaps_).status());
    DW_RETURN_IF_ERROR(Decompress(payload.subspan(values_at), values_).status());
    kernels::WithWidth(width, [&](auto zero) { Join<decltype(zero)>(gap_bytes, data); });
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kGoesOn = std::numeric_limits<Gap>::max();

  static Status ZstdError(const char* what, size_t code) {
    return Errorf(StatusCode::kInternal, "zstd cannot {}: {}", what, ZSTD_getErrorName(code));
  }

  template <typename T>
  void Split(Bytes old_data, Bytes new_data) {
    const size_t n = old_data.size() / sizeof(T);
    const size_t most = (n + n / kGoesOn + 1) * sizeof(Gap);
    if (gaps_.size() < most) gaps_.resize(most);
    if (values_.size() < n * sizeof(T)) values_.resize(n * sizeof(T));
    std::byte* gap_out = gaps_.data();
    std::byte* value_out = values_.data();
    size_t begin = 0;
    for (size_t i = 0; i < n; ++i) {
      const T before = LoadLe<T>(&old_data[i * sizeof(T)]);
      const T after = LoadLe<T>(&new_data[i * sizeof(T)]);
      if (before == after) continue;
      size_t gap = i - begin;
      begin = i + 1;
      for (; gap >= kGoesOn; gap -= kGoesOn, gap_out += sizeof(Gap)) {
        StoreLe<Gap>(gap_out, static_cast<Gap>(kGoesOn));
      }
      StoreLe<Gap>(gap_out, static_cast<Gap>(gap));
      gap_out += sizeof(Gap);
      StoreLe<T>(value_out, kXor ? static_cast<T>(before ^ after) : after);
      value_out += sizeof(T);
    }
    gap_bytes_ = static_cast<size_t>(gap_out - gaps_.data());
    value_bytes_ = static_cast<size_t>(value_out - values_.data());
  }

  template <typename T>
  void Join(size_t gap_bytes, MutableBytes data) const {
    const std::byte* value = values_.data();
    std::byte* at = data.data();
    for (size_t i = 0; i < gap_bytes; i += sizeof(Gap)) {
      const size_t gap = LoadLe<Gap>(&gaps_[i]);
      at += gap * sizeof(T);
      if (gap == kGoesOn) continue;
      const T word = LoadLe<T>(value);
      StoreLe<T>(at, kXor ? static_cast<T>(LoadLe<T>(at) ^ word) : word);
      at += sizeof(T);
      value += sizeof(T);
    }
  }

  StatusOr<size_t> Decompress(Bytes from, std::vector<std::byte>& to) {
    const size_t want = ZSTD_getFrameContentSize(from.data(), from.size());
    if (to.size() < want) to.resize(want);
    const size_t size =
        ZSTD_decompressDCtx(decompress_, to.data(), to.size(), from.data(), from.size());
    if (ZSTD_isError(size) != 0) return ZstdError("decompress", size);
    return size;
  }

  ZSTD_CCtx* const compress_;
  ZSTD_DCtx* const decompress_;
  std::vector<std::byte> gaps_, values_;
  size_t gap_bytes_ = 0, value_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Reference> MakePairs() { return std::make_unique<Pairs>(); }
std::unique_ptr<Reference> MakeByteGaps() { return std::make_unique<Gaps<uint8_t, false>>(); }
std::unique_ptr<Reference> MakeXor() { return std::make_unique<Gaps<uint16_t, true>>(); }

ReferenceRunner::ReferenceRunner(const Workload& w, std::unique_ptr<Reference> reference)
    : workload_(w), reference_(std::move(reference)), payloads_(w.layout.size()) {}

StatusOr<double> ReferenceRunner::Encode() {
  const auto start = std::chrono::steady_clock::now();
  const Layout& layout = workload_.layout;
  for (size_t t = 0; t < layout.size(); ++t) {
    const uint64_t offset = layout.offset(t), bytes = layout.bytes(t);
    DW_RETURN_IF_ERROR(reference_->Encode(workload_.old_data.data().subspan(offset, bytes),
                                          workload_.new_data.data().subspan(offset, bytes),
                                          DTypeBytes(layout.tensor(t).dtype), payloads_[t]));
  }
  return SecondsSince(start);
}

StatusOr<double> ReferenceRunner::Apply(MutableBytes work) {
  const auto start = std::chrono::steady_clock::now();
  const Layout& layout = workload_.layout;
  for (size_t t = 0; t < layout.size(); ++t) {
    DW_RETURN_IF_ERROR(reference_->Apply(payloads_[t], DTypeBytes(layout.tensor(t).dtype),
                                         work.subspan(layout.offset(t), layout.bytes(t))));
  }
  const double seconds = SecondsSince(start);
  if (std::memcmp(work.data(), workload_.new_data.data().data(), work.size()) == 0) return seconds;
  return Errorf(StatusCode::kDataLoss, "{}: the reference {} did not make the new bytes",
                workload_.name, name());
}

uint64_t ReferenceRunner::bytes() const {
  uint64_t sum = 0;
  for (const auto& p : payloads_) sum += p.size();
  return sum;
}

}  // namespace deltawire::bench
