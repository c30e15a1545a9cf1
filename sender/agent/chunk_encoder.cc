#include "sender/agent/chunk_encoder.h"

#include <chrono>
#include <cstring>

#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/of_this_thread.h"
#include "common/base/sync.h"
#include "common/delta/class_function.h"
#include "common/delta/dense.h"

namespace deltawire::sender {
namespace {

using kernels::Codec;
using kernels::DecodeStatus;
using Clock = SteadyClock;

struct Scratch {
  ScratchMemory base, negated, fold, tight, out;
  std::vector<std::byte> dense;
};

Scratch& ThisThread() { return OfThisThread<Scratch>(); }

EncodedCache::Value Keep(Codec codec, Bytes payload) {
  auto value = std::make_shared<Encoded>();
  value->codec = codec;
  value->bytes.assign(payload.begin(), payload.end());
  value->xxh3 = Xxh3(payload);
  return value;
}

ChunkPayload Payload(const EncodedCache::Value& value) {
  return {value->codec, value->bytes, value->xxh3, value};
}

EncodedCache::Key KeyOf(Codec codec, const ChunkEncoder::Job& job) {
  const ChunkDelta* first = job.plan.chain.front();
  if (codec != Codec::kTight) return {first, codec};
  return {first, codec, job.history.deltas.size(), job.history.context};
}

}  // namespace

StatusOr<ChunkPayload> ChunkEncoder::Fast(const Job& job) const {
  if (job.plan.chain.size() == 1) {
    const ChunkDelta& d = *job.plan.chain.front();
    // The state holds the log view, which holds the delta.
    return ChunkPayload{Codec::kFast, d.payload, d.payload_xxh3, job.leased.state};
  }
  const Chunk& place = model_.chunks()[job.chunk];
  DecodeStatus folded = DecodeStatus::kOk;
  const auto value = job.leased.state->encoded->Get(KeyOf(Codec::kFast, job), [&] {
    std::vector<Bytes> parts;
    for (const ChunkDelta* d : job.plan.chain) parts.push_back(d->payload);
    Scratch& s = ThisThread();
    const MutableBytes out = s.out.Sized(kernels::MaxEncodedBytes(place.bytes, place.width));
    size_t bytes = 0;
    folded =
        model_.backend().fold(parts, place.bytes, place.width,
                              s.fold.Sized(kernels::FoldScratchBytes(place.width)), out, &bytes);
    return folded == DecodeStatus::kOk ? Keep(Codec::kFast, out.first(bytes)) : nullptr;
  });
  if (value == nullptr) {
    return Errorf(StatusCode::kInternal, "model \"{}\": folding {} deltas of chunk {}: {}",
                  model_.name(), job.plan.chain.size(), job.chunk, kernels::ToString(folded));
  }
  return Payload(value);
}

bool ChunkEncoder::Made(Codec codec, const Job& job) const {
  return job.leased.state->encoded->Has(KeyOf(codec, job));
}

ChunkPayload ChunkEncoder::In(Codec codec, const Job& job, ChunkPayload fast) const {
  if (codec == Codec::kFast) return fast;
  const auto value = job.leased.state->encoded->Get(KeyOf(codec, job), [&] {
    return codec == Codec::kTight ? MakeTight(job, fast.bytes) : MakeDense(job, fast.bytes);
  });
  return value == nullptr || value->bytes.empty() ? fast : Payload(value);
}

Bytes ChunkEncoder::BaseBytes(const Job& job, Bytes fast) const {
  const Chunk& place = model_.chunks()[job.chunk];
  const kernels::Backend& backend = model_.backend();
  Scratch& s = ThisThread();
  const Bytes now = model_.half(job.leased.state->half).subspan(place.offset, place.bytes);
  const MutableBytes base = s.base.Sized(place.bytes);
  std::memcpy(base.data(), now.data(), now.size());
  const MutableBytes negated = s.negated.Sized(kernels::MaxEncodedBytes(place.bytes, place.width));
  size_t bytes = 0;
  uint64_t digest = (*job.leased.state->digests)[job.chunk];
  auto done = backend.negate(fast, place.bytes, place.width,
                             s.fold.Sized(kernels::FoldScratchBytes(place.width)), negated, &bytes);
  if (done == DecodeStatus::kOk) {
    done = backend.decode_apply(model_.key(), negated.first(bytes), base, place.width, digest,
                                &digest);
  }
  if (done == DecodeStatus::kOk && digest == job.plan.chain.front()->digest_before) return base;
  LogError(
      "model {}: chunk {} of tensor {}: the bytes before its delta do not have their digest; it is "
      "sent in the codec fast",
      model_.name(), job.chunk, model_.layout().tensor(place.tensor).name);
  return {};
}

EncodedCache::Value ChunkEncoder::MakeTight(const Job& job, Bytes fast) const {
  const Chunk& place = model_.chunks()[job.chunk];
  const auto start = Clock::now();
  const Bytes base = BaseBytes(job, fast);
  if (base.empty()) return nullptr;
  Scratch& s = ThisThread();
  const MutableBytes out = s.out.Sized(fast.size());
  size_t bytes = 0;
  const auto done = model_.backend().tight_encode(
      base, fast, place.width, ClassFunctionOf(model_.layout().tensor(place.tensor).dtype),
      job.history, s.tight.Sized(kernels::kTightScratchBytes), out, &bytes);
  if (done != DecodeStatus::kOk) bytes = 0;
  rates_.tight_encode.Add(TightWork(place.bytes, fast.size()), SecondsSince(start));
  rates_.AddTightSize(fast.size(), bytes == 0 ? fast.size() : bytes);
  return Keep(Codec::kTight, out.first(bytes));
}

EncodedCache::Value ChunkEncoder::MakeDense(const Job& job, Bytes fast) const {
  const Chunk& place = model_.chunks()[job.chunk];
  const auto start = Clock::now();
  std::vector<std::byte>& out = ThisThread().dense;
  const size_t bytes =
      DenseEncode(model_.backend(), fast, place.bytes, place.width, place.bytes, out);
  rates_.dense_encode.Add(DenseWork(place.bytes), SecondsSince(start));
  rates_.AddDenseSize(fast.size(), bytes == 0 ? place.bytes : bytes);
  return Keep(Codec::kDense, Bytes(out).first(bytes));
}

}  // namespace deltawire::sender
