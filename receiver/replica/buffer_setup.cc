#include "receiver/replica/buffer_setup.h"

#include <chrono>
#include <utility>

#include "common/base/log.h"

namespace deltawire::receiver {
namespace {

// A sender that runs but does not have the model yet is asked again soon: its trainer may be
// starting.
constexpr std::chrono::milliseconds kUnregisteredPause{200};

}  // namespace

std::vector<BufferSetup::Part> BufferSetup::parts() const {
  MutexLock lock(mu_);
  return parts_;
}

bool BufferSetup::due() const {
  MutexLock lock(mu_);
  return due_;
}

BufferSetup::Time BufferSetup::due_at() const {
  MutexLock lock(mu_);
  return due_at_;
}

void BufferSetup::NoteLineage(size_t agent, const Hash128& lineage) {
  MutexLock lock(mu_);
  Hash128& known = parts_[agent].lineage;
  if (!(known == Hash128{} || known == lineage)) due_ = true;
  known = lineage;
}

void BufferSetup::Renew() {
  MutexLock lock(mu_);
  due_ = true;
}

Status BufferSetup::Describe() {
  {
    MutexLock lock(mu_);
    due_ = false;
  }
  const ReplicaOptions& options = env_.options;
  auto descriptions = env_.links.Describe(options.model, options.allow_code_files);
  const Status described = descriptions.status();
  const Status prepared = descriptions.ok() ? Prepare(std::move(*descriptions)) : described;
  if (prepared.ok()) {
    backoff_.Reset();
    env_.line.EndWait();
    // The directory that was lost came back before it was made anew, so its version is ready again.
    if (env_.gate.version().Ready().empty() && !env_.gate.version().committed().empty())
      env_.gate.version().MakeReady();
    return prepared;
  }
  const auto longest = absl::IsNotFound(described) ? kUnregisteredPause : Backoff::kLongest;
  const auto pause = backoff_.Next(random_, longest);
  {
    MutexLock lock(mu_);
    due_ = true;
    due_at_ = SteadyClock::now() + pause;
  }
  // A file of this machine that is not found is no wait.
  if (AsksToWait(described)) {
    env_.line.Wait(std::string(MessageOf(described)), described);
  } else {
    env_.line.Fail(prepared);
  }
  return prepared;
}

Status BufferSetup::Prepare(std::vector<ModelDescription> descriptions) {
  env_.run.Begin(RunState::Use::kUpkeep);
  ModelDescription& first = descriptions.front();
  if (env_.home.IsStale(first.layout)) DiscardBuffer();
  const StatusOr<bool> made =
      env_.home.Make(first, env_.gate, [this] { return env_.run.stopping(); });
  env_.run.End();
  DW_RETURN_IF_ERROR(made.status());
  const Buffer& buffer = *env_.home.buffer();
  if (*made) env_.upkeep.NoteBuffer(buffer);
  for (size_t i = 0; i < descriptions.size(); ++i) {
    ModelDescription& d = descriptions[i];
    env_.links.SetPart(i, d.owned);
    env_.puller.TakeSideFiles(i, d.side_files_hash, std::move(d.side_files));
    const uint64_t bytes = d.owned.bytes(buffer.chunks());
    MutexLock lock(mu_);
    parts_[i] = {.owned = std::move(d.owned), .owned_bytes = bytes, .lineage = d.lineage};
  }
  env_.gate.version().NoteBuffer(buffer);
  env_.corrupt.SetLayout(env_.home.facts().fingerprint);
  return absl::OkStatus();
}

void BufferSetup::DiscardBuffer() {
  env_.downstream.DiscardModel();
  env_.corrupt.SetLayout("");
  env_.home.Destroy();
  env_.puller.ForgetBuffer();
  env_.gate.version().ForgetBuffer();
}

void BufferSetup::CheckDirectory() {
  if (env_.home.buffer() == nullptr || due() || env_.home.IsInPlace()) return;
  env_.line.Fail(Errorf(StatusCode::kFailedPrecondition,
                        "{} was removed or moved by another process; making it anew{}",
                        env_.options.directory.native(),
                        env_.run.follows() ? " and pulling the model whole"
                                           : ", and the next sync pulls the model whole"));
  {
    MutexLock lock(mu_);
    due_ = true;
    due_at_ = SteadyClock::now();
  }
  env_.gate.version().ForgetVersion();
}

}  // namespace deltawire::receiver
