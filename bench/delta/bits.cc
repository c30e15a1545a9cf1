#include "bench/delta/bits.h"

#include <math.h>

#include <bit>
#include <cmath>

#include "kernels/cpu/tight_model.h"
#include "kernels/payload.h"

namespace deltawire::bench {
namespace {

constexpr double kAlpha = 0.5;
constexpr double kOctave = 1 << kernels::kOctaveBits;

// Returns log2 of Gamma(n + start) / Gamma(start). Unlike lgamma, which writes a global, it is
// thread-safe.
double LogRising(uint64_t n, double start) {
  int sign = 0;
  return (::lgamma_r(static_cast<double>(n) + start, &sign) - ::lgamma_r(start, &sign)) / M_LN2;
}

/// With `unseen`, the alphabet has one more symbol, for differences that did not occur.
SplitBits BitsOf(const Tally::Count& count,
                 const std::unordered_map<int64_t, uint64_t>& differences, bool unseen) {
  std::vector<uint64_t> counts;
  for (const auto& [difference, n] : differences) counts.push_back(n);
  if (unseen && !counts.empty()) counts.push_back(0);
  const uint64_t positions[] = {count.changed, count.elements - count.changed};
  return {KtBits(positions), KtBits(counts)};
}

void operator+=(SplitBits& sum, const SplitBits& other) {
  sum.positions += other.positions;
  sum.differences += other.differences;
}

Status CheckHead(Bytes payload, size_t header, kernels::Codec codec) {
  if (payload.size() < header || payload[0] != std::byte{kernels::kFormat} ||
      payload[1] != std::byte{static_cast<uint8_t>(codec)}) {
    return absl::UnimplementedError("the payload is of another format or codec");
  }
  return absl::OkStatus();
}

Status Beyond() { return absl::DataLossError("the payload ends before its parts do"); }

// Returns the bits of c unary quotients, from `bit` of the stream of `bytes` on.
size_t QuotientBits(const uint8_t* stream, size_t bytes, size_t bit, uint64_t c) {
  const size_t begin = bit;
  while (c > 0 && bit / 8 < bytes) {
    const unsigned byte = stream[bit / 8] >> bit % 8;
    const auto ones = static_cast<uint64_t>(std::popcount(byte));
    if (ones < c) {
      c -= ones;
      bit = (bit / 8 + 1) * 8;
    } else {
      c -= byte & 1;
      ++bit;
    }
  }
  return bit - begin;
}

// Reads a tight payload's parameters; returns the bits of the head, the parameters and the lanes'
// sizes.
StatusOr<size_t> ReadParameters(Bytes payload, kernels::TightParameters& parameters) {
  DW_RETURN_IF_ERROR(CheckHead(payload, kernels::kTightHeadBytes, kernels::Codec::kTight));
  kernels::TightHead head;
  if (kernels::ReadTightHead(payload, &head) != kernels::DecodeStatus::kOk) return Beyond();
  const size_t front = kernels::kTightHeadBytes + (head.depth > 0 ? kernels::kContextBytes : 0);
  parameters.rows = kernels::HighestRow(head.depth);
  parameters.lane_bits = std::to_integer<unsigned>(payload[3]) >> 4;
  parameters.base = std::to_integer<unsigned>(payload[4]);
  kernels::BitReader bits(kernels::Ptr(payload.subspan(front)), payload.size() - front);
  if (!parameters.Read(bits)) return Beyond();
  kernels::Column sizes;
  if (!kernels::Column::FromWord(static_cast<uint32_t>(bits.Get(32)), &sizes)) return Beyond();
  bits.Skip(uint64_t{sizes.bits} << parameters.lane_bits);
  if (!bits.ok()) return Beyond();
  return 8 * (front + (bits.position() + 7) / 8);
}

}  // namespace

double KtBits(std::span<const uint64_t> counts) {
  if (counts.size() < 2) return 0;
  uint64_t n = 0;
  double seen = 0;
  for (const uint64_t count : counts) {
    n += count;
    seen += LogRising(count, kAlpha);
  }
  return LogRising(n, static_cast<double>(counts.size()) * kAlpha) - seen;
}

uint8_t HistoryContext(unsigned age, bool up) {
  return age == 0 ? 0 : static_cast<uint8_t>(2 * kernels::RowOfAge(age) - 1 + (up ? 1 : 0));
}

int64_t Signed(uint64_t difference, unsigned width) {
  const unsigned unused = 64 - 8 * width;
  return static_cast<int64_t>(difference << unused) >> unused;
}

ChangeCounter::ChangeCounter(kernels::ClassFunction function, unsigned width)
    : function_(function), width_(width), differences_(tally_.counts.size()) {}

Tally ChangeCounter::Add(Bytes old_data, Bytes new_data, std::span<const uint8_t> contexts) {
  Tally own;
  kernels::WithWidth(width_, [&]<typename T>(T) {
    for (size_t i = 0; i < old_data.size() / sizeof(T); ++i) {
      const T before = LoadLe<T>(&old_data[i * sizeof(T)]);
      const T after = LoadLe<T>(&new_data[i * sizeof(T)]);
      Tally::Count& count =
          own.at(kernels::ExponentOf(before, function_), contexts.empty() ? 0 : contexts[i]);
      ++count.elements;
      if (before == after) continue;
      ++count.changed;
      ++differences_[&count - own.counts.data()][Signed(static_cast<T>(after - before), width_)];
    }
  });
  for (size_t i = 0; i < own.counts.size(); ++i) tally_.counts[i] += own.counts[i];
  return own;
}

Bounds ChangeCounter::Finish() const {
  Bounds out;
  Tally::Count all;
  Differences all_differences;
  for (size_t e = 0; e < Tally::kExponents; ++e) {
    Tally::Count of_exponent;
    Differences differences;
    for (size_t h = 0; h < kHistoryContexts; ++h) {
      const Differences& own = differences_[e * kHistoryContexts + h];
      out.history += BitsOf(tally_.at(e, h), own, true);
      of_exponent += tally_.at(e, h);
      for (const auto& [difference, n] : own) differences[difference] += n;
    }
    out.exponent += BitsOf(of_exponent, differences, true);
    all += of_exponent;
    for (const auto& [difference, n] : differences) all_differences[difference] += n;
  }
  out.iid = BitsOf(all, all_differences, false);
  return out;
}

StatusOr<SplitBits> SplitFast(Bytes payload, size_t raw_bytes, unsigned width) {
  DW_RETURN_IF_ERROR(CheckHead(payload, kernels::kTableOffset, kernels::Codec::kFast));
  kernels::PayloadView view;
  if (kernels::PayloadView::Parse(payload, raw_bytes, width, &view) != kernels::DecodeStatus::kOk) {
    return Beyond();
  }
  SplitBits out;
  out.rest = static_cast<double>(view.streams() - kernels::Ptr(payload)) * 8;
  kernels::BlockCursor cursor(view);
  for (size_t b = 0; b < view.blocks(); ++b, cursor.Next()) {
    const kernels::BlockRow& row = cursor.row();
    const size_t elements = view.BlockElements(b);
    double positions = 0;
    if (row.changed > 0 && !row.IsRaw(elements, width)) {
      const size_t low = row.changed * kernels::RiceParameter(row.changed, elements);
      positions = static_cast<double>(
          low + QuotientBits(cursor.stream(), row.bytes, low + row.changed, row.changed));
    }
    out.positions += positions;
    out.differences += row.bytes * 8.0 - positions;  // including the padding of the last byte
  }
  return out;
}

StatusOr<SplitBits> SplitTight(Bytes payload, const Tally& tally, bool history) {
  kernels::TightParameters parameters;
  SplitBits out;
  DW_ASSIGN_OR_RETURN(const size_t rest, ReadParameters(payload, parameters));
  for (unsigned e = 0; e < Tally::kExponents; ++e) {
    const unsigned cls = kernels::ClassOfExponent(e, parameters.base);
    for (unsigned h = 0; h < kHistoryContexts; ++h) {
      const auto [elements, changed] = tally.at(e, h);
      const double octaves = parameters.Weight(history ? (h + 1) / 2 : 0, cls) / kOctave;
      out.positions += static_cast<double>(elements - changed) * octaves;
      if (changed == 0) continue;
      if (octaves == 0) return absl::DataLossError("an element changed where the masks say never");
      out.positions -= static_cast<double>(changed) * std::log2(1 - std::exp2(-octaves));
    }
  }
  out.rest = static_cast<double>(rest);
  out.differences = static_cast<double>(payload.size()) * 8 - out.rest - out.positions;
  return out;
}

}  // namespace deltawire::bench
