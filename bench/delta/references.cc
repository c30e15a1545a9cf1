#include "bench/delta/references.h"

#include <limits>

#include "common/base/human.h"
#include "kernels/element_width.h"

namespace deltawire::bench {
namespace {

constexpr int kZstdLevel = 1;
constexpr ReferenceKind kKinds[] = {kPairs,
                                    {"gaps_zstd", "byte gaps + values, zstd-1", 1, false, true},
                                    {"xor_zstd", "u16 gaps + XOR, zstd-1", 2, true, true}};

// Entries of type `Where` are indices or gaps. A gap of the type's largest value is followed by
// another gap instead of a change.
template <typename Where>
constexpr bool kIndices = sizeof(Where) >= sizeof(uint32_t);
template <typename Where>
constexpr size_t kMost = std::numeric_limits<Where>::max();

// Stores the lists at the beginning of `room`, which grows as needed.
template <typename Where, typename T>
std::pair<Bytes, Bytes> Split(Bytes old_data, Bytes new_data, bool exclusive, Lists& room) {
  const size_t n = old_data.size() / sizeof(T);
  room.where.resize(std::max(room.where.size(), (n + n / kMost<Where> + 1) * sizeof(Where)));
  room.what.resize(std::max(room.what.size(), n * sizeof(T)));
  std::byte* where = room.where.data();
  std::byte* what = room.what.data();
  size_t begin = 0;
  for (size_t i = 0; i < n; ++i) {
    const T before = LoadLe<T>(&old_data[i * sizeof(T)]);
    const T after = LoadLe<T>(&new_data[i * sizeof(T)]);
    if (before == after) continue;
    size_t number = i;
    if constexpr (!kIndices<Where>) {
      number -= begin;
      begin = i + 1;
      for (; number >= kMost<Where>; number -= kMost<Where>, where += sizeof(Where)) {
        StoreLe<Where>(where, static_cast<Where>(kMost<Where>));
      }
    }
    StoreLe<Where>(where, static_cast<Where>(number));
    where += sizeof(Where);
    StoreLe<T>(what, exclusive ? static_cast<T>(before ^ after) : after);
    what += sizeof(T);
  }
  return {{room.where.data(), where}, {room.what.data(), what}};
}

template <typename Where, typename T>
void Join(Bytes where, Bytes what, bool exclusive, MutableBytes data) {
  const std::byte* value = what.data();
  std::byte* next = data.data();  // the start of a gap
  for (size_t i = 0; i < where.size(); i += sizeof(Where)) {
    const size_t number = LoadLe<Where>(&where[i]);
    std::byte* const at = (kIndices<Where> ? data.data() : next) + number * sizeof(T);
    if (!kIndices<Where> && number == kMost<Where>) {
      next = at;
      continue;
    }
    const T word = LoadLe<T>(value);
    StoreLe<T>(at, exclusive ? static_cast<T>(LoadLe<T>(at) ^ word) : word);
    next = at + sizeof(T);
    value += sizeof(T);
  }
}

// Calls `work` with values of both types; the values do not matter.
template <typename Work>
void WithTypes(unsigned where_bytes, unsigned width, const Work& work) {
  kernels::WithWidth(where_bytes, [&](auto where) {
    kernels::WithWidth(width, [&](auto element) { work(where, element); });
  });
}

StatusOr<size_t> Checked(const char* what, size_t size) {
  if (ZSTD_isError(size) == 0) return size;
  return Errorf(StatusCode::kInternal, "zstd cannot {}: {}", what, ZSTD_getErrorName(size));
}

}  // namespace

std::span<const ReferenceKind> AllReferences() { return kKinds; }

Status Reference::Encode(Bytes old_data, Bytes new_data, unsigned width, Lists& out) {
  if (kind_.where_bytes == 4 && old_data.size() / width > kMost<uint32_t>) {
    return absl::InvalidArgumentError("a tensor has more than 2^32 elements: no u32 indices");
  }
  std::pair<Bytes, Bytes> lists;
  WithTypes(kind_.where_bytes, width, [&]<typename Where, typename T>(Where, T) {
    lists = Split<Where, T>(old_data, new_data, kind_.exclusive, room_);
  });
  DW_RETURN_IF_ERROR(Pack(lists.first, out.where));
  return Pack(lists.second, out.what);
}

Status Reference::Apply(const Lists& lists, unsigned width, MutableBytes data) {
  DW_ASSIGN_OR_RETURN(const Bytes where, Unpack(lists.where, room_.where));
  DW_ASSIGN_OR_RETURN(const Bytes what, Unpack(lists.what, room_.what));
  WithTypes(kind_.where_bytes, width, [&]<typename Where, typename T>(Where, T) {
    Join<Where, T>(where, what, kind_.exclusive, data);
  });
  return absl::OkStatus();
}

Status Reference::Pack(Bytes list, std::vector<std::byte>& out) {
  if (!kind_.compressed) {
    out.assign(list.begin(), list.end());
    return absl::OkStatus();
  }
  out.resize(ZSTD_compressBound(list.size()));
  DW_ASSIGN_OR_RETURN(const size_t size,
                      Checked("compress", ZSTD_compressCCtx(compress_.get(), out.data(), out.size(),
                                                            list.data(), list.size(), kZstdLevel)));
  out.resize(size);
  return absl::OkStatus();
}

StatusOr<Bytes> Reference::Unpack(Bytes packed, std::vector<std::byte>& room) {
  if (!kind_.compressed) return packed;
  const size_t want = ZSTD_getFrameContentSize(packed.data(), packed.size());
  if (room.size() < want) room.resize(want);
  DW_ASSIGN_OR_RETURN(
      const size_t size,
      Checked("decompress", ZSTD_decompressDCtx(decompress_.get(), room.data(), room.size(),
                                                packed.data(), packed.size())));
  return Bytes(room).first(size);
}

StatusOr<double> ReferenceRunner::Encode() {
  const Layout& layout = workload_.layout;
  lists_.resize(layout.size());
  const auto start = SteadyClock::now();
  for (size_t t = 0; t < layout.size(); ++t) {
    const uint64_t offset = layout.offset(t), bytes = layout.bytes(t);
    DW_RETURN_IF_ERROR(reference_.Encode(workload_.old_data.data().subspan(offset, bytes),
                                         workload_.new_data.data().subspan(offset, bytes),
                                         DTypeBytes(layout.tensor(t).dtype), lists_[t]));
  }
  return SecondsSince(start);
}

StatusOr<double> ReferenceRunner::Apply(MutableBytes work) {
  DW_RETURN_IF_ERROR(Encoded());
  const auto start = SteadyClock::now();
  const Layout& layout = workload_.layout;
  for (size_t t = 0; t < layout.size(); ++t) {
    DW_RETURN_IF_ERROR(reference_.Apply(lists_[t], DTypeBytes(layout.tensor(t).dtype),
                                        work.subspan(layout.offset(t), layout.bytes(t))));
  }
  const double seconds = SecondsSince(start);
  if (std::memcmp(work.data(), workload_.new_data.data().data(), work.size()) == 0) return seconds;
  return Errorf(StatusCode::kDataLoss, "{}: the reference {} did not make the new bytes",
                workload_.name, name_);
}

StatusOr<uint64_t> ReferenceRunner::bytes() {
  DW_RETURN_IF_ERROR(Encoded());
  uint64_t sum = 0;
  for (const Lists& lists : lists_) sum += lists.where.size() + lists.what.size();
  return sum;
}

}  // namespace deltawire::bench
