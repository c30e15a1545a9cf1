#include "bench/delta/payload_parts.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "bench/delta/bounds.h"
#include "kernels/format.h"

namespace deltawire::bench {
namespace {

using kernels::kBlockElements;
using kernels::kClasses;
using kernels::kColumnBytes;
using kernels::kContextBytes;
using kernels::kFastColumns;
using kernels::kHeaderBytes;
using kernels::kHistoryRows;
using kernels::kLevelBits;
using kernels::kLevelCountBits;
using kernels::kLevelWeight;
using kernels::kRateCodeBits;
using kernels::kTableOffset;
using kernels::kTightHeadBytes;
using kernels::RiceParameter;

constexpr double kOctave = 1 << kernels::kOctaveBits;

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
    const auto word = static_cast<uint32_t>(description);
    return {kernels::ColumnWidth(word), kernels::ColumnMin(word)};
  }
};

Status CheckHead(Bytes payload, size_t header, kernels::Codec codec) {
  if (payload.size() < header || payload[0] != std::byte{kernels::kFormat} ||
      payload[1] != std::byte{static_cast<uint8_t>(codec)}) {
    return absl::UnimplementedError("the payload is of another format or codec");
  }
  return absl::OkStatus();
}

Status Beyond() { return absl::DataLossError("the payload ends before its parts do"); }

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
  DW_RETURN_IF_ERROR(CheckHead(payload, kTableOffset, kernels::Codec::kFast));
  std::array<Column, kFastColumns> columns;
  size_t row_bits = 0;
  for (size_t i = 0; i < columns.size(); ++i) {
    columns[i] = Column::Of(LoadLe<uint32_t>(&payload[kHeaderBytes + kColumnBytes * i]));
    row_bits += columns[i].width;
  }
  const size_t n = raw_bytes / width, blocks = (n + kBlockElements - 1) / kBlockElements;
  size_t stream_at = kTableOffset + (row_bits * blocks + 7) / 8;
  BitReader table(payload, kTableOffset * 8);
  PayloadParts out;
  out.rest = static_cast<double>(stream_at) * 8;
  for (size_t b = 0; b < blocks; ++b) {
    std::array<uint64_t, kFastColumns> row{};
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = columns[i].min + table.Take(columns[i].width);
    }
    const auto [changed, large, bytes] = row;
    const size_t m = std::min(kBlockElements, n - b * kBlockElements);
    if (table.beyond() || bytes > payload.size() - stream_at) return Beyond();
    const Bytes stream = payload.subspan(stream_at, bytes);
    stream_at += bytes;
    if (changed == 0) continue;
    if (bytes == m * width) {
      out.differences += static_cast<double>(bytes) * 8;
      continue;
    }
    const size_t low = changed * RiceParameter(changed, m);
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
  double weight[kHistoryRows][kClasses] = {};  // in octaves
  size_t parameter_bits = 0;                   // group sizes included, padding as well
};

double RateWeight(unsigned code) { return kernels::CodeWeight(code) / kOctave; }

void SkipLevels(BitReader& bits) {
  const auto q = bits.Take(kLevelCountBits);
  bits.Skip(kLevelBits * q);
}

StatusOr<TightModel> ReadModel(Bytes payload, size_t elements) {
  DW_RETURN_IF_ERROR(CheckHead(payload, kTightHeadBytes, kernels::Codec::kTight));
  TightModel model;
  const auto byte3 = std::to_integer<unsigned>(payload[3]);
  model.function = static_cast<kernels::ClassFunction>(byte3 & 15);
  model.base = std::to_integer<unsigned>(payload[4]);
  const auto depth = std::to_integer<unsigned>(payload[5]);
  if (depth > kernels::kMaxHistory) return Beyond();
  const size_t header = kTightHeadBytes + (depth > 0 ? kContextBytes : 0);
  BitReader bits(payload, header * 8);
  for (unsigned row = 0; row <= kernels::HighestRow(depth); ++row) {
    const uint64_t mask = bits.Take(kClasses);
    for (unsigned c = 0; c < kClasses; ++c) {
      if ((mask >> c & 1) == 0) continue;
      if (row == 0) {
        model.weight[row][c] =
            RateWeight(std::max(1u, static_cast<unsigned>(bits.Take(kRateCodeBits))));
      } else {
        model.weight[row][c] = kLevelWeight[bits.Take(kLevelBits)] / kOctave;
        bits.Skip(kLevelBits);
      }
    }
  }
  SkipLevels(bits);       // Q1
  SkipLevels(bits);       // Q2
  bits.Skip(kLevelBits);  // M
  const Column sizes = Column::Of(bits.Take(32));
  const size_t blocks = (elements + kBlockElements - 1) / kBlockElements;
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
  uint64_t unchanged[kHistoryRows][kClasses] = {}, changed[kHistoryRows][kClasses] = {};
  for (size_t i = 0; i < old_data.size() / width; ++i) {
    const uint64_t before = LoadElement(&old_data[i * width], width);
    const uint64_t after = LoadElement(&new_data[i * width], width);
    const unsigned c = kernels::ClassOfExponent(ExponentOf(model.function, before), model.base);
    const size_t row = contexts.empty() || contexts[i] == 0 ? 0 : 1u + (contexts[i] - 1u) / 2;
    ++(before == after ? unchanged : changed)[row][c];
  }
  PayloadParts out;
  for (size_t row = 0; row < kHistoryRows; ++row) {
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
