#include "bench/delta/engine.h"

#include "bench/harness/parallel.h"
#include "common/base/human.h"
#include "common/base/of_this_thread.h"
#include "common/layout/root.h"
#include "kernels/format.h"
#include "sender/agent/diff/publish_job.h"

namespace deltawire::bench {
namespace {

using kernels::DecodeStatus;

constexpr double kDenseFrom = 0.05;  // the smallest share of changed elements for dense
constexpr size_t kPieceBytes = 64 << 10;
constexpr const char* kPairsEncode = "pairs_encode";
constexpr const char* kPairsApply = "pairs_apply";

kernels::Codec CodecOf(Form form) {
  using kernels::Codec;
  return form == kFast ? Codec::kFast : form == kDense ? Codec::kDense : Codec::kTight;
}

/// Return the calling thread's memory for a fast payload, and for a fold's scratch.
MutableBytes FastRoom(const Chunk& c) {
  struct Fast : ScratchMemory {};
  return OfThisThread<Fast>().Sized(kernels::MaxEncodedBytes(c.bytes, c.width));
}
MutableBytes FoldRoom(const Chunk& c) {
  struct Fold : ScratchMemory {};
  return OfThisThread<Fold>().Sized(kernels::FoldScratchBytes(c.width));
}

}  // namespace

class ChunkWork {
 public:
  ChunkWork(Engine& engine, uint32_t chunk)
      : e_(engine),
        w_(engine.workload_),
        i_(chunk),
        c_(w_.chunks[chunk]),
        old_(w_.OldOf(c_)),
        new_(w_.NewOf(c_)),
        work_(engine.work().subspan(c_.offset, c_.bytes)),
        fast_(engine.payload(kFast, chunk)) {}

  Status Prepare(size_t) {
    e_.digest_old_[i_] = kernels::Best().digest(w_.key, old_);
    e_.digest_new_[i_] = kernels::Best().digest(w_.key, new_);
    const std::span deltas(w_.deltas);
    e_.history_[i_] = ChunkHistory(deltas.first(deltas.size() - 1), i_, kernels::kMaxHistory);
    for (const Form form : kForms) {
      if (form == kFast || !e_.has(form) || fast_.empty()) continue;
      const Bytes coded = e_.Recode(i_, fast_, form, old_);
      e_.payloads_[form][i_].assign(coded.begin(), coded.end());
    }
    return absl::OkStatus();
  }
  Status CopyOld(size_t) {
    std::memcpy(work_.data(), old_.data(), c_.bytes);
    return absl::OkStatus();
  }
  Status Compare(size_t) {
    return Same("memcmp", true, std::memcmp(work_.data(), old_.data(), c_.bytes) == 0);
  }
  Status CheckNew(size_t) {
    const bool equal = std::memcmp(work_.data(), new_.data(), c_.bytes) == 0;
    return Same("whether the new bytes came out", true, equal);
  }
  Status DiffUnchanged(size_t) {
    const auto r = kernels::Best().diff_encode(w_.key, old_, work_, c_.width, e_.digest_old_[i_],
                                               FastRoom(c_));
    return Same("the delta of nothing", 0, r.bytes);
  }
  Status Digest(size_t piece_bytes) {
    uint64_t digest = 0;
    if (piece_bytes == kChunkBytes) digest = kernels::Best().digest(w_.key, old_);
    for (size_t at = 0; piece_bytes < kChunkBytes && at < old_.size(); at += piece_bytes) {
      const Bytes piece = old_.subspan(at, std::min(piece_bytes, old_.size() - at));
      digest += kernels::Best().digest_range(w_.key, piece, at);
    }
    return Same("the digest", e_.digest_old_[i_], digest);
  }
  Status Encode(size_t form) {
    const MutableBytes room = FastRoom(c_);
    const auto r =
        kernels::Best().diff_encode(w_.key, old_, new_, c_.width, e_.digest_old_[i_], room);
    DW_RETURN_IF_ERROR(Same("the new digest", e_.digest_new_[i_], r.digest_after));
    DW_RETURN_IF_ERROR(Same("the fast payload", fast_.size(), r.bytes));
    if (form == kFast || r.bytes == 0) return absl::OkStatus();
    const Form other = static_cast<Form>(form);
    return Same("the payload", e_.payload(other, i_).size(),
                e_.Recode(i_, room.first(r.bytes), other, old_).size());
  }
  Status EncodeChecked(size_t) {
    const auto r = kernels::Best().diff_encode_checked(w_.key, old_, new_, c_.width, FastRoom(c_));
    DW_RETURN_IF_ERROR(Same("the old digest", e_.digest_old_[i_], r.digest_before));
    return Same("the fast payload", fast_.size(), r.bytes);
  }
  Status ValidateFast(size_t) {
    if (fast_.empty()) return absl::OkStatus();
    return Ok("validate", kernels::Best().validate(fast_, c_.bytes, c_.width, nullptr));
  }
  Status Apply(size_t form) {
    if (fast_.empty()) return absl::OkStatus();
    Bytes fast = fast_;
    const Bytes coded = e_.payload(static_cast<Form>(form), i_);
    if (form != kFast && !coded.empty()) {  // empty: the sender would use fast
      const MutableBytes room = FastRoom(c_);
      size_t bytes = 0;
      const auto of = e_.Coded(i_, static_cast<Form>(form), work_);
      DW_RETURN_IF_ERROR(Ok("decoding", CoderOf(coded)->decode(of, coded, room, &bytes)));
      DW_RETURN_IF_ERROR(Same("the decoded payload", fast.size(), bytes));
      fast = room.first(bytes);
    }
    uint64_t digest = 0;
    DW_RETURN_IF_ERROR(Ok(
        "decode_apply",
        kernels::Best().decode_apply(w_.key, fast, work_, c_.width, e_.digest_old_[i_], &digest)));
    return Same("the digest after decode_apply", e_.digest_new_[i_], digest);
  }
  Status Fold(size_t deltas) {
    std::vector<Bytes> payloads;
    for (const auto& delta : std::span(w_.deltas).last(deltas)) {
      const Bytes payload = Workload::PayloadOf(*delta, i_);
      if (!payload.empty()) payloads.push_back(payload);
    }
    if (payloads.empty()) return absl::OkStatus();
    size_t bytes = 0;
    return Ok("fold", kernels::Best().fold(payloads, c_.bytes, c_.width, FoldRoom(c_), FastRoom(c_),
                                           &bytes));
  }

 private:
  Status Ok(std::string_view what, DecodeStatus status) const {
    if (status == DecodeStatus::kOk) return absl::OkStatus();
    return Errorf(StatusCode::kInternal, "{}: {} of chunk {} rejects its own payload: {}", w_.name,
                  what, i_, kernels::ToString(status));
  }
  Status Same(std::string_view what, size_t want, size_t got) const {
    if (want == got) return absl::OkStatus();
    return Errorf(StatusCode::kDataLoss, "{}: {} of chunk {} is {} now and was {} before", w_.name,
                  what, i_, got, want);
  }
  Engine& e_;
  const Workload& w_;
  const uint32_t i_;
  const Chunk& c_;
  const Bytes old_, new_;
  const MutableBytes work_;
  const Bytes fast_;  ///< the chunk's payload from old to new
};

namespace {

constexpr OperationTargets kThreadsOnly = {.of_one_thread = 1.8};

constexpr Operation Encoding(const char* name, Form form, const char* pairs,
                             OperationTargets targets) {
  return {name, &ChunkWork::Encode, form, 0, true, false, pairs, targets};
}
constexpr Operation Applying(const char* name, Form form, OperationTargets targets) {
  return {name, &ChunkWork::Apply, form, 1, true, true, kPairsApply, targets};
}

constexpr Operation kOperations[] = {
    {"memcpy", &ChunkWork::CopyOld},
    {"memcmp", &ChunkWork::Compare},
    {"diff_only", &ChunkWork::DiffUnchanged},
    {"digest", &ChunkWork::Digest, kChunkBytes},
    {"digest_pieces", &ChunkWork::Digest, kPieceBytes},  // as a receiver digests an arriving chunk
    Encoding("encode_fast", kFast, kPairsEncode,
             {.of_reference = 0.75, .of_pairs = 3, .of_one_thread = 1.8}),
    {"encode_checked", &ChunkWork::EncodeChecked},
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
    {"validate_fast", &ChunkWork::ValidateFast, 0, 1},
    Applying("apply_fast", kFast, {.changes_per_second = 120, .of_one_thread = 1.8}),
    Applying("apply_tight", kTight, {.gb_per_second = 1.5, .of_one_thread = 1.8}),
    Applying("apply_tight_history", kTightHistory, kThreadsOnly),
    Applying("apply_dense", kDense, {}),
    {"fold_2", &ChunkWork::Fold, 2, 2},
    {"fold_8", &ChunkWork::Fold, 8, 8},
    {"fold_32", &ChunkWork::Fold, 32, 32},
};

}  // namespace

std::string NameOf(Form form) {
  return fmt::format("{}{}", kernels::NameOf(CodecOf(form)),
                     form == kTightHistory ? "_history" : "");
}

std::span<const Operation> AllOperations() { return kOperations; }

StatusOr<std::unique_ptr<Engine>> Engine::Create(const Workload& w, ThreadPool& pool) {
  auto engine = std::unique_ptr<Engine>(new Engine(w));
  DW_ASSIGN_OR_RETURN(engine->work_, HugeBuffer::Create(w.bytes()));
  const uint32_t chunks = w.chunks.size();
  engine->digest_old_.resize(chunks);
  engine->digest_new_.resize(chunks);
  engine->history_.resize(chunks);
  for (const Form form : kForms) engine->payloads_[form].resize(chunks);
  DW_RETURN_IF_ERROR(engine->Restore(pool));
  DW_RETURN_IF_ERROR(engine->ForChunks(pool, &ChunkWork::Prepare, 0));
  return engine;
}

CodedChunk Engine::Coded(uint32_t chunk, Form form, Bytes old_data) const {
  const Chunk& c = workload_.chunks[chunk];
  const ChunkHistory& past = history_[chunk];
  return {.backend = kernels::Best(),
          .bytes = c.bytes,
          .width = c.width,
          .function = workload_.function(c),
          .old_data = old_data,
          .history = past.First(form == kTightHistory ? past.depth() : 0)};
}

Bytes Engine::Recode(uint32_t chunk, Bytes fast, Form form, Bytes old_data) const {
  const Coder& coder = *CoderOf(CodecOf(form));
  return coder.encode(Coded(chunk, form, old_data), fast,
                      coder.limit(workload_.chunks[chunk].bytes, fast.size()));
}

bool Engine::has(Form form) const {
  if (form == kFast) return true;
  if (form == kDense) {
    return static_cast<double>(workload_.changed) >=
           kDenseFrom * static_cast<double>(workload_.elements);
  }
  return kernels::Best().tight_encode != nullptr && (form == kTight || has_history());
}

uint64_t Engine::kept() const {
  uint64_t sum = 0;
  for (const auto& form : payloads_) {
    for (const auto& payload : form) sum += payload.size();
  }
  for (const auto& delta : workload_.deltas) sum += delta->payload_bytes();
  return sum;
}

bool Engine::CanRun(const Operation& operation) const {
  if (operation.deltas > 0 && workload_.changed == 0) return false;
  return operation.deltas <= workload_.deltas.size() &&
         (!operation.of_form || has(static_cast<Form>(operation.argument)));
}

StatusOr<double> Engine::Run(const Operation& operation, ThreadPool& pool) {
  if (operation.chunk == nullptr) return Publish(pool, operation.argument != 0);
  const auto start = SteadyClock::now();
  DW_RETURN_IF_ERROR(ForChunks(pool, operation.chunk, operation.argument));
  const double seconds = SecondsSince(start);
  if (operation.applies) {
    DW_RETURN_IF_ERROR(ForChunks(pool, &ChunkWork::CheckNew, 0));
    DW_RETURN_IF_ERROR(Restore(pool));
  }
  return seconds;
}

Status Engine::Restore(ThreadPool& pool) { return ForChunks(pool, &ChunkWork::CopyOld, 0); }

Status Engine::ForChunks(ThreadPool& pool, Operation::ChunkFunction fn, size_t argument) {
  return ForAll(pool, workload_.chunks.size(), [&](size_t i) {
    return (ChunkWork(*this, static_cast<uint32_t>(i)).*fn)(argument);
  });
}

// Runs a whole publish like the sender, in memory: diff, digests, root and delta, with the check of
// the old bytes and, for comparison, without.
StatusOr<double> Engine::Publish(ThreadPool& pool, bool check_base) {
  const uint32_t chunks = workload_.chunks.size();
  const Coverage all = Coverage::All(chunks);
  kernels::Backend backend = kernels::Best();
  // Without the check every old digest is 0, so that none has to be computed. A new digest is then
  // the difference of the two, since digests are sums over the elements.
  std::vector<uint64_t> before = digest_old_, after = digest_new_;
  if (!check_base) {
    backend.diff_encode_checked = [](const kernels::DigestKey& key, Bytes old_data, Bytes new_data,
                                     unsigned width, MutableBytes out) {
      return kernels::Best().diff_encode(key, old_data, new_data, width, 0, out);
    };
    for (uint32_t i = 0; i < chunks; ++i) after[i] -= std::exchange(before[i], 0);
  }
  auto published = std::make_shared<Published>();
  published->digests = std::make_shared<std::vector<uint64_t>>(before);
  published->damaged = std::make_unique<std::atomic<uint8_t>[]>(chunks);
  sender::PublishJob::Inputs in;
  in.chunks = &workload_.chunks;
  in.layout = &workload_.layout;
  in.backend = &backend;
  in.key = &workload_.key;
  in.active = workload_.old_data.data();
  // A publish copies to the inactive half only tensors declared unchanged, and there are none here.
  const Bytes fresh = workload_.new_data.data();
  in.inactive = {const_cast<std::byte*>(fresh.data()), fresh.size()};
  in.active_digests = published->digests;
  in.active_root = RootOf(before, all);
  in.payload_limit = uint64_t{1} << 40;
  in.published = published;
  const std::vector<bool> unchanged(workload_.layout.size());
  const auto start = SteadyClock::now();
  const auto job = std::make_shared<sender::PublishJob>(in);
  DW_ASSIGN_OR_RETURN(const sender::PublishJob::Result result,
                      job->Finish({1, 1}, {1, 2}, unchanged, pool));
  const double seconds = SecondsSince(start);
  if (result.root == RootOf(after, all) && result.changed_elements == workload_.changed) {
    return seconds;
  }
  return absl::DataLossError(workload_.name + ": a publish gave a wrong root or count");
}

uint64_t Engine::ChangesOf(size_t n) const {
  uint64_t sum = 0;
  for (const auto& delta : std::span(workload_.deltas).last(n)) {
    for (const ChunkDelta& entry : delta->chunks()) sum += entry.changed;
  }
  return sum;
}

}  // namespace deltawire::bench
