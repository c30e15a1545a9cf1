#include "bench/delta/engine.h"

#include <atomic>

#include "common/base/checksum.h"
#include "common/base/human.h"
#include "common/delta/dense.h"

namespace deltawire::bench {
namespace {

using kernels::DecodeStatus;

constexpr double kDenseFrom = 0.05;  // of the elements changed
constexpr size_t kPieceBytes = 64 << 10;

}  // namespace

uint32_t HistoryCheck(std::span<const Bytes> deltas) {
  std::vector<std::byte> hashes(deltas.size() * sizeof(uint64_t));
  for (size_t i = 0; i < deltas.size(); ++i) {
    StoreLe<uint64_t>(&hashes[i * sizeof(uint64_t)], deltas[i].empty() ? 0 : Xxh3(deltas[i]));
  }
  return static_cast<uint32_t>(Xxh3(hashes));
}

StatusOr<std::unique_ptr<Engine>> Engine::Create(const Workload& w, const kernels::Backend& kernels,
                                                 const kernels::DigestKey& key, size_t threads,
                                                 ThreadPool& pool) {
  auto engine = std::unique_ptr<Engine>(new Engine(w, kernels, key));
  DW_ASSIGN_OR_RETURN(engine->work_, HugeBuffer::Create(w.bytes()));
  engine->tight_ = kernels.tight_encode != nullptr && kernels.tight_decode != nullptr;
  engine->dense_ = static_cast<double>(w.changed) >= kDenseFrom * static_cast<double>(w.elements);
  DW_RETURN_IF_ERROR(engine->Prepare(std::max(threads, pool.size()), pool));
  return engine;
}

Status Engine::Prepare(size_t threads, ThreadPool& pool) {
  workers_.resize(threads);
  for (Worker& w : workers_) {
    w.fast.resize(kernels::MaxEncodedBytes(kChunkBytes, 1));  // the most of any width
    w.tight.resize(w.fast.size());
    w.scratch.resize(std::max(kernels::kTightScratchBytes, kernels::FoldScratchBytes(8)));
  }
  const uint32_t chunks = workload_.chunks.size();
  digest_old_.resize(chunks);
  digest_new_.resize(chunks);
  past_.resize(chunks);
  context_.resize(chunks);
  for (uint32_t i = 0; i < chunks; ++i) {
    for (size_t d = 1; d < workload_.deltas.size(); ++d) {
      past_[i].push_back(workload_.deltas[d][i]);
    }
  }
  for (Delta& d : tight_payloads_) d.resize(chunks);
  dense_payloads_.resize(chunks);
  DW_RETURN_IF_ERROR(CopyOld(pool).status());
  return Run(pool,
             [this](Worker& worker, uint32_t i) -> Status {
               const Chunk& c = workload_.chunks[i];
               digest_old_[i] = kernels_.digest(key_, workload_.OldOf(c));
               digest_new_[i] = kernels_.digest(key_, workload_.NewOf(c));
               context_[i] = HistoryCheck(HistoryOf(i, true).deltas);
               if (fast()[i].empty()) return absl::OkStatus();
               if (dense_) {
                 const size_t bytes =
                     DenseEncode(kernels_, fast()[i], c.bytes, c.width, c.bytes, worker.dense);
                 dense_payloads_[i].assign(worker.dense.begin(), worker.dense.begin() + bytes);
               }
               if (!tight_) return absl::OkStatus();
               for (const bool history : {false, true}) {
                 if (history && !has_history()) continue;
                 size_t bytes = 0;
                 DW_RETURN_IF_ERROR(TightOf(worker, i, fast()[i], history, &bytes));
                 tight_payloads_[history ? 1 : 0][i].assign(worker.tight.begin(),
                                                            worker.tight.begin() + bytes);
               }
               return absl::OkStatus();
             })
      .status();
}

StatusOr<double> Engine::Run(ThreadPool& pool, const ChunkFunction& fn) {
  const size_t slots = std::min(pool.size(), workers_.size());
  std::atomic<uint32_t> next = 0;
  for (Worker& w : workers_) w.status = absl::OkStatus();
  const auto start = std::chrono::steady_clock::now();
  pool.ParallelFor(slots, [&](size_t slot) {
    Worker& worker = workers_[slot];
    for (uint32_t i = next++; i < workload_.chunks.size() && worker.status.ok(); i = next++) {
      worker.status = fn(worker, i);
    }
  });
  const double seconds = SecondsSince(start);
  for (const Worker& w : workers_) DW_RETURN_IF_ERROR(w.status);
  return seconds;
}

Status Engine::Error(uint32_t chunk, std::string_view what, DecodeStatus status) const {
  if (status == DecodeStatus::kOk) return absl::OkStatus();
  return Errorf(StatusCode::kInternal,
                "{}: {} of chunk {} says \"{}\" to a payload of this program", workload_.name, what,
                chunk, kernels::ToString(status));
}

Status Engine::CheckSize(uint32_t chunk, std::string_view what, size_t want, size_t got) const {
  if (want == got) return absl::OkStatus();
  return Errorf(StatusCode::kDataLoss, "{}: {} of chunk {} is {} now and was {} before",
                workload_.name, what, chunk, got, want);
}

StatusOr<double> Engine::CopyOld(ThreadPool& pool) {
  return Run(pool, [this](Worker&, uint32_t i) {
    const Chunk& c = workload_.chunks[i];
    std::memcpy(WorkOf(c).data(), workload_.OldOf(c).data(), c.bytes);
    return absl::OkStatus();
  });
}

StatusOr<double> Engine::Compare(ThreadPool& pool) {
  return Run(pool, [this](Worker&, uint32_t i) {
    const Chunk& c = workload_.chunks[i];
    const bool equal = std::memcmp(WorkOf(c).data(), workload_.OldOf(c).data(), c.bytes) == 0;
    return CheckSize(i, "memcmp", 1, equal ? 1 : 0);
  });
}

StatusOr<double> Engine::DiffUnchanged(ThreadPool& pool) {
  return Run(pool, [this](Worker& w, uint32_t i) {
    const Chunk& c = workload_.chunks[i];
    const kernels::EncodeResult r =
        kernels_.diff_encode(key_, workload_.OldOf(c), WorkOf(c), c.width, digest_old_[i], w.fast);
    return CheckSize(i, "the delta of nothing", 0, r.bytes);
  });
}

StatusOr<double> Engine::Digest(ThreadPool& pool) {
  return Run(pool, [this](Worker&, uint32_t i) {
    const uint64_t digest = kernels_.digest(key_, workload_.OldOf(workload_.chunks[i]));
    return CheckSize(i, "the digest", digest_old_[i], digest);
  });
}

StatusOr<double> Engine::DigestPieces(ThreadPool& pool) {
  return Run(pool, [this](Worker&, uint32_t i) {
    const Bytes chunk = workload_.OldOf(workload_.chunks[i]);
    uint64_t digest = 0;
    for (size_t at = 0; at < chunk.size(); at += kPieceBytes) {
      const Bytes piece = chunk.subspan(at, std::min(kPieceBytes, chunk.size() - at));
      digest += kernels_.digest_range(key_, piece, at);
    }
    return CheckSize(i, "the digest of pieces", digest_old_[i], digest);
  });
}

StatusOr<double> Engine::EncodeChecked(ThreadPool& pool) {
  return Run(pool, [this](Worker& w, uint32_t i) {
    const Chunk& c = workload_.chunks[i];
    const kernels::EncodeResult r =
        kernels_.diff_encode_checked(key_, workload_.OldOf(c), workload_.NewOf(c), c.width, w.fast);
    if (r.digest_before != digest_old_[i]) {
      return CheckSize(i, "the old digest", digest_old_[i], r.digest_before);
    }
    return CheckSize(i, "the fast payload", fast()[i].size(), r.bytes);
  });
}

StatusOr<double> Engine::EncodeFast(ThreadPool& pool) {
  return Run(pool, [this](Worker& w, uint32_t i) {
    const Chunk& c = workload_.chunks[i];
    const kernels::EncodeResult r = kernels_.diff_encode(
        key_, workload_.OldOf(c), workload_.NewOf(c), c.width, digest_old_[i], w.fast);
    if (r.digest_after != digest_new_[i]) {
      return CheckSize(i, "the new digest", digest_new_[i], r.digest_after);
    }
    return CheckSize(i, "the fast payload", fast()[i].size(), r.bytes);
  });
}

kernels::History Engine::HistoryOf(uint32_t chunk, bool wanted) const {
  if (!wanted) return {};
  const std::span<const Bytes> past = past_[chunk];
  return {past.first(std::min(kernels::kMaxHistory, past.size())), context_[chunk]};
}

Status Engine::TightOf(Worker& worker, uint32_t chunk, Bytes payload, bool history,
                       size_t* bytes) const {
  const Chunk& c = workload_.chunks[chunk];
  return Error(
      chunk, "tight_encode",
      kernels_.tight_encode(workload_.OldOf(c), payload, c.width, workload_.function(c),
                            HistoryOf(chunk, history), worker.scratch, worker.tight, bytes));
}

StatusOr<double> Engine::EncodeTight(ThreadPool& pool, bool history) {
  return Run(pool, [this, history](Worker& w, uint32_t i) {
    const Chunk& c = workload_.chunks[i];
    const kernels::EncodeResult r = kernels_.diff_encode(
        key_, workload_.OldOf(c), workload_.NewOf(c), c.width, digest_old_[i], w.fast);
    if (r.bytes == 0) return absl::OkStatus();
    size_t bytes = 0;
    const Status status = TightOf(w, i, Bytes(w.fast).first(r.bytes), history, &bytes);
    return status.ok() ? CheckSize(i, "the tight payload", tight(history)[i].size(), bytes)
                       : status;
  });
}

StatusOr<double> Engine::EncodeDense(ThreadPool& pool) {
  return Run(pool, [this](Worker& w, uint32_t i) {
    const Chunk& c = workload_.chunks[i];
    const kernels::EncodeResult r = kernels_.diff_encode(
        key_, workload_.OldOf(c), workload_.NewOf(c), c.width, digest_old_[i], w.fast);
    if (r.bytes == 0) return absl::OkStatus();
    const size_t bytes =
        DenseEncode(kernels_, Bytes(w.fast).first(r.bytes), c.bytes, c.width, c.bytes, w.dense);
    return CheckSize(i, "the dense payload", dense()[i].size(), bytes);
  });
}

StatusOr<double> Engine::ValidateFast(ThreadPool& pool) {
  return Run(pool, [this](Worker&, uint32_t i) {
    const Chunk& c = workload_.chunks[i];
    if (fast()[i].empty()) return absl::OkStatus();
    return Error(i, "validate", kernels_.validate(fast()[i], c.bytes, c.width, nullptr));
  });
}

Status Engine::ApplyTo(uint32_t chunk, Bytes payload) {
  const Chunk& c = workload_.chunks[chunk];
  uint64_t digest = 0;
  const DecodeStatus status =
      kernels_.decode_apply(key_, payload, WorkOf(c), c.width, digest_old_[chunk], &digest);
  if (status != DecodeStatus::kOk) return Error(chunk, "decode_apply", status);
  return CheckSize(chunk, "the digest after decode_apply", digest_new_[chunk], digest);
}

StatusOr<double> Engine::RunApply(ThreadPool& pool, const ChunkFunction& fn) {
  DW_ASSIGN_OR_RETURN(const double seconds, Run(pool, fn));
  const StatusOr<double> checked = Run(pool, [this](Worker&, uint32_t i) {
    const Chunk& c = workload_.chunks[i];
    const bool equal = std::memcmp(WorkOf(c).data(), workload_.NewOf(c).data(), c.bytes) == 0;
    return CheckSize(i, "whether the new bytes came out", 1, equal ? 1 : 0);
  });
  DW_RETURN_IF_ERROR(checked.status());
  DW_RETURN_IF_ERROR(CopyOld(pool).status());
  return seconds;
}

StatusOr<double> Engine::ApplyFast(ThreadPool& pool) {
  return RunApply(pool, [this](Worker&, uint32_t i) {
    return fast()[i].empty() ? absl::OkStatus() : ApplyTo(i, fast()[i]);
  });
}

StatusOr<double> Engine::ApplyTight(ThreadPool& pool, bool history) {
  return RunApply(pool, [this, history](Worker& w, uint32_t i) -> Status {
    if (fast()[i].empty()) return absl::OkStatus();
    const Bytes payload = tight(history)[i];
    if (payload.empty()) return ApplyTo(i, fast()[i]);  // tight would be no smaller
    const Chunk& c = workload_.chunks[i];
    size_t bytes = 0;
    const DecodeStatus status = kernels_.tight_decode(
        WorkOf(c), payload, c.width, HistoryOf(i, history), w.scratch, w.fast, &bytes);
    if (status != DecodeStatus::kOk) return Error(i, "tight_decode", status);
    DW_RETURN_IF_ERROR(CheckSize(i, "tight_decode's payload", fast()[i].size(), bytes));
    return ApplyTo(i, Bytes(w.fast).first(bytes));
  });
}

StatusOr<double> Engine::ApplyDense(ThreadPool& pool) {
  return RunApply(pool, [this](Worker& w, uint32_t i) -> Status {
    if (fast()[i].empty()) return absl::OkStatus();
    if (dense()[i].empty()) return ApplyTo(i, fast()[i]);  // dense would be no smaller than raw
    const Chunk& c = workload_.chunks[i];
    size_t bytes = 0;
    const DecodeStatus status = DenseDecode(kernels_, dense()[i], c.bytes, c.width, w.fast, &bytes);
    if (status != DecodeStatus::kOk) return Error(i, "DenseDecode", status);
    DW_RETURN_IF_ERROR(CheckSize(i, "DenseDecode's payload", fast()[i].size(), bytes));
    return ApplyTo(i, Bytes(w.fast).first(bytes));
  });
}

StatusOr<double> Engine::Fold(ThreadPool& pool, size_t n) {
  return Run(pool, [this, n](Worker& w, uint32_t i) {
    const Chunk& c = workload_.chunks[i];
    std::array<Bytes, 64> payloads;
    size_t count = 0;
    for (size_t d = 0; d < n; ++d) {
      const Bytes payload = workload_.deltas[d][i];
      if (!payload.empty()) payloads[count++] = payload;
    }
    if (count == 0) return absl::OkStatus();
    size_t bytes = 0;
    return Error(i, "fold",
                 kernels_.fold(std::span<const Bytes>(payloads).first(count), c.bytes, c.width,
                               w.scratch, w.fast, &bytes));
  });
}

uint64_t Engine::ChangesOf(size_t n) const {
  uint64_t sum = 0;
  for (size_t d = 0; d < n; ++d) {
    for (uint32_t i = 0; i < workload_.chunks.size(); ++i) {
      const Chunk& c = workload_.chunks[i];
      uint64_t changed = 0;
      if (workload_.deltas[d][i].empty()) continue;
      if (kernels_.validate(workload_.deltas[d][i], c.bytes, c.width, &changed) ==
          DecodeStatus::kOk) {
        sum += changed;
      }
    }
  }
  return sum;
}

}  // namespace deltawire::bench
