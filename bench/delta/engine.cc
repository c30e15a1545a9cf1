#include "bench/delta/engine.h"

#include <atomic>

#include "common/base/human.h"
#include "common/delta/dense.h"
#include "kernels/format.h"
#include "tests/support/delta_case.h"

namespace deltawire::bench {
namespace {

using kernels::DecodeStatus;

constexpr double kDenseFrom = 0.05;  // the least share of changed elements for dense
constexpr size_t kPieceBytes = 64 << 10;
constexpr const char* kPairsEncode = "pairs_encode";
constexpr const char* kPairsApply = "pairs_apply";
constexpr OperationTargets kThreadsOnly = {.of_one_thread = 1.8};

constexpr Operation Encoding(const char* name, Form form, const char* pairs,
                             OperationTargets targets) {
  return {name, &Engine::Encode, form, 0, true, false, pairs, targets};
}
constexpr Operation Applying(const char* name, Form form, OperationTargets targets) {
  return {name, &Engine::Apply, form, 1, true, true, kPairsApply, targets};
}

constexpr Operation kOperations[] = {
    {"memcpy", &Engine::CopyOld},
    {"memcmp", &Engine::Compare},
    {"diff_only", &Engine::DiffUnchanged},
    {"digest", &Engine::Digest, kChunkBytes},
    {"digest_pieces", &Engine::Digest, kPieceBytes},  // as a receiver digests an arriving chunk
    Encoding("encode_fast", kFast, kPairsEncode,
             {.of_reference = 0.75, .of_pairs = 3, .of_one_thread = 1.8}),
    {"encode_checked", &Engine::EncodeChecked},
    {.name = "publish_unchecked", .chunk = nullptr, .argument = false},
    {.name = "publish",
     .chunk = nullptr,
     .argument = true,
     .targets = {.of_reference = 0.95},
     .reference = "publish_unchecked"},
    Encoding("encode_tight", kTight, "",
             {.of_reference = 0.3, .gb_per_second = 2, .of_one_thread = 1.8}),
    Encoding("encode_tight_history", kTightHistory, "", kThreadsOnly),
    Encoding("encode_dense", kDense, "", {}),
    {"validate_fast", &Engine::ValidateFast, 0, 1},
    Applying("apply_fast", kFast, {.changes_per_second = 120, .of_one_thread = 1.8}),
    Applying("apply_tight", kTight, {.gb_per_second = 1.5, .of_one_thread = 1.8}),
    Applying("apply_tight_history", kTightHistory, kThreadsOnly),
    Applying("apply_dense", kDense, {}),
    {"fold_2", &Engine::Fold, 2, 2},
    {"fold_8", &Engine::Fold, 8, 8},
    {"fold_32", &Engine::Fold, 32, 32},
};

}  // namespace

std::string NameOf(Form form) {
  using kernels::Codec;
  const Codec codec = form == kFast ? Codec::kFast : form == kDense ? Codec::kDense : Codec::kTight;
  return fmt::format("{}{}", kernels::NameOf(codec), form == kTightHistory ? "_history" : "");
}

std::span<const Operation> AllOperations() { return kOperations; }

StatusOr<std::unique_ptr<Engine>> Engine::Create(const Workload& w, size_t threads,
                                                 ThreadPool& pool) {
  auto engine = std::unique_ptr<Engine>(new Engine(w));
  DW_ASSIGN_OR_RETURN(engine->work_, HugeBuffer::Create(w.bytes()));
  engine->workers_.resize(std::max(threads, pool.size()));
  for (Worker& worker : engine->workers_) {
    worker.fast.resize(kernels::MaxEncodedBytes(kChunkBytes, 1));  // the most of any width
    worker.coded.resize(worker.fast.size());
    worker.scratch.resize(std::max(kernels::kTightScratchBytes, kernels::FoldScratchBytes(8)));
  }
  const uint32_t chunks = w.chunks.size();
  engine->digest_old_.resize(chunks);
  engine->digest_new_.resize(chunks);
  engine->past_.resize(chunks);
  engine->context_.resize(chunks);
  for (const Form form : kForms) engine->payloads_[form].resize(chunks);
  DW_RETURN_IF_ERROR(engine->Restore(pool));
  DW_RETURN_IF_ERROR(engine->RunChunks(pool, &Engine::Prepare, 0).status());
  return engine;
}

Status Engine::Prepare(Worker& worker, uint32_t chunk, size_t) {
  const Chunk& c = workload_.chunks[chunk];
  digest_old_[chunk] = kernels::Best().digest(workload_.key, workload_.OldOf(c));
  digest_new_[chunk] = kernels::Best().digest(workload_.key, workload_.NewOf(c));
  for (size_t d = 1; d < workload_.deltas.size(); ++d) {
    past_[chunk].push_back(workload_.deltas[d][chunk]);
  }
  context_[chunk] = kernels::test::ContextOf(HistoryOf(chunk, kTightHistory).deltas);
  const Bytes fast = payloads(kFast)[chunk];
  for (const Form form : kForms) {
    if (form == kFast || !has(form) || fast.empty()) continue;
    DW_ASSIGN_OR_RETURN(const size_t bytes, Recode(worker, chunk, fast, form));
    payloads_[form][chunk].assign(worker.coded.begin(),
                                  worker.coded.begin() + static_cast<ptrdiff_t>(bytes));
  }
  return absl::OkStatus();
}

bool Engine::has(Form form) const {
  if (form == kFast) return true;
  if (form == kDense) {
    return static_cast<double>(workload_.changed) >=
           kDenseFrom * static_cast<double>(workload_.elements);
  }
  return kernels::Best().tight_encode != nullptr && (form == kTight || has_history());
}

bool Engine::CanRun(const Operation& operation) const {
  if (operation.deltas > 0 && workload_.changed == 0) return false;
  return operation.deltas <= workload_.deltas.size() &&
         (!operation.of_form || has(static_cast<Form>(operation.argument)));
}

StatusOr<double> Engine::Run(const Operation& operation, ThreadPool& pool) {
  if (operation.chunk == nullptr) return Publish(pool, operation.argument != 0);
  DW_ASSIGN_OR_RETURN(const double seconds, RunChunks(pool, operation.chunk, operation.argument));
  if (!operation.applies) return seconds;
  DW_RETURN_IF_ERROR(RunChunks(pool, &Engine::CheckNew, 0).status());
  DW_RETURN_IF_ERROR(Restore(pool));
  return seconds;
}

StatusOr<double> Engine::RunChunks(ThreadPool& pool, Operation::ChunkFunction fn, size_t argument) {
  std::atomic<uint32_t> next = 0;
  for (Worker& w : workers_) w.status = absl::OkStatus();
  const auto start = SteadyClock::now();
  pool.ParallelFor(std::min(pool.size(), workers_.size()), [&](size_t slot) {
    Worker& worker = workers_[slot];
    for (uint32_t i = next++; i < workload_.chunks.size() && worker.status.ok(); i = next++) {
      worker.status = (this->*fn)(worker, i, argument);
    }
  });
  const double seconds = SecondsSince(start);
  for (const Worker& w : workers_) DW_RETURN_IF_ERROR(w.status);
  return seconds;
}

Status Engine::Restore(ThreadPool& pool) { return RunChunks(pool, &Engine::CopyOld, 0).status(); }

Status Engine::Ok(uint32_t chunk, std::string_view what, DecodeStatus status) const {
  if (status == DecodeStatus::kOk) return absl::OkStatus();
  return Errorf(StatusCode::kInternal,
                "{}: {} of chunk {} says \"{}\" to a payload of this program", workload_.name, what,
                chunk, kernels::ToString(status));
}

Status Engine::Same(uint32_t chunk, std::string_view what, size_t want, size_t got) const {
  if (want == got) return absl::OkStatus();
  return Errorf(StatusCode::kDataLoss, "{}: {} of chunk {} is {} now and was {} before",
                workload_.name, what, chunk, got, want);
}

Status Engine::CopyOld(Worker&, uint32_t chunk, size_t) {
  const Chunk& c = workload_.chunks[chunk];
  std::memcpy(WorkOf(c).data(), workload_.OldOf(c).data(), c.bytes);
  return absl::OkStatus();
}

Status Engine::Compare(Worker&, uint32_t chunk, size_t) {
  const Chunk& c = workload_.chunks[chunk];
  const bool equal = std::memcmp(WorkOf(c).data(), workload_.OldOf(c).data(), c.bytes) == 0;
  return Same(chunk, "memcmp", true, equal);
}

Status Engine::CheckNew(Worker&, uint32_t chunk, size_t) {
  const Chunk& c = workload_.chunks[chunk];
  const bool equal = std::memcmp(WorkOf(c).data(), workload_.NewOf(c).data(), c.bytes) == 0;
  return Same(chunk, "whether the new bytes came out", true, equal);
}

Status Engine::DiffUnchanged(Worker& worker, uint32_t chunk, size_t) {
  const Chunk& c = workload_.chunks[chunk];
  const kernels::EncodeResult r = kernels::Best().diff_encode(
      workload_.key, workload_.OldOf(c), WorkOf(c), c.width, digest_old_[chunk], worker.fast);
  return Same(chunk, "the delta of nothing", 0, r.bytes);
}

Status Engine::Digest(Worker&, uint32_t chunk, size_t piece_bytes) {
  const Bytes data = workload_.OldOf(workload_.chunks[chunk]);
  uint64_t digest = 0;
  if (piece_bytes == kChunkBytes) digest = kernels::Best().digest(workload_.key, data);
  for (size_t at = 0; piece_bytes < kChunkBytes && at < data.size(); at += piece_bytes) {
    const Bytes piece = data.subspan(at, std::min(piece_bytes, data.size() - at));
    digest += kernels::Best().digest_range(workload_.key, piece, at);
  }
  return Same(chunk, "the digest", digest_old_[chunk], digest);
}

Status Engine::Encode(Worker& worker, uint32_t chunk, size_t form) {
  const Chunk& c = workload_.chunks[chunk];
  const kernels::EncodeResult r =
      kernels::Best().diff_encode(workload_.key, workload_.OldOf(c), workload_.NewOf(c), c.width,
                                  digest_old_[chunk], worker.fast);
  DW_RETURN_IF_ERROR(Same(chunk, "the new digest", digest_new_[chunk], r.digest_after));
  DW_RETURN_IF_ERROR(Same(chunk, "the fast payload", payloads(kFast)[chunk].size(), r.bytes));
  if (form == kFast || r.bytes == 0) return absl::OkStatus();
  const Form other = static_cast<Form>(form);
  DW_ASSIGN_OR_RETURN(const size_t bytes,
                      Recode(worker, chunk, Bytes(worker.fast).first(r.bytes), other));
  return Same(chunk, "the payload", payloads(other)[chunk].size(), bytes);
}

Status Engine::EncodeChecked(Worker& worker, uint32_t chunk, size_t) {
  const Chunk& c = workload_.chunks[chunk];
  const kernels::EncodeResult r = kernels::Best().diff_encode_checked(
      workload_.key, workload_.OldOf(c), workload_.NewOf(c), c.width, worker.fast);
  DW_RETURN_IF_ERROR(Same(chunk, "the old digest", digest_old_[chunk], r.digest_before));
  return Same(chunk, "the fast payload", payloads(kFast)[chunk].size(), r.bytes);
}

kernels::History Engine::HistoryOf(uint32_t chunk, Form form) const {
  if (form != kTightHistory) return {};
  const std::span<const Bytes> past = past_[chunk];
  return {past.first(std::min(kernels::kMaxHistory, past.size())), context_[chunk]};
}

StatusOr<size_t> Engine::Recode(Worker& worker, uint32_t chunk, Bytes fast, Form form) const {
  const Chunk& c = workload_.chunks[chunk];
  if (form == kDense) {
    return DenseEncode(kernels::Best(), fast, c.bytes, c.width, c.bytes, worker.coded);
  }
  size_t bytes = 0;
  DW_RETURN_IF_ERROR(Ok(
      chunk, "tight_encode",
      kernels::Best().tight_encode(workload_.OldOf(c), fast, c.width, workload_.function(c),
                                   HistoryOf(chunk, form), worker.scratch, worker.coded, &bytes)));
  return bytes;
}

StatusOr<size_t> Engine::Decode(Worker& worker, uint32_t chunk, Bytes payload, Form form) {
  const Chunk& c = workload_.chunks[chunk];
  size_t bytes = 0;
  const DecodeStatus status =
      form == kDense
          ? DenseDecode(kernels::Best(), payload, c.bytes, c.width, worker.fast, &bytes)
          : kernels::Best().tight_decode(WorkOf(c), payload, c.width, HistoryOf(chunk, form),
                                         worker.scratch, worker.fast, &bytes);
  DW_RETURN_IF_ERROR(Ok(chunk, "decoding", status));
  return bytes;
}

Status Engine::ValidateFast(Worker&, uint32_t chunk, size_t) {
  const Chunk& c = workload_.chunks[chunk];
  const Bytes fast = payloads(kFast)[chunk];
  if (fast.empty()) return absl::OkStatus();
  return Ok(chunk, "validate", kernels::Best().validate(fast, c.bytes, c.width, nullptr));
}

Status Engine::Apply(Worker& worker, uint32_t chunk, size_t form) {
  Bytes fast = payloads(kFast)[chunk];
  if (fast.empty()) return absl::OkStatus();
  const Bytes coded = payloads(static_cast<Form>(form))[chunk];
  if (form != kFast && !coded.empty()) {  // empty: fast is sent
    DW_ASSIGN_OR_RETURN(const size_t bytes, Decode(worker, chunk, coded, static_cast<Form>(form)));
    DW_RETURN_IF_ERROR(Same(chunk, "the decoded payload", fast.size(), bytes));
    fast = Bytes(worker.fast).first(bytes);
  }
  const Chunk& c = workload_.chunks[chunk];
  uint64_t digest = 0;
  DW_RETURN_IF_ERROR(Ok(chunk, "decode_apply",
                        kernels::Best().decode_apply(workload_.key, fast, WorkOf(c), c.width,
                                                     digest_old_[chunk], &digest)));
  return Same(chunk, "the digest after decode_apply", digest_new_[chunk], digest);
}

Status Engine::Fold(Worker& worker, uint32_t chunk, size_t deltas) {
  const Chunk& c = workload_.chunks[chunk];
  std::array<Bytes, 64> payloads;
  size_t count = 0;
  for (size_t d = 0; d < deltas; ++d) {
    const Bytes payload = workload_.deltas[d][chunk];
    if (!payload.empty()) payloads[count++] = payload;
  }
  if (count == 0) return absl::OkStatus();
  size_t bytes = 0;
  return Ok(chunk, "fold",
            kernels::Best().fold(std::span<const Bytes>(payloads).first(count), c.bytes, c.width,
                                 worker.scratch, worker.fast, &bytes));
}

uint64_t Engine::ChangesOf(size_t n) const {
  uint64_t sum = 0;
  for (size_t d = 0; d < n; ++d) {
    for (uint32_t i = 0; i < workload_.chunks.size(); ++i) {
      const Chunk& c = workload_.chunks[i];
      const Bytes payload = workload_.deltas[d][i];
      uint64_t changed = 0;
      if (!payload.empty()) kernels::Best().validate(payload, c.bytes, c.width, &changed);
      sum += changed;
    }
  }
  return sum;
}

}  // namespace deltawire::bench
