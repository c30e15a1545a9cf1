#include "bench/delta/payload_parts.h"

#include <bit>
#include <cmath>

#include "kernels/cpu/tight_model.h"
#include "kernels/payload.h"

namespace deltawire::bench {
namespace {

using kernels::kClasses;
using kernels::kHistoryRows;

constexpr double kOctave = 1 << kernels::kOctaveBits;

Status CheckHead(Bytes payload, size_t header, kernels::Codec codec) {
  if (payload.size() < header || payload[0] != std::byte{kernels::kFormat} ||
      payload[1] != std::byte{static_cast<uint8_t>(codec)}) {
    return absl::UnimplementedError("the payload is of another format or codec");
  }
  return absl::OkStatus();
}

Status Beyond() { return absl::DataLossError("the payload ends before its parts do"); }

// Bits of c quotients in unary, from `bit` of the stream of `bytes` on.
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

struct TightModel {
  kernels::ClassFunction function = kernels::ClassFunction::kNone;
  kernels::TightParameters parameters;
  size_t bits = 0;  // of the head, the parameters and the sizes of lanes
};

StatusOr<TightModel> ReadModel(Bytes payload) {
  DW_RETURN_IF_ERROR(CheckHead(payload, kernels::kTightHeadBytes, kernels::Codec::kTight));
  kernels::TightHead head;
  if (kernels::ReadTightHead(payload, &head) != kernels::DecodeStatus::kOk) return Beyond();
  const size_t front = kernels::kTightHeadBytes + (head.depth > 0 ? kernels::kContextBytes : 0);
  TightModel model{.function = head.function};
  model.parameters.rows = kernels::HighestRow(head.depth);
  model.parameters.lane_bits = std::to_integer<unsigned>(payload[3]) >> 4;
  model.parameters.base = std::to_integer<unsigned>(payload[4]);
  kernels::BitReader bits(kernels::Ptr(payload.subspan(front)), payload.size() - front);
  if (!model.parameters.Read(bits)) return Beyond();
  kernels::Column sizes;
  if (!kernels::Column::FromWord(static_cast<uint32_t>(bits.Get(32)), &sizes)) return Beyond();
  bits.Skip(uint64_t{sizes.bits} << model.parameters.lane_bits);
  if (!bits.ok()) return Beyond();
  model.bits = 8 * (front + (bits.position() + 7) / 8);
  return model;
}

}  // namespace

StatusOr<PayloadParts> SplitFast(Bytes payload, size_t raw_bytes, unsigned width) {
  DW_RETURN_IF_ERROR(CheckHead(payload, kernels::kTableOffset, kernels::Codec::kFast));
  kernels::PayloadView view;
  if (kernels::PayloadView::Parse(payload, raw_bytes, width, &view) != kernels::DecodeStatus::kOk) {
    return Beyond();
  }
  PayloadParts out;
  out.rest = static_cast<double>(view.streams() - kernels::Ptr(payload)) * 8;
  kernels::BlockCursor cursor(view);
  for (size_t b = 0; b < view.blocks(); ++b, cursor.Next()) {
    const kernels::BlockRow& row = cursor.row();
    const size_t elements = view.BlockElements(b);
    const double bits = static_cast<double>(row.bytes) * 8;
    double positions = 0;
    if (row.changed > 0 && !row.IsRaw(elements, width)) {
      const size_t low = row.changed * kernels::RiceParameter(row.changed, elements);
      positions = static_cast<double>(
          low + QuotientBits(cursor.stream(), row.bytes, low + row.changed, row.changed));
    }
    out.positions += positions;
    out.differences += bits - positions;  // the padding of the last byte as well
  }
  return out;
}

StatusOr<PayloadParts> SplitTight(Bytes payload, Bytes old_data, Bytes new_data, unsigned width,
                                  std::span<const uint8_t> contexts) {
  DW_ASSIGN_OR_RETURN(const TightModel model, ReadModel(payload));
  uint64_t unchanged[kHistoryRows][kClasses] = {}, changed[kHistoryRows][kClasses] = {};
  for (size_t i = 0; i < old_data.size() / width; ++i) {
    const uint64_t before = LoadElement(&old_data[i * width], width);
    const uint64_t after = LoadElement(&new_data[i * width], width);
    const unsigned c =
        kernels::ClassOfExponent(ExponentOf(model.function, before), model.parameters.base);
    const size_t row = contexts.empty() || contexts[i] == 0 ? 0 : 1u + (contexts[i] - 1u) / 2;
    ++(before == after ? unchanged : changed)[row][c];
  }
  PayloadParts out;
  for (unsigned row = 0; row < kHistoryRows; ++row) {
    for (unsigned c = 0; c < kClasses; ++c) {
      const double octaves = model.parameters.Weight(row, c) / kOctave;
      out.positions += static_cast<double>(unchanged[row][c]) * octaves;
      if (changed[row][c] == 0) continue;
      if (octaves == 0) return absl::DataLossError("an element changed where the masks say never");
      out.positions -= static_cast<double>(changed[row][c]) * std::log2(1 - std::exp2(-octaves));
    }
  }
  out.rest = static_cast<double>(model.bits);
  out.differences = static_cast<double>(payload.size()) * 8 - out.rest - out.positions;
  return out;
}

}  // namespace deltawire::bench
