#include "sender/agent/offload/offload_diff.h"

#include <utility>

#include "common/base/log.h"

namespace deltawire::sender {

OffloadDiff::OffloadDiff(ModelStates& states, const SenderOptions& options)
    : states_(states),
      options_(options),
      incoming_(states.name()),
      gpu_([this](std::string* where) { return MakeGpu(where); }) {}

OffloadDiff::~OffloadDiff() {
  if (const auto last = job()) {
    last->Cancel();
    last->Join();
  }
}

std::unique_ptr<GpuDiff> OffloadDiff::MakeGpu(std::string* where) const {
  const Bytes data[] = {states_.half(0), states_.half(1)};
  if (states_.owned().all()) {
    return GpuDiff::Create(states_.name(), options_.gpu, states_.chunks(), states_.key(), data,
                           where);
  }
  if (options_.gpu != GpuUse::kOff) {
    // Pinning a half would fill its holes.
    LogWarn("model {}: gpu = \"{}\", but this agent owns a part of it: diffs run on the CPU",
            states_.name(), ToString(options_.gpu));
    *where = "the CPU (this agent owns a part of the model)";
  }
  return nullptr;
}

Status OffloadDiff::Prepare(uint32_t half, double* waited) {
  std::shared_ptr<PublishJob> last;
  {
    MutexLock lock(mu_);
    last = std::exchange(job_, nullptr);
  }
  if (last != nullptr) {
    last->Cancel();
    last->Join();  // its early diffs read the half
  }
  incoming_.Discard(incoming_.current());
  Halves& halves = states_.halves();
  DW_RETURN_IF_ERROR(halves.Drain(half, options_.grace, cut_, waited));
  const Status fenced = halves.Fence(half, [this] { gpu_.Unpin(); });
  if (!fenced.ok()) {
    halves.GiveBack(half);
    return fenced;
  }
  gpu_.PinAnew();
  halves.BeginWrite(half);
  return absl::OkStatus();
}

bool OffloadDiff::MaySendEarly() const {
  // Other codecs would encode for all receivers on the cores with which the trainer copies.
  const bool fast = options_.codec.value_or(kernels::Codec::kFast) == kernels::Codec::kFast;
  return options_.early == Early::kSend && fast && incoming_.has_listener() &&
         states_.published() != nullptr;
}

void OffloadDiff::Begin(uint32_t half, uint64_t lease, const Identity& version) {
  std::shared_ptr<IncomingVersion> incoming;
  if (!version.empty()) {
    incoming = incoming_.Begin(lease, version, *states_.published(), options_.delta_log_bytes / 2);
  }
  auto job = MakeJob(half, incoming);
  MutexLock lock(mu_);
  job_ = std::move(job);
  lease_ = lease;
  if (lease != 0) trainer_diffs_on_.clear();
}

std::shared_ptr<PublishJob> OffloadDiff::MakeJob(uint32_t half,
                                                 const std::shared_ptr<IncomingVersion>& incoming) {
  PublishJob::Inputs in;
  in.chunks = &states_.chunks();
  in.layout = &states_.layout();
  in.owned = &states_.owned();
  in.backend = &states_.backend();
  in.key = &states_.key();
  in.inactive = states_.halves().writable(half);
  if (const auto newest = states_.published()) {
    in.active = states_.half(newest->half);
    in.active_digests = newest->digests;
    in.active_root = newest->info.identity.root;
    in.published = newest;
    in.gpu = gpu_.diff().get();
    in.corrupt = [this](uint32_t chunk, bool whole) {
      states_.scrubber().CountCorrupt(chunk, whole);
    };
    in.changing = [this](uint32_t chunk, Bytes before, bool undoable) {
      states_.KeepOldBytes(chunk, before, undoable);
    };
  }
  if (incoming != nullptr) {
    in.diffed = [this, half, incoming](uint32_t chunk, uint64_t before, uint64_t after,
                                       Bytes payload) {
      const Chunk& place = states_.chunks()[chunk];
      incoming_.Add(*incoming, chunk, before, after, payload,
                    states_.half(half).subspan(place.offset, place.bytes));
    };
  }
  // A larger delta would leave the log no room for others.
  in.payload_limit = options_.delta_log_bytes / 2;
  return std::make_shared<PublishJob>(in);
}

bool OffloadDiff::TakesPayloads() const {
  return states_.published() != nullptr && payloads_trusted_ && states_.damaged_chunks() == 0;
}

void OffloadDiff::AddPayloads(uint64_t lease, std::span<const DiffedChunk> payloads) {
  MutexLock lock(mu_);
  if (job_ != nullptr && lease_ == lease) job_->AddPayloads(payloads);
}

void OffloadDiff::NoteTrainerDiff(const std::string& where) {
  MutexLock lock(mu_);
  // The longest text has the reasons for chunks that went whole.
  if (where.size() > trainer_diffs_on_.size()) trainer_diffs_on_ = where;
}

std::string OffloadDiff::diffs_on() const {
  MutexLock lock(mu_);
  return trainer_diffs_on_.empty() ? gpu_.where() : trainer_diffs_on_;
}

void OffloadDiff::MarkWritten(uint64_t lease, const WrittenTally::Final& final) {
  // Early diffs run on the CPU while the trainer writes. A GPU diffs the rest in the publish.
  if (options_.early == Early::kOff || (final.tensors.empty() && final.chunks.empty())) return;
  std::shared_ptr<PublishJob> job;
  {
    MutexLock lock(mu_);
    if (lease_ == lease) job = job_;
  }
  if (job != nullptr) job->MarkWritten(final.tensors, final.chunks, states_.pool());
}

void OffloadDiff::CancelUnless(uint64_t lease) {
  MutexLock lock(mu_);
  if (job_ != nullptr && lease_ != lease) job_->Cancel();
}

void OffloadDiff::AbortPublish() {
  if (const auto now = job()) now->Abort();
}

std::shared_ptr<PublishJob> OffloadDiff::job() const {
  MutexLock lock(mu_);
  return job_;
}

std::shared_ptr<IncomingVersion> OffloadDiff::Finish() {
  MutexLock lock(mu_);
  job_ = nullptr;
  return incoming_.Take();
}

}  // namespace deltawire::sender
