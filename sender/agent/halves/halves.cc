#include "sender/agent/halves/halves.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <system_error>

#include "common/base/call_end.h"
#include "common/base/human.h"
#include "common/base/log.h"
#include "common/shm/file_lease.h"

namespace deltawire::sender {
namespace fs = std::filesystem;
namespace {

// A cut stream releases its lease once its pending send returns. This bounds the wait for a bug.
constexpr std::chrono::seconds kCutTimeout{10};
constexpr size_t kNamedReaders = 5;

}  // namespace

fs::path Halves::PathOf(const fs::path& directory, uint32_t half) {
  return directory / fmt::format("half-{}.safetensors", half);
}

Halves::Halves(Context context, StateFile state, std::vector<BufferFile> files, bool fresh)
    : context_(std::move(context)),
      state_(std::move(state)),
      files_(std::move(files)),
      data_offset_(files_[0].data_offset()) {
  for (uint32_t h = 0; h < 2; ++h) {
    const bool whole = state_.phase(h) == SlotPhase::kWhole;
    if (whole) halves_[h].holds = state_.identity(h);
    // All writers of a published half were ready. The writers of another half are unknown.
    halves_[h].suspect = !fresh && state_.phase(h) == SlotPhase::kWriting;
  }
}

StatusOr<std::unique_ptr<Halves>> Halves::Create(Context context, const StateShape& shape) {
  // Old halves would take memory that the new ones need.
  std::error_code ignored;
  fs::remove(context.directory / kStateName, ignored);
  for (uint32_t h = 0; h < 2; ++h) fs::remove(PathOf(context.directory, h), ignored);
  std::vector<BufferFile> files;
  for (uint32_t h = 0; h < 2; ++h) {
    auto file =
        BufferFile::Create(PathOf(context.directory, h), context.model.layout, context.buffer);
    if (!file.ok()) {
      // A lone half would occupy the memory that the error asks the user to free.
      files.clear();
      fs::remove(PathOf(context.directory, 0), ignored);
      return Annotate(file.status(), fmt::format("model \"{}\", half {}", context.model.name, h));
    }
    files.push_back(std::move(*file));
  }
  DW_ASSIGN_OR_RETURN(StateFile state, StateFile::Create(context.directory / kStateName, shape));
  for (uint32_t h = 0; h < 2; ++h) state.set_inode(h, files[h].inode());
  return std::unique_ptr<Halves>(
      new Halves(std::move(context), std::move(state), std::move(files), true));
}

StatusOr<std::unique_ptr<Halves>> Halves::Open(Context context, StateFile state) {
  std::vector<BufferFile> files;
  for (uint32_t h = 0; h < 2; ++h) {
    DW_ASSIGN_OR_RETURN(BufferFile file, BufferFile::Open(PathOf(context.directory, h),
                                                          context.model.layout, context.buffer));
    if (state.phase(h) == SlotPhase::kWhole && state.inode(h) != 0 &&
        state.inode(h) != file.inode()) {
      return Errorf(StatusCode::kDataLoss,
                    "{} is another file than the one that was published; register the model anew",
                    file.path().native());
    }
    // A crash may come between a fresh file and its inode's entry. The half is not whole then, so
    // any file will do.
    if (state.phase(h) != SlotPhase::kWhole && state.inode(h) != file.inode()) {
      state.set_inode(h, file.inode());
    }
    // An older release records no highest version, and a crash may come before the record.
    if (state.phase(h) == SlotPhase::kWhole) {
      state.set_highest_version(std::max(state.highest_version(), state.id(h).version));
    }
    files.push_back(std::move(file));
  }
  return std::unique_ptr<Halves>(
      new Halves(std::move(context), std::move(state), std::move(files), false));
}

std::vector<uint64_t> Halves::Digests(uint32_t half) const {
  std::vector<uint64_t> digests(context_.model.chunks.size());
  for (uint32_t c = 0; c < digests.size(); ++c) digests[c] = state_.chunk_digest(half, c);
  return digests;
}

std::optional<uint32_t> Halves::Newest() const {
  // A crash between a publish's two writes leaves both halves whole: the newer one counts. If both
  // have one number, the second was never announced, so the active one counts.
  std::optional<uint32_t> newest;
  for (uint32_t h = 0; h < 2; ++h) {
    if (state_.phase(h) != SlotPhase::kWhole) continue;
    const bool later = !newest || state_.id(h) > state_.id(*newest) ||
                       (state_.id(h) == state_.id(*newest) && state_.active() == h);
    if (later) newest = h;
  }
  return newest;
}

// Readers -------------------------------------------------------------------------------------

Identity Halves::holds(uint32_t half) const {
  MutexLock lock(mu_);
  return halves_[half].use == HalfUse::kIdle ? halves_[half].holds : Identity{};
}

std::shared_ptr<const void> Halves::Lease(uint32_t half, const Identity& id) {
  MutexLock lock(mu_);
  Half& h = halves_[half];
  if (h.use != HalfUse::kIdle || h.holds.empty() || !(h.holds == id)) return nullptr;
  ++h.readers;
  // The deleter needs no shared ownership, since every holder of a lease holds the Model.
  return {this, [half](Halves* self) {
            MutexLock guard(self->mu_);
            if (--self->halves_[half].readers == 0) self->cv_.notify_all();
          }};
}

bool Halves::Patch(uint32_t half, const Identity& id, uint64_t offset, Bytes bytes) {
  // Under the lock, so that no lease begins meanwhile. The copy takes well below a millisecond.
  MutexLock lock(mu_);
  const Half& h = halves_[half];
  if (h.use != HalfUse::kIdle || !(h.holds == id) || h.readers != 1) return false;
  std::memcpy(files_[half].data().data() + offset, bytes.data(), bytes.size());
  return true;
}

// Writers -------------------------------------------------------------------------------------

void Halves::AddWriter(uint32_t half, Writer writer) {
  MutexLock lock(mu_);
  halves_[half].writers.push_back(std::move(writer));
}

void Halves::EndWriter(uint64_t lease, uint32_t rank) {
  MutexLock lock(mu_);
  for (Half& h : halves_) {
    std::erase_if(h.writers, [&](const Writer& w) { return w.lease == lease && w.rank == rank; });
  }
}

void Halves::EndWritersOf(uint64_t client, uint32_t rank) {
  if (client == 0) return;
  MutexLock lock(mu_);
  for (Half& h : halves_) {
    std::erase_if(h.writers, [&](const Writer& w) { return w.client == client && w.rank == rank; });
  }
}

bool Halves::NeedsFence(uint32_t half) const {
  MutexLock lock(mu_);
  return IsSuspect(half);
}

std::string Halves::WritersOf(uint32_t half) const {
  std::string text;
  const std::vector<Writer>& writers = halves_[half].writers;
  for (size_t i = 0; i < std::min(kNamedReaders, writers.size()); ++i) {
    text += fmt::format("{}rank {}{}", text.empty() ? "" : ", ", writers[i].rank,
                        writers[i].publisher.empty() ? "" : " (" + writers[i].publisher + ")");
  }
  if (writers.size() > kNamedReaders)
    text += fmt::format(" and {} more", writers.size() - kNamedReaders);
  return text.empty() ? "a trainer of an earlier run of this sender" : text;
}

Status Halves::Drain(uint32_t half, std::chrono::milliseconds grace,
                     const std::function<void(uint32_t)>& cut, double* waited_seconds) {
  const auto start = SteadyClock::now();
  MutexLock lock(mu_);
  Half& h = halves_[half];
  h.use = HalfUse::kTaken;
  const auto free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !stopped_.ok() || h.readers == 0;
  };
  const std::chrono::milliseconds undisturbed = grace - CutTime(grace);
  if (!cv_.wait_for(lock, undisturbed, free)) {
    LogWarn("model {}: cutting pulls that still read the inactive half after {} ms",
            context_.model.name, undisturbed.count());
    lock.unlock();
    if (cut) cut(half);
    lock.lock();
    if (!cv_.wait_for(lock, kCutTimeout, free)) {
      h.use = HalfUse::kIdle;
      return Errorf(StatusCode::kDeadlineExceeded,
                    "model \"{}\": {} reads of the inactive half did not end; this is a bug, "
                    "restart the sender",
                    context_.model.name, h.readers);
    }
  }
  *waited_seconds = SecondsSince(start);
  if (stopped_.ok()) return absl::OkStatus();
  h.use = HalfUse::kIdle;
  return stopped_;
}

void Halves::GiveBack(uint32_t half) {
  MutexLock lock(mu_);
  if (halves_[half].use == HalfUse::kTaken) halves_[half].use = HalfUse::kIdle;
}

Status Halves::Fence(uint32_t half, const std::function<void()>& replacing) {
  std::string writers;
  {
    MutexLock lock(mu_);
    if (!IsSuspect(half)) return absl::OkStatus();
    writers = WritersOf(half);
  }
  FileLease lease(files_[half].fd());
  const FileLease::Answer alone = lease.Try();
  lease.Release();
  if (alone != FileLease::Answer::kAlone) {
    LogWarn(
        "model {}: {} was granted {}, never reported its end, and may still write there ({}): a "
        "fresh file replaces it",
        context_.model.name, writers, path(half).native(),
        alone == FileLease::Answer::kInUse ? DescribeHolders(WhoHas(files_[half].fd()))
                                           : lease.reason());
    replacing();
    DW_RETURN_IF_ERROR(
        Annotate(Replace(half), fmt::format("model \"{}\": a half that {} may still write into "
                                            "cannot be replaced",
                                            context_.model.name, writers)));
  }
  MutexLock lock(mu_);
  halves_[half].suspect = false;
  halves_[half].writers.clear();
  return absl::OkStatus();
}

Status Halves::Replace(uint32_t half) {
  // First, so that after a crash the half does not count as whole.
  BeginWrite(half);
  DW_ASSIGN_OR_RETURN(BufferFile fresh,
                      BufferFile::Create(path(half), context_.model.layout, context_.buffer));
  state_.set_inode(half, fresh.inode());
  files_[half] = std::move(fresh);
  return absl::OkStatus();
}

void Halves::BeginWrite(uint32_t half) {
  {
    MutexLock lock(mu_);
    halves_[half].use = HalfUse::kGranted;
    halves_[half].holds = {};
  }
  state_.BeginWrite(half);
}

void Halves::Commit(uint32_t half, const Identity& id, std::span<const uint64_t> digests) {
  for (uint32_t c = 0; c < digests.size(); ++c) {
    state_.SetChunk(half, c, id.id.version, digests[c]);
  }
  state_.FinishWrite(half, id);
  state_.set_active(half);
  state_.set_highest_version(std::max(state_.highest_version(), id.id.version));
  MutexLock lock(mu_);
  halves_[half].use = HalfUse::kIdle;
  halves_[half].holds = id;
}

void Halves::Stop(const Status& why) {
  MutexLock lock(mu_);
  if (stopped_.ok()) stopped_ = why;
  cv_.notify_all();
}

}  // namespace deltawire::sender
