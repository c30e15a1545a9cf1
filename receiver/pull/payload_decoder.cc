#include "receiver/pull/payload_decoder.h"

#include <chrono>
#include <cstring>

#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/of_this_thread.h"
#include "common/base/sync.h"
#include "common/delta/chunk_history.h"

namespace deltawire::receiver {
namespace {

using kernels::DecodeStatus;
using Clock = SteadyClock;

struct Scratch {
  ScratchMemory old, out;
};

Scratch& ThisThread() { return OfThisThread<Scratch>(); }

void Keep(Bytes fast, PayloadDecoder::Payload& out) {
  out.decoded = std::make_unique_for_overwrite<std::byte[]>(fast.size());
  std::memcpy(out.decoded.get(), fast.data(), fast.size());
  out.bytes = fast.size();
}

}  // namespace

PayloadDecoder::PayloadDecoder(const Buffer& buffer, CoderRates& rates, LogView history)
    : buffer_(buffer), backend_(kernels::Best()), rates_(rates), history_(std::move(history)) {}

Bytes PayloadDecoder::OldBytes(uint32_t chunk, std::span<const Bytes> before) const {
  const Bytes now = buffer_.bases().bytes(chunk);
  if (before.empty()) return now;
  const MutableBytes old = ThisThread().old.Sized(now.size());
  std::memcpy(old.data(), now.data(), now.size());
  uint64_t ignored = 0;
  for (const Bytes& fast : before) {
    backend_.decode_apply(buffer_.key(), fast, old, buffer_.chunks()[chunk].width, 0, &ignored);
  }
  return old;
}

StatusOr<PayloadDecoder::Payload> PayloadDecoder::ToFast(uint32_t chunk, Bytes payload,
                                                         std::span<const Bytes> before,
                                                         bool first) const {
  Payload out;
  out.bytes = payload.size();
  const Coder* coder = CoderOf(payload);
  if (coder == nullptr) return out;  // fast, or refused when it is validated as that
  out.codec = coder->codec;
  const Chunk& place = buffer_.chunks()[chunk];
  const std::string& tensor = buffer_.layout().tensor(place.tensor).name;
  const auto start = Clock::now();
  HistoryNeed need;
  auto decoded = coder->read_need ? coder->read_need(payload, &need) : DecodeStatus::kOk;
  out.depth = need.depth;
  const ChunkHistory past = first ? ChunkHistory(history_, chunk, need.depth) : ChunkHistory();
  CodedChunk coded{backend_, place.bytes, place.width};
  coded.history = past.First(past.depth());
  if (decoded == DecodeStatus::kOk &&
      (past.depth() != need.depth || coded.history.context != need.context)) {
    LogWarn(
        "chunk {} of tensor {}: its delta looks back to {} other deltas than those here: "
        "fetching it whole",
        chunk, tensor, need.depth);
    out.fits = false;
    return out;
  }
  const MutableBytes fast =
      ThisThread().out.Sized(kernels::MaxEncodedBytes(place.bytes, place.width));
  if (decoded == DecodeStatus::kOk) {
    if (coder->needs_old) coded.old_data = OldBytes(chunk, before);
    decoded = coder->decode(coded, payload, fast, &out.bytes);
  }
  if (decoded == DecodeStatus::kOk) {
    rates_.decode[coder->codec].Add(coder->work(place.bytes, out.bytes), SecondsSince(start));
    Keep(fast.first(out.bytes), out);
  } else if (coder->needs_old) {
    // Its checksum was right, so most likely the bytes here are not what their digest says.
    LogError(
        "chunk {} of tensor {}: its {} delta does not fit the bytes here ({}): "
        "fetching it whole",
        chunk, tensor, kernels::NameOf(coder->codec), kernels::ToString(decoded));
    out.fits = false;
  } else {
    return Errorf(StatusCode::kDataLoss, "the {} delta for chunk {} of tensor {} is malformed: {}",
                  kernels::NameOf(coder->codec), chunk, tensor, kernels::ToString(decoded));
  }
  return out;
}

}  // namespace deltawire::receiver
