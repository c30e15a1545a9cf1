#include "common/serving/chunk_encoder.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/of_this_thread.h"
#include "common/base/sync.h"
#include "common/delta/class_function.h"
#include "common/serving/undo.h"

namespace deltawire {
namespace {

using kernels::Codec;
using kernels::DecodeStatus;
using Clock = SteadyClock;

struct Scratch {
  ScratchMemory base, fold, out;
};

Scratch& ThisThread() { return OfThisThread<Scratch>(); }

EncodedCache::Value Keep(Codec codec, Bytes payload) {
  auto memory = std::make_shared_for_overwrite<std::byte[]>(payload.size());
  std::copy(payload.begin(), payload.end(), memory.get());
  auto value = std::make_shared<Encoded>();
  value->codec = codec;
  value->bytes = Bytes(memory.get(), payload.size());
  value->xxh3 = Xxh3(payload);
  value->keep = std::move(memory);
  return value;
}

ChunkPayload Payload(const EncodedCache::Value& value) {
  return {value->codec, value->bytes, value->xxh3, value};
}

EncodedCache::Key KeyOf(Codec codec, const ChunkEncoder::Job& job) {
  const ChunkDelta* first = job.plan.chain.front();
  const Coder* coder = CoderOf(codec);
  if (coder == nullptr || coder->read_need == nullptr) return {first, codec};
  const size_t depth = job.history.deltas.size();
  return {first, codec, depth, depth == 0 ? 0 : job.history.context};
}

EncodedCache& CacheOf(const ChunkEncoder::Job& job) {
  return job.incoming != nullptr ? *job.incoming : *job.leased.state->encoded;
}

}  // namespace

StatusOr<std::optional<ChunkPayload>> ChunkEncoder::Fold(const Job& job) const {
  if (job.plan.chain.size() == 1) {
    const ChunkDelta& d = *job.plan.chain.front();
    // The state holds the log view, which holds the delta.
    return std::optional(ChunkPayload{Codec::kFast, d.payload, d.payload_xxh3, job.leased.state});
  }
  const Chunk& place = model_.chunks()[job.chunk];
  DecodeStatus folded = DecodeStatus::kOk;
  const auto fold = [&] {
    std::vector<Bytes> parts;
    for (const ChunkDelta* d : job.plan.chain) parts.push_back(d->payload);
    Scratch& s = ThisThread();
    const MutableBytes out = s.out.Sized(kernels::MaxEncodedBytes(place.bytes, place.width));
    size_t bytes = 0;
    folded =
        model_.backend().fold(parts, place.bytes, place.width,
                              s.fold.Sized(kernels::FoldScratchBytes(place.width)), out, &bytes);
    return folded == DecodeStatus::kOk ? Keep(Codec::kFast, out.first(bytes)) : nullptr;
  };
  const auto got = job.leased.state->encoded->Get(KeyOf(Codec::kFast, job), fold, job.if_busy);
  if (got.busy) return std::optional<ChunkPayload>();
  if (got.value == nullptr) {
    return Errorf(StatusCode::kInternal, "model \"{}\": folding {} deltas of chunk {}: {}",
                  model_.name(), job.plan.chain.size(), job.chunk, kernels::ToString(folded));
  }
  return Payload(got.value);
}

bool ChunkEncoder::IsCached(Codec codec, const Job& job) const {
  return CacheOf(job).Has(KeyOf(codec, job));
}

bool ChunkEncoder::IsCachedWithHistory(const Job& job) const {
  return std::ranges::any_of(Coders(), [&](const Coder& coder) {
    return coder.read_need != nullptr && IsCached(coder.codec, job);
  });
}

std::optional<ChunkPayload> ChunkEncoder::Encode(Codec codec, const Job& job,
                                                 ChunkPayload fast) const {
  const Coder* coder = CoderOf(codec);
  if (coder == nullptr) return fast;
  const auto got = CacheOf(job).Get(
      KeyOf(codec, job), [&] { return Make(*coder, job, fast.bytes); }, job.if_busy);
  if (got.busy) return std::nullopt;
  return got.value == nullptr || got.value->bytes.empty() ? fast : Payload(got.value);
}

Bytes ChunkEncoder::BaseBytes(const Job& job, Bytes fast) const {
  const Chunk& place = model_.chunks()[job.chunk];
  const uint64_t before = job.plan.chain.front()->digest_before;
  // Another thread's payload may have been evicted since the plan was made, and the half given back
  // or filled by the incoming version. Then these bytes must not be read.
  if (job.incoming != nullptr &&
      (job.leased.lease == nullptr || (*job.leased.state->digests)[job.chunk] != before)) {
    return {};
  }
  const Bytes now = model_.half(job.leased.state->half).subspan(place.offset, place.bytes);
  // A payload that is coded against corrupt bytes cannot be decoded by the receiver.
  const auto right = [&](Bytes bytes) {
    return model_.backend().digest(model_.key(), bytes) == before;
  };
  if (job.incoming != nullptr) {
    if (right(now)) return now;
  } else {
    const MutableBytes base = ThisThread().base.Sized(place.bytes);
    std::memcpy(base.data(), now.data(), now.size());
    uint64_t digest = (*job.leased.state->digests)[job.chunk];
    const auto done = UndoDelta(model_.backend(), model_.key(), fast, place.width, base, digest);
    // UndoDelta computes the digest from the payload, so it does not show corrupt bytes.
    if (done == DecodeStatus::kOk && digest == before && right(base)) return base;
  }
  LogError(
      "model {}: chunk {} of tensor {}: the bytes before its delta do not have their digest; it is "
      "sent in the codec fast",
      model_.name(), job.chunk, model_.layout().tensor(place.tensor).name);
  return {};
}

EncodedCache::Value ChunkEncoder::Make(const Coder& coder, const Job& job, Bytes fast) const {
  const Chunk& place = model_.chunks()[job.chunk];
  const auto start = Clock::now();
  CodedChunk chunk{model_.backend(), place.bytes, place.width,
                   ClassFunctionOf(model_.layout().tensor(place.tensor).dtype)};
  chunk.history = job.history;
  if (coder.needs_old) {
    chunk.old_data = BaseBytes(job, fast);
    if (chunk.old_data.empty()) return nullptr;
  }
  const size_t limit = coder.limit(place.bytes, fast.size());
  const Bytes payload = coder.encode(chunk, fast, limit);
  const double work = coder.work(place.bytes, fast.size());
  double seconds = SecondsSince(start);
  // The trainer's copying competes for the cores, so a slow encoding does not count against the
  // codec.
  CoderRate& rate = rates_.encode[coder.codec];
  if (job.incoming != nullptr && rate.per_s() > 0) seconds = std::min(seconds, work / rate.per_s());
  rate.Add(work, seconds);
  rates_.AddSize(coder.codec, fast.size(), payload.empty() ? limit : payload.size());
  return Keep(coder.codec, payload);
}

}  // namespace deltawire
