#include "bench/delta/sizes.h"

#include <mutex>

namespace deltawire::bench {
namespace {

using kernels::DecodeStatus;

// One tensor's share: chunk after chunk, on one thread.
class TensorSizes {
 public:
  TensorSizes(const Workload& w, const Engine& engine, const kernels::Backend& kernels,
              const kernels::DigestKey& key, size_t tensor)
      : w_(w),
        engine_(engine),
        kernels_(kernels),
        key_(key),
        counter_(ClassFunctionOf(w.layout.tensor(tensor).dtype),
                 DTypeBytes(w.layout.tensor(tensor).dtype)) {
    if (engine.has_tight()) sizes_.tight.emplace();
    if (engine.has_tight() && engine.has_history()) sizes_.tight_history.emplace();
    if (engine.has_dense()) sizes_.dense = 0;
    if (engine.has_history()) sizes_.fold_fast.emplace();
    if (engine.has_history() && engine.has_tight()) sizes_.fold_tight.emplace();
  }

  Status Add(uint32_t chunk);
  Sizes Finish() {
    sizes_.bounds = counter_.Finish();
    return std::move(sizes_);
  }

 private:
  Status Check(uint32_t chunk, const char* what, DecodeStatus status) const {
    if (status == DecodeStatus::kOk) return absl::OkStatus();
    return Errorf(StatusCode::kInternal, "{}: {} of chunk {}: {}", w_.name, what, chunk,
                  kernels::ToString(status));
  }
  Status MakeContexts(uint32_t chunk);
  void AddCodec(const StatusOr<PayloadParts>& parts, Bytes payload, CodecSize& size) const;
  void AddBest(uint32_t chunk);
  Status AddFold(uint32_t chunk);
  StatusOr<size_t> TightBytes(uint32_t chunk, Bytes old_data, Bytes payload);

  const Workload& w_;
  const Engine& engine_;
  const kernels::Backend& kernels_;
  const kernels::DigestKey& key_;
  ChangeCounter counter_;
  Sizes sizes_;
  std::vector<uint8_t> contexts_;
  std::vector<std::byte> data_, payload_, negated_;
  std::vector<std::byte> scratch_ =
      std::vector<std::byte>(std::max(kernels::kTightScratchBytes, kernels::FoldScratchBytes(8)));
};

// A delta applied to zeros is its differences; the newest is written last.
Status TensorSizes::MakeContexts(uint32_t chunk) {
  const Chunk& c = w_.chunks[chunk];
  const size_t n = c.bytes / c.width;
  const auto& past = engine_.PastOf(chunk);
  contexts_.assign(n, 0);
  for (size_t age = std::min(kernels::kMaxHistory, past.size()); age > 0; --age) {
    if (past[age - 1].empty()) continue;
    data_.assign(c.bytes, std::byte{0});
    uint64_t digest = 0;
    DW_RETURN_IF_ERROR(
        Check(chunk, "decode_apply",
              kernels_.decode_apply(key_, past[age - 1], data_, c.width, 0, &digest)));
    for (size_t i = 0; i < n; ++i) {
      const uint64_t difference = LoadElement(&data_[i * c.width], c.width);
      if (difference == 0) continue;
      const bool up = SignedDifference(0, difference, c.width) > 0;
      contexts_[i] = HistoryContext(static_cast<unsigned>(age), up);
    }
  }
  return absl::OkStatus();
}

void TensorSizes::AddCodec(const StatusOr<PayloadParts>& parts, Bytes payload,
                           CodecSize& size) const {
  size.bytes += payload.size();
  if (parts.ok()) {
    size.parts += *parts;
  } else {
    size.no_parts = MessageOf(parts.status());
  }
}

void TensorSizes::AddBest(uint32_t chunk) {
  size_t best = w_.chunks[chunk].bytes;
  const char* name = "raw";
  const auto offer = [&](const char* codec, const std::vector<std::byte>& payload) {
    if (payload.empty() || payload.size() >= best) return;
    best = payload.size();
    name = codec;
  };
  offer("fast", engine_.fast()[chunk]);
  offer("tight", engine_.tight(false)[chunk]);
  offer("dense", engine_.dense()[chunk]);
  offer("tight with history", engine_.tight(true)[chunk]);
  sizes_.best += best;
  ++sizes_.chosen[name];
}

Status TensorSizes::Add(uint32_t chunk) {
  const Chunk& c = w_.chunks[chunk];
  DW_RETURN_IF_ERROR(MakeContexts(chunk));
  counter_.Add(w_.OldOf(c), w_.NewOf(c), contexts_);
  const Bytes fast = engine_.fast()[chunk];
  if (!fast.empty()) {
    const StatusOr<PayloadParts> fast_parts = SplitFast(fast, c.bytes, c.width);
    AddCodec(fast_parts, fast, sizes_.fast);
    for (const bool history : {false, true}) {
      auto& size = history ? sizes_.tight_history : sizes_.tight;
      if (!size) continue;
      const Bytes tight = engine_.tight(history)[chunk];
      if (tight.empty()) {  // no smaller than fast, which is sent then
        AddCodec(fast_parts, fast, *size);
        continue;
      }
      const std::span<const uint8_t> contexts = contexts_;
      AddCodec(SplitTight(tight, w_.OldOf(c), w_.NewOf(c), c.width,
                          history ? contexts : contexts.first(0)),
               tight, *size);
    }
    const size_t dense = engine_.dense()[chunk].size();
    if (sizes_.dense) *sizes_.dense += dense == 0 ? c.bytes : dense;
    AddBest(chunk);
  }
  return sizes_.fold_fast ? AddFold(chunk) : absl::OkStatus();
}

StatusOr<size_t> TensorSizes::TightBytes(uint32_t chunk, Bytes old_data, Bytes payload) {
  const Chunk& c = w_.chunks[chunk];
  std::vector<std::byte>& out = negated_;  // not needed any more by now
  if (out.size() < payload.size()) out.resize(payload.size());
  size_t bytes = 0;
  DW_RETURN_IF_ERROR(Check(chunk, "tight_encode",
                           kernels_.tight_encode(old_data, payload, c.width, w_.function(c), {},
                                                 scratch_, out, &bytes)));
  return bytes == 0 ? payload.size() : bytes;
}

// Undoes the fold to find the oldest bytes, then walks the single deltas to the new ones again.
Status TensorSizes::AddFold(uint32_t chunk) {
  const Chunk& c = w_.chunks[chunk];
  std::vector<Bytes> steps;
  for (const Delta& d : w_.deltas) {
    if (!d[chunk].empty()) steps.push_back(d[chunk]);
  }
  if (steps.empty()) return absl::OkStatus();
  payload_.resize(kernels::MaxEncodedBytes(c.bytes, c.width));
  negated_.resize(payload_.size());
  size_t fold_bytes = 0, negated_bytes = 0;
  uint64_t digest = 0;
  DW_RETURN_IF_ERROR(Check(
      chunk, "fold", kernels_.fold(steps, c.bytes, c.width, scratch_, payload_, &fold_bytes)));
  const Bytes new_data = w_.NewOf(c);
  data_.assign(new_data.begin(), new_data.end());
  const Bytes fold = Bytes(payload_).first(fold_bytes);
  if (fold_bytes > 0) {
    DW_RETURN_IF_ERROR(
        Check(chunk, "negate",
              kernels_.negate(fold, c.bytes, c.width, scratch_, negated_, &negated_bytes)));
    DW_RETURN_IF_ERROR(Check(chunk, "decode_apply",
                             kernels_.decode_apply(key_, Bytes(negated_).first(negated_bytes),
                                                   data_, c.width, 0, &digest)));
  }
  sizes_.fold_fast->fold += fold_bytes;
  if (sizes_.fold_tight && fold_bytes > 0) {
    DW_ASSIGN_OR_RETURN(const size_t bytes, TightBytes(chunk, data_, fold));
    sizes_.fold_tight->fold += bytes;
  }
  for (size_t i = steps.size(); i-- > 0;) {
    sizes_.fold_fast->singles += steps[i].size();
    if (sizes_.fold_tight) {
      DW_ASSIGN_OR_RETURN(const size_t bytes, TightBytes(chunk, data_, steps[i]));
      sizes_.fold_tight->singles += bytes;
    }
    DW_RETURN_IF_ERROR(Check(chunk, "decode_apply",
                             kernels_.decode_apply(key_, steps[i], data_, c.width, 0, &digest)));
  }
  if (std::equal(data_.begin(), data_.end(), new_data.begin())) return absl::OkStatus();
  return Errorf(StatusCode::kDataLoss, "{}: the fold of chunk {} is not the sum of its deltas",
                w_.name, chunk);
}

void AddTo(CodecSize& sum, const CodecSize& part) {
  sum.bytes += part.bytes;
  sum.parts += part.parts;
  if (!part.no_parts.empty()) sum.no_parts = part.no_parts;
}

void AddTo(FoldSize& sum, const FoldSize& part) {
  sum.fold += part.fold;
  sum.singles += part.singles;
}

template <typename T>
void AddTo(std::optional<T>& sum, const std::optional<T>& part) {
  if (!part) return;
  if (!sum) sum.emplace();
  AddTo(*sum, *part);
}

void AddTo(Sizes& sum, const Sizes& part) {
  sum.bounds += part.bounds;
  AddTo(sum.fast, part.fast);
  AddTo(sum.tight, part.tight);
  AddTo(sum.tight_history, part.tight_history);
  if (part.dense) sum.dense = sum.dense.value_or(0) + *part.dense;
  sum.best += part.best;
  for (const auto& [name, count] : part.chosen) sum.chosen[name] += count;
  AddTo(sum.fold_fast, part.fold_fast);
  AddTo(sum.fold_tight, part.fold_tight);
}

}  // namespace

StatusOr<Sizes> MeasureSizes(const Workload& w, const Engine& engine,
                             const kernels::Backend& kernels, const kernels::DigestKey& key,
                             ThreadPool& pool) {
  std::mutex mu;
  Sizes sum;
  Status first_error;
  pool.ParallelFor(w.layout.size(), [&](size_t t) {
    TensorSizes tensor(w, engine, kernels, key, t);
    Status status;
    for (uint32_t i = w.chunks.first_of_tensor(t); i < w.chunks.end_of_tensor(t); ++i) {
      status = tensor.Add(i);
      if (!status.ok()) break;
    }
    const Sizes sizes = tensor.Finish();
    std::lock_guard lock(mu);
    first_error.Update(status);
    AddTo(sum, sizes);
  });
  DW_RETURN_IF_ERROR(first_error);
  return sum;
}

}  // namespace deltawire::bench
