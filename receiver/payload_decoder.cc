#include "receiver/payload_decoder.h"

#include <chrono>
#include <cstring>

#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/of_this_thread.h"
#include "common/base/sync.h"
#include "common/delta/chunk_history.h"
#include "common/delta/dense.h"

namespace deltawire::receiver {
namespace {

using kernels::Codec;
using kernels::DecodeStatus;
using Clock = SteadyClock;

struct Scratch {
  ScratchMemory old, coder, out;
};

Scratch& ThisThread() { return OfThisThread<Scratch>(); }

void Keep(Bytes fast, PayloadDecoder::Payload& out) {
  out.decoded = std::make_unique_for_overwrite<std::byte[]>(fast.size());
  std::memcpy(out.decoded.get(), fast.data(), fast.size());
  out.bytes = fast.size();
}

}  // namespace

PayloadDecoder::PayloadDecoder(Buffer& buffer, CoderRates& rates, LogView history)
    : buffer_(buffer), backend_(kernels::Best()), rates_(rates), history_(std::move(history)) {}

StatusOr<PayloadDecoder::Payload> PayloadDecoder::ToFast(uint32_t chunk, Bytes payload,
                                                         std::span<const Bytes> before,
                                                         bool first) const {
  if (HasCodec(payload, Codec::kTight)) return Tight(chunk, payload, before, first);
  if (HasCodec(payload, Codec::kDense)) return Dense(chunk, payload);
  Payload out;
  out.bytes = payload.size();
  return out;
}

Bytes PayloadDecoder::OldBytes(uint32_t chunk, std::span<const Bytes> before) const {
  const Bytes now = buffer_.base(chunk);
  if (before.empty()) return now;
  const MutableBytes old = ThisThread().old.Sized(now.size());
  std::memcpy(old.data(), now.data(), now.size());
  uint64_t ignored = 0;
  for (const Bytes& fast : before) {
    backend_.decode_apply(buffer_.key(), fast, old, buffer_.chunks()[chunk].width, 0, &ignored);
  }
  return old;
}

PayloadDecoder::Payload PayloadDecoder::Tight(uint32_t chunk, Bytes payload,
                                              std::span<const Bytes> before, bool first) const {
  const Chunk& place = buffer_.chunks()[chunk];
  const std::string& tensor = buffer_.layout().tensor(place.tensor).name;
  Payload out;
  out.codec = Codec::kTight;
  const auto start = Clock::now();
  kernels::TightHead head;
  auto decoded = kernels::ReadTightHead(payload, &head);
  out.depth = head.depth;
  const ChunkHistory past = first ? ChunkHistory(history_, chunk, head.depth) : ChunkHistory();
  kernels::History history;
  if (decoded == DecodeStatus::kOk) {
    out.fits = past.depth() >= head.depth;
    if (out.fits) history = past.First(head.depth);
    out.fits = out.fits && (head.depth == 0 || history.context == head.context);
    if (!out.fits) {
      LogWarn(
          "chunk {} of tensor {}: its delta looks back to {} other deltas than those here: "
          "fetching it whole",
          chunk, tensor, head.depth);
      return out;
    }
  }
  Scratch& s = ThisThread();
  const MutableBytes fast = s.out.Sized(kernels::MaxEncodedBytes(place.bytes, place.width));
  size_t bytes = 0;
  if (decoded == DecodeStatus::kOk) {
    decoded = backend_.tight_decode(OldBytes(chunk, before), payload, place.width, history,
                                    s.coder.Sized(kernels::kTightScratchBytes), fast, &bytes);
  }
  out.fits = decoded == DecodeStatus::kOk;
  if (out.fits) {
    rates_.tight_decode.Add(TightWork(place.bytes, bytes), SecondsSince(start));
    Keep(fast.first(bytes), out);
  } else {
    // The payload's checksum was right, so most likely the receiver's bytes lack their digest.
    LogError(
        "chunk {} of tensor {}: its tight delta does not fit the bytes here ({}): "
        "fetching it whole",
        chunk, tensor, kernels::ToString(decoded));
  }
  return out;
}

StatusOr<PayloadDecoder::Payload> PayloadDecoder::Dense(uint32_t chunk, Bytes payload) const {
  const Chunk& place = buffer_.chunks()[chunk];
  const auto start = Clock::now();
  const MutableBytes fast =
      ThisThread().out.Sized(kernels::MaxEncodedBytes(place.bytes, place.width));
  size_t bytes = 0;
  const auto decoded = DenseDecode(backend_, payload, place.bytes, place.width, fast, &bytes);
  rates_.dense_decode.Add(DenseWork(place.bytes), SecondsSince(start));
  if (decoded != DecodeStatus::kOk) {
    return Errorf(StatusCode::kDataLoss, "the dense delta for chunk {} of tensor {} is not one: {}",
                  chunk, buffer_.layout().tensor(place.tensor).name, kernels::ToString(decoded));
  }
  Payload out;
  out.codec = Codec::kDense;
  Keep(fast.first(bytes), out);
  return out;
}

}  // namespace deltawire::receiver
