#include "common/layout/layout.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "common/base/bytes.h"
#include "common/layout/names.h"

namespace deltawire {
namespace {

// Sizes stay below 2^63, so they fit off_t and the sum of two sizes cannot wrap.
constexpr uint64_t kMaxBytes = std::numeric_limits<int64_t>::max();

Status CheckTensor(const TensorMeta& t, size_t place) {
  if (t.name.empty()) {
    return Errorf(StatusCode::kInvalidArgument, "tensor number {} has no name", place);
  }
  if (t.name.size() > Layout::kMaxNameBytes) {
    return Errorf(StatusCode::kInvalidArgument, "tensor name {} has {} bytes, more than {}",
                  Quoted(t.name), t.name.size(), Layout::kMaxNameBytes);
  }
  if (!IsUtf8(t.name)) {
    return Errorf(StatusCode::kInvalidArgument, "tensor name {} is not UTF-8", Quoted(t.name));
  }
  if (t.name == "__metadata__") {
    return Errorf(StatusCode::kInvalidArgument,
                  "a tensor is named \"__metadata__\", which safetensors keeps for itself");
  }
  if (static_cast<size_t>(t.dtype) >= AllDTypes().size()) {
    return Errorf(StatusCode::kInvalidArgument, "tensor {} has no valid dtype (number {})",
                  Quoted(t.name), static_cast<unsigned>(t.dtype));
  }
  if (t.shape.size() > Layout::kMaxRank) {
    return Errorf(StatusCode::kInvalidArgument, "tensor {} has {} dimensions, more than {}",
                  Quoted(t.name), t.shape.size(), Layout::kMaxRank);
  }
  return absl::OkStatus();
}

template <std::unsigned_integral T>
void AppendLe(T value, std::string& out) {
  std::byte raw[sizeof value];
  StoreLe(raw, value);
  out.append(AsChars(raw));
}

// Layout fingerprint, version 1: XXH3-128 (seed 0) over, for every tensor in tensors_meta order,
//
//   u32-LE  length of the name in bytes
//   bytes   the name, UTF-8, not terminated
//   u8      length of the dtype's safetensors name
//   bytes   that name, e.g. "BF16"
//   u8      rank (0 for a scalar)
//   u64-LE  each dimension, outermost first
//
// and no other bytes. Every field has a fixed width or a length before it, so two different lists
// cannot give the same bytes. The fingerprint of a layout without tensors hashes no bytes.
Hash128 Fingerprint(const std::vector<TensorMeta>& tensors) {
  std::string text;
  for (const TensorMeta& t : tensors) {
    const std::string_view dtype = DTypeName(t.dtype);
    AppendLe(static_cast<uint32_t>(t.name.size()), text);
    text += t.name;
    AppendLe(static_cast<uint8_t>(dtype.size()), text);
    text += dtype;
    AppendLe(static_cast<uint8_t>(t.shape.size()), text);
    for (const uint64_t d : t.shape) AppendLe(d, text);
  }
  return Xxh3_128(AsBytes(text));
}

std::string Describe(const TensorMeta& t) {
  return fmt::format("{} [{}]", DTypeName(t.dtype), fmt::join(t.shape, ", "));
}

/// Collects findings, lists the first `limit` and counts the rest.
class Findings {
 public:
  explicit Findings(size_t limit) : limit_(limit) {}

  template <typename... Args>
  void Add(fmt::format_string<Args...> format, Args&&... args) {
    if (++count_ > limit_) return;
    if (!text_.empty()) text_ += "; ";
    text_ += fmt::format(format, std::forward<Args>(args)...);
  }

  size_t count() const { return count_; }

  std::string Text() const {
    if (count_ <= limit_) return text_;
    if (limit_ == 0) return fmt::format("{} differences", count_);
    return fmt::format("{}; and {} more", text_, count_ - limit_);
  }

 private:
  size_t limit_;
  size_t count_ = 0;
  std::string text_;
};

struct DifferenceWords {
  std::string_view only_want, only_got;
};

std::string Compare(const Layout& want, const Layout& got, size_t limit,
                    const DifferenceWords& words) {
  Findings findings(limit);
  for (const TensorMeta& w : want.tensors()) {
    const auto at = got.Find(w.name);
    if (!at) {
      findings.Add("tensor {} ({}) {}", Quoted(w.name), Describe(w), words.only_want);
    } else if (got.tensor(*at) != w) {
      findings.Add("tensor {} is {} instead of {}", Quoted(w.name), Describe(got.tensor(*at)),
                   Describe(w));
    }
  }
  for (const TensorMeta& g : got.tensors()) {
    if (!want.Find(g.name))
      findings.Add("tensor {} ({}) {}", Quoted(g.name), Describe(g), words.only_got);
  }
  if (findings.count() > 0) return findings.Text();
  // Both layouts have the same tensors, so only the order can differ.
  for (size_t i = 0; i < want.size(); ++i) {
    if (want.tensor(i).name == got.tensor(i).name) continue;
    findings.Add("tensor {} is number {} instead of number {}", Quoted(want.tensor(i).name),
                 *got.Find(want.tensor(i).name), i);
  }
  return findings.Text();
}

}  // namespace

StatusOr<uint64_t> TensorBytes(const TensorMeta& t) {
  // The product omits zero dimensions, so that the order of dimensions does not decide whether a
  // shape overflows.
  uint64_t product = DTypeBytes(t.dtype);
  bool empty = false;
  for (const uint64_t d : t.shape) {
    if (d == 0) {
      empty = true;
    } else if (product > kMaxBytes / d) {
      return Errorf(StatusCode::kInvalidArgument, "tensor {} ({}) is larger than 2^63 bytes",
                    Quoted(t.name), Describe(t));
    } else {
      product *= d;
    }
  }
  return empty ? 0 : product;
}

StatusOr<Layout> Layout::Create(std::vector<TensorMeta> tensors) {
  if (tensors.size() > kMaxTensors) {
    return Errorf(StatusCode::kInvalidArgument, "the layout has {} tensors, more than {}",
                  tensors.size(), kMaxTensors);
  }
  Layout layout;
  layout.offsets_.reserve(tensors.size() + 1);
  layout.index_.reserve(tensors.size());
  uint64_t total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorMeta& t = tensors[i];
    DW_RETURN_IF_ERROR(CheckTensor(t, i));
    DW_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(t));
    if (bytes > kMaxBytes - total) {
      return Errorf(StatusCode::kInvalidArgument,
                    "the tensors up to and including {} are larger than 2^63 bytes together",
                    Quoted(t.name));
    }
    if (!layout.index_.emplace(t.name, i).second) {
      return Errorf(StatusCode::kInvalidArgument, "tensor {} is listed twice", Quoted(t.name));
    }
    layout.offsets_.push_back(total);
    total += bytes;
  }
  layout.offsets_.push_back(total);
  layout.fingerprint_ = Fingerprint(tensors);
  layout.tensors_ = std::move(tensors);
  return layout;
}

std::optional<size_t> Layout::Find(std::string_view name) const {
  const auto it = index_.find(std::string(name));
  if (it == index_.end()) return std::nullopt;
  return it->second;
}

std::string DescribeDifference(const Layout& want, const Layout& got, size_t limit) {
  return Compare(want, got, limit, {"is missing", "is not expected"});
}

std::string DescribeChange(const Layout& before, const Layout& after, size_t limit) {
  return Compare(before, after, limit, {"was removed", "was added"});
}

}  // namespace deltawire
