#include "bench/delta/references.h"

#include <zstd.h>

#include <limits>

#include "common/base/human.h"
#include "kernels/element_width.h"

namespace deltawire::bench {
namespace {

constexpr int kZstdLevel = 1;

/// `Where`: u32 for indices, a smaller type for gaps. After a gap of that type's largest value
/// comes a further gap instead of a change. kXor: old XOR new instead of the new value. kZstd: both
/// lists are compressed.
template <typename Where, bool kXor, bool kZstd>
class ListReference : public Reference {
 public:
  Status Encode(Bytes old_data, Bytes new_data, unsigned width, Lists& out) override {
    if (kIndices && old_data.size() / width > kMostWhere) {
      return absl::InvalidArgumentError("a tensor has more than 2^32 elements: no u32 indices");
    }
    kernels::WithWidth(width, [&](auto zero) { Split<decltype(zero)>(old_data, new_data); });
    DW_RETURN_IF_ERROR(Pack(Bytes(where_).first(where_bytes_), out.where));
    return Pack(Bytes(what_).first(what_bytes_), out.what);
  }

  Status Apply(const Lists& lists, unsigned width, MutableBytes data) override {
    DW_ASSIGN_OR_RETURN(const Bytes where, Unpack(lists.where, where_));
    DW_ASSIGN_OR_RETURN(const Bytes what, Unpack(lists.what, what_));
    kernels::WithWidth(width, [&](auto zero) { Join<decltype(zero)>(where, what, data); });
    return absl::OkStatus();
  }

 private:
  static constexpr bool kIndices = sizeof(Where) == sizeof(uint32_t);
  static constexpr size_t kMostWhere = std::numeric_limits<Where>::max();

  template <typename T>
  void Split(Bytes old_data, Bytes new_data) {
    const size_t n = old_data.size() / sizeof(T);
    const size_t most = (n + n / kMostWhere + 1) * sizeof(Where);
    if (where_.size() < most) where_.resize(most);
    if (what_.size() < n * sizeof(T)) what_.resize(n * sizeof(T));
    std::byte* where = where_.data();
    std::byte* what = what_.data();
    size_t begin = 0;
    for (size_t i = 0; i < n; ++i) {
      const T before = LoadLe<T>(&old_data[i * sizeof(T)]);
      const T after = LoadLe<T>(&new_data[i * sizeof(T)]);
      if (before == after) continue;
      size_t number = i;
      if constexpr (!kIndices) {
        number -= begin;
        begin = i + 1;
        for (; number >= kMostWhere; number -= kMostWhere, where += sizeof(Where)) {
          StoreLe<Where>(where, static_cast<Where>(kMostWhere));
        }
      }
      StoreLe<Where>(where, static_cast<Where>(number));
      where += sizeof(Where);
      StoreLe<T>(what, kXor ? static_cast<T>(before ^ after) : after);
      what += sizeof(T);
    }
    where_bytes_ = static_cast<size_t>(where - where_.data());
    what_bytes_ = static_cast<size_t>(what - what_.data());
  }

  template <typename T>
  static void Join(Bytes where, Bytes what, MutableBytes data) {
    const std::byte* value = what.data();
    std::byte* next = data.data();  // where a gap begins
    for (size_t i = 0; i < where.size(); i += sizeof(Where)) {
      const size_t number = LoadLe<Where>(&where[i]);
      std::byte* const at = (kIndices ? data.data() : next) + number * sizeof(T);
      if (!kIndices && number == kMostWhere) {
        next = at;
        continue;
      }
      const T word = LoadLe<T>(value);
      StoreLe<T>(at, kXor ? static_cast<T>(LoadLe<T>(at) ^ word) : word);
      next = at + sizeof(T);
      value += sizeof(T);
    }
  }

  static StatusOr<size_t> Checked(const char* what, size_t size) {
    if (ZSTD_isError(size) == 0) return size;
    return Errorf(StatusCode::kInternal, "zstd cannot {}: {}", what, ZSTD_getErrorName(size));
  }
  Status Pack(Bytes list, std::vector<std::byte>& out) {
    if (!kZstd) {
      out.assign(list.begin(), list.end());
      return absl::OkStatus();
    }
    out.resize(ZSTD_compressBound(list.size()));
    DW_ASSIGN_OR_RETURN(
        const size_t size,
        Checked("compress", ZSTD_compressCCtx(compress_.get(), out.data(), out.size(), list.data(),
                                              list.size(), kZstdLevel)));
    out.resize(size);
    return absl::OkStatus();
  }
  StatusOr<Bytes> Unpack(Bytes packed, std::vector<std::byte>& room) {
    if (!kZstd) return packed;
    const size_t want = ZSTD_getFrameContentSize(packed.data(), packed.size());
    if (room.size() < want) room.resize(want);
    DW_ASSIGN_OR_RETURN(
        const size_t size,
        Checked("decompress", ZSTD_decompressDCtx(decompress_.get(), room.data(), room.size(),
                                                  packed.data(), packed.size())));
    return Bytes(room).first(size);
  }

  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> compress_{ZSTD_createCCtx(),
                                                                       ZSTD_freeCCtx};
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> decompress_{ZSTD_createDCtx(),
                                                                         ZSTD_freeDCtx};
  std::vector<std::byte> where_, what_;
  size_t where_bytes_ = 0, what_bytes_ = 0;
};

template <typename T>
std::unique_ptr<Reference> Make() {
  return std::make_unique<T>();
}

constexpr ReferenceKind kReferences[] = {
    {"pairs", "u32 index + new value", Make<ListReference<uint32_t, false, false>>},
    {"gaps_zstd", "byte gaps + values, zstd-1", Make<ListReference<uint8_t, false, true>>},
    {"xor_zstd", "u16 gaps + XOR, zstd-1", Make<ListReference<uint16_t, true, true>>},
};

}  // namespace

std::span<const ReferenceKind> AllReferences() { return kReferences; }

StatusOr<double> ReferenceRunner::Encode() {
  const auto start = SteadyClock::now();
  const Layout& layout = workload_.layout;
  for (size_t t = 0; t < layout.size(); ++t) {
    const uint64_t offset = layout.offset(t), bytes = layout.bytes(t);
    DW_RETURN_IF_ERROR(reference_->Encode(workload_.old_data.data().subspan(offset, bytes),
                                          workload_.new_data.data().subspan(offset, bytes),
                                          DTypeBytes(layout.tensor(t).dtype), lists_[t]));
  }
  return SecondsSince(start);
}

StatusOr<double> ReferenceRunner::Apply(MutableBytes work) {
  const auto start = SteadyClock::now();
  const Layout& layout = workload_.layout;
  for (size_t t = 0; t < layout.size(); ++t) {
    DW_RETURN_IF_ERROR(reference_->Apply(lists_[t], DTypeBytes(layout.tensor(t).dtype),
                                         work.subspan(layout.offset(t), layout.bytes(t))));
  }
  const double seconds = SecondsSince(start);
  if (std::memcmp(work.data(), workload_.new_data.data().data(), work.size()) == 0) return seconds;
  return Errorf(StatusCode::kDataLoss, "{}: the reference {} did not make the new bytes",
                workload_.name, kind_.name);
}

uint64_t ReferenceRunner::bytes() const {
  uint64_t sum = 0;
  for (const Lists& lists : lists_) sum += lists.where.size() + lists.what.size();
  return sum;
}

}  // namespace deltawire::bench
