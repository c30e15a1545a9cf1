#include "bench/delta/payload_parts.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "bench/delta/bounds.h"

namespace deltawire::bench {
namespace {

constexpr std::byte kFormat{2};
constexpr size_t kFastColumns = 3 + 1 + 4;            // head, reserved, elements
constexpr size_t kFastHeader = kFastColumns + 3 * 4;  // and three columns
constexpr size_t kTightHeader = 3 + 1 + 1 + 1;
constexpr size_t kBlock = 65536;
constexpr unsigned kClasses = 16;
constexpr unsigned kRows = 5;
constexpr double kOctave = 1 << 20;
// Weights of a rate's levels (docs/delta_format.md, "Payload").
constexpr std::array<uint32_t, 16> kLevelWeight = {
    739,     11865,   46076,   109795,  210681,  356608,  561331,  824045,
    1174692, 1632013, 2158872, 2869978, 3820826, 5304696, 6967419, 9402137};

// Bits of a stream from their lowest; zeros beyond its end, and then `beyond`.
class BitReader {
 public:
  BitReader(Bytes data, size_t bit) : data_(data), bit_(bit) {}
  uint64_t Take(unsigned count) {
    uint64_t out = 0;
    for (unsigned i = 0; i < count; ++i, ++bit_) {
      if (bit_ / 8 >= data_.size()) {
        beyond_ = true;
        return out;
      }
      const auto byte = std::to_integer<uint64_t>(data_[bit_ / 8]);
      out |= (byte >> (bit_ % 8) & 1) << i;
    }
    return out;
  }
  void Skip(size_t bits) { bit_ += bits; }
  size_t bit() const { return bit_; }
  bool beyond() const { return beyond_; }

 private:
  Bytes data_;
  size_t bit_;
  bool beyond_ = false;
};

struct Column {
  unsigned width = 0;
  uint64_t min = 0;
  static Column Of(uint64_t description) {
    return {static_cast<unsigned>(description & 31), description >> 5 & 0x3ffffff};
  }
};

Status CheckHead(Bytes payload, size_t header, kernels::Codec codec) {
  if (payload.size() < header || payload[0] != kFormat ||
      payload[1] != std::byte{static_cast<uint8_t>(codec)}) {
    return absl::UnimplementedError("the payload is of another format or codec");
  }
  return absl::OkStatus();
}

Status Beyond() { return absl::DataLossError("the payload ends before its parts do"); }

// rice(c, m) of the format.
unsigned Rice(uint64_t c, uint64_t m) {
  unsigned k = 0;
  while (2000 * c << k < 481 * (2 * m - c)) ++k;
  return k;
}

// Bits of c quotients in unary, from `bit` on: the place after the c-th one.
StatusOr<size_t> Quotients(Bytes stream, size_t bit, uint64_t c) {
  const size_t begin = bit;
  while (c > 0) {
    if (bit / 8 >= stream.size()) return Beyond();
    const unsigned byte = std::to_integer<unsigned>(stream[bit / 8]) >> bit % 8;
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

}  // namespace

void PayloadParts::operator+=(const PayloadParts& other) {
  positions += other.positions;
  differences += other.differences;
  rest += other.rest;
}

StatusOr<PayloadParts> SplitFast(Bytes payload, size_t raw_bytes, unsigned width) {
  DW_RETURN_IF_ERROR(CheckHead(payload, kFastHeader, kernels::Codec::kFast));
  std::array<Column, 3> columns;
  size_t row_bits = 0;
  for (size_t i = 0; i < columns.size(); ++i) {
    columns[i] = Column::Of(LoadLe<uint32_t>(&payload[kFastColumns + 4 * i]));
    row_bits += columns[i].width;
  }
  const size_t n = raw_bytes / width, blocks = (n + kBlock - 1) / kBlock;
  size_t stream_at = kFastHeader + (row_bits * blocks + 7) / 8;
  BitReader table(payload, kFastHeader * 8);
  PayloadParts out;
  out.rest = static_cast<double>(stream_at) * 8;
  for (size_t b = 0; b < blocks; ++b) {
    std::array<uint64_t, 3> row{};
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = columns[i].min + table.Take(columns[i].width);
    }
    const auto [changed, large, bytes] = row;
    const size_t m = std::min(kBlock, n - b * kBlock);
    if (table.beyond() || bytes > payload.size() - stream_at) return Beyond();
    const Bytes stream = payload.subspan(stream_at, bytes);
    stream_at += bytes;
    if (changed == 0) continue;
    if (bytes == m * width) {
      out.differences += static_cast<double>(bytes) * 8;
      continue;
    }
    const size_t low = changed * Rice(changed, m);
    DW_ASSIGN_OR_RETURN(const size_t quotient, Quotients(stream, low + changed, changed));
    // The padding of the last byte counts as differences.
    out.positions += static_cast<double>(low + quotient);
    out.differences += static_cast<double>(bytes * 8 - low - quotient);
  }
  return out;
}

namespace {

struct TightModel {
  kernels::ClassFunction function = kernels::ClassFunction::kNone;
  unsigned base = 0;
  double weight[kRows][kClasses] = {};  // in octaves
  size_t parameter_bits = 0;            // group sizes included, padding as well
};

double RateWeight(unsigned code) {
  return static_cast<double>(4 + (code - 1) % 4) * std::ldexp(1.0, (code - 1) / 4) / kOctave;
}

void SkipLevels(BitReader& bits) {
  const auto q = bits.Take(5);
  bits.Skip(4 * q);
}

StatusOr<TightModel> ReadModel(Bytes payload, size_t elements) {
  constexpr unsigned kHighestRow[9] = {0, 1, 2, 3, 3, 4, 4, 4, 4};
  DW_RETURN_IF_ERROR(CheckHead(payload, kTightHeader, kernels::Codec::kTight));
  TightModel model;
  const auto byte3 = std::to_integer<unsigned>(payload[3]);
  model.function = static_cast<kernels::ClassFunction>(byte3 & 15);
  model.base = std::to_integer<unsigned>(payload[4]);
  const auto depth = std::to_integer<unsigned>(payload[5]);
  if (depth > kernels::kMaxHistory) return Beyond();
  const size_t header = kTightHeader + (depth > 0 ? 4 : 0);
  BitReader bits(payload, header * 8);
  for (unsigned row = 0; row <= kHighestRow[depth]; ++row) {
    const uint64_t mask = bits.Take(16);
    for (unsigned c = 0; c < kClasses; ++c) {
      if ((mask >> c & 1) == 0) continue;
      if (row == 0) {
        model.weight[row][c] = RateWeight(std::max(1u, static_cast<unsigned>(bits.Take(7))));
      } else {
        model.weight[row][c] = kLevelWeight[bits.Take(4)] / kOctave;
        bits.Skip(4);
      }
    }
  }
  SkipLevels(bits);  // Q1
  SkipLevels(bits);  // Q2
  bits.Skip(4);      // M
  const Column sizes = Column::Of(bits.Take(32));
  const size_t blocks = (elements + kBlock - 1) / kBlock;
  const size_t per_group = size_t{1} << (byte3 >> 4 & 3);
  bits.Skip(sizes.width * ((blocks + per_group - 1) / per_group));
  if (bits.beyond() || bits.bit() > payload.size() * 8) return Beyond();
  model.parameter_bits = (bits.bit() + 7) / 8 * 8;
  return model;
}

}  // namespace

StatusOr<PayloadParts> SplitTight(Bytes payload, Bytes old_data, Bytes new_data, unsigned width,
                                  std::span<const uint8_t> contexts) {
  DW_ASSIGN_OR_RETURN(const TightModel model, ReadModel(payload, old_data.size() / width));
  uint64_t unchanged[kRows][kClasses] = {}, changed[kRows][kClasses] = {};
  for (size_t i = 0; i < old_data.size() / width; ++i) {
    const uint64_t before = LoadElement(&old_data[i * width], width);
    const uint64_t after = LoadElement(&new_data[i * width], width);
    const int e = static_cast<int>(ExponentOf(model.function, before));
    const auto c = static_cast<size_t>(std::clamp(e - static_cast<int>(model.base), 0, 15));
    const size_t row = contexts.empty() || contexts[i] == 0 ? 0 : 1u + (contexts[i] - 1u) / 2;
    ++(before == after ? unchanged : changed)[row][c];
  }
  PayloadParts out;
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t c = 0; c < kClasses; ++c) {
      const double weight = model.weight[row][c];
      out.positions += static_cast<double>(unchanged[row][c]) * weight;
      if (changed[row][c] == 0) continue;
      if (weight == 0) return absl::DataLossError("an element changed where the masks say never");
      out.positions -= static_cast<double>(changed[row][c]) * std::log2(1 - std::exp2(-weight));
    }
  }
  out.rest = static_cast<double>(model.parameter_bits);
  out.differences = static_cast<double>(payload.size()) * 8 - out.rest - out.positions;
  return out;
}

}  // namespace deltawire::bench
