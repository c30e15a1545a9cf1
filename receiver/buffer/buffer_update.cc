#include "receiver/buffer/buffer_update.h"

#include <cassert>
#include <mutex>

#include "common/base/log.h"
#include "receiver/buffer/buffer.h"

namespace deltawire::receiver {

BufferUpdate::BufferUpdate(Buffer& buffer) : buffer_(buffer), bases_(buffer.bases()) {}

StatusOr<bool> BufferUpdate::Begin() {
  if (begun()) return true;
  const std::lock_guard lock(lock_);
  return BeginLocked();
}

Status BufferUpdate::BeginInFreshFile() {
  if (begun()) return absl::OkStatus();
  const std::lock_guard lock(lock_);
  return begun() ? absl::OkStatus() : BeginFresh();
}

StatusOr<bool> BufferUpdate::BeginLocked() {
  if (begun()) return true;
  WeightFiles& files = buffer_.files();
  const bool one_file = buffer_.buffers() == 1;
  const int next = NextSlot();
  BufferSlot& slot = files.slot(next);
  const bool reusable = slot.IsReusable();
  if (reusable && slot.IsLeased() && one_file) return false;
  if (reusable && !slot.IsLeased()) {
    const bool named = next == files.front();
    const StatusOr<Answer> alone = named ? files.HideIfAlone() : slot.TryAlone();
    DW_RETURN_IF_ERROR(alone.status());
    if (*alone == Answer::kAlone && (named || slot.CloseServed())) {
      MarkBegun(next, /*fresh=*/false);
      return true;
    }
    // The only file waits for its readers. But leases may have stopped working since the receiver
    // started (fs.leases-enable).
    const bool waits = named ? *alone != Answer::kUnsupported
                             : one_file && files.front() < 0 && *alone == Answer::kInUse;
    if (waits) return false;
  }
  DW_RETURN_IF_ERROR(BeginFresh());
  return true;
}

Status BufferUpdate::BeginFresh() {
  // The fresh file must not replace the file whose chunks are the base.
  WeightFiles& files = buffer_.files();
  const bool broken_off = files.front() < 0 && bases_.slot() >= 0;
  const int slot = 1 - (broken_off ? bases_.slot() : files.last_front());
  const Status made = files.Make(slot);
  if (absl::IsResourceExhausted(made)) {
    return Errorf(made.code(),
                  "{}; a file that was replaced takes memory until its readers close it",
                  MessageOf(made));
  }
  DW_RETURN_IF_ERROR(made);
  // Chunks that a broken update brought into the other file remain a base to copy from.
  MarkBegun(slot, /*fresh=*/true);
  return absl::OkStatus();
}

void BufferUpdate::MarkBegun(int slot, bool fresh) {
  bases_.Begin(slot, fresh);
  state_ = State::kBegun;
}

int BufferUpdate::NextSlot() const {
  if (bases_.slot() >= 0) return bases_.slot();
  const WeightFiles& files = buffer_.files();
  const int front = files.front();
  return front >= 0 && buffer_.buffers() == 2 ? 1 - front : files.last_front();
}

std::string BufferUpdate::Readers() const {
  const BufferSlot& slot = buffer_.files().slot(buffer_.files().last_front());
  if (!slot.has_file()) return "nobody";
  const std::vector<FileHolder> holders = WhoHas(slot.file().fd());
  if (slot.IsLeased() && holders.empty()) return "receivers that this one serves";
  return DescribeHolders(holders);
}

std::shared_ptr<ServedFile> BufferUpdate::BlockingFile() {
  const std::lock_guard lock(lock_);
  BufferSlot& slot = buffer_.files().slot(NextSlot());
  if (begun() || !slot.IsLeased() || !slot.IsReusable()) return nullptr;
  // If other processes have it open, too, the update would wait although the served receivers leave
  // it.
  const bool held = slot.lease().held();
  const Answer answer = slot.TryAlone();
  if (!held) slot.lease().Release();
  return answer == Answer::kInUse ? nullptr : slot.served();
}

void BufferUpdate::Resume(int slot) {
  if (bases_.Resume(slot)) state_ = State::kInterrupted;
}

void BufferUpdate::Discard() {
  const std::lock_guard lock(lock_);
  WeightFiles& files = buffer_.files();
  if (buffer_.buffers() != 2 || files.front() < 0 || state_ == State::kNone) return;
  BufferSlot& work = files.slot(bases_.slot());
  bases_.Revert();
  if (begun()) work.lease().Release();
  state_ = State::kNone;
}

Status BufferUpdate::Prepare(const Identity& whole) {
  const std::lock_guard lock(lock_);
  assert(begun() || NextSlot() != buffer_.files().front());
  DW_ASSIGN_OR_RETURN(const bool begun, BeginLocked());
  if (!begun) {
    return Errorf(StatusCode::kUnavailable, "{} is in use by {}", buffer_.directory().native(),
                  Readers());
  }
  DW_ASSIGN_OR_RETURN(const std::vector<uint64_t> digests, bases_.DigestsOf(whole));
  return bases_.FillFile(digests);
}

Status BufferUpdate::Commit(const Identity& whole, const std::vector<SideFile>& side_files) {
  const std::lock_guard lock(lock_);
  // Begins even if no pull has changed a byte: the new version may have the same chunks.
  DW_ASSIGN_OR_RETURN(const bool begun, BeginLocked());
  if (!begun) {
    return Errorf(StatusCode::kUnavailable, "{} is in use by {}", buffer_.directory().native(),
                  Readers());
  }
  return CommitLocked(whole, &side_files);
}

Status BufferUpdate::CommitCopy() {
  const std::lock_guard lock(lock_);
  const Identity whole = buffer_.committed();
  if (buffer_.buffers() == 1) {
    DW_RETURN_IF_ERROR(BeginFresh());
  } else {
    DW_RETURN_IF_ERROR(BeginLocked().status());
  }
  return CommitLocked(whole, nullptr);
}

Status BufferUpdate::CommitLocked(const Identity& whole, const std::vector<SideFile>* side_files) {
  WeightFiles& files = buffer_.files();
  InstalledSideFiles& installed = buffer_.side_files();
  DW_RETURN_IF_ERROR(files.CheckPlace());
  DW_ASSIGN_OR_RETURN(const std::vector<uint64_t> digests, bases_.DigestsOf(whole));
  DW_RETURN_IF_ERROR(bases_.FillFile(digests));
  if (side_files != nullptr) DW_RETURN_IF_ERROR(installed.Stage(*side_files, whole));
  const int slot = bases_.slot();
  BufferSlot& work = files.slot(slot);
  work.BeginWrite();
  for (uint32_t i = 0; i < digests.size(); ++i) work.SetChunk(i, whole.id.version, digests[i]);
  work.FinishWrite(whole);
  // If a later step fails, the file is whole, and changing it again needs a new Begin.
  state_ = State::kInterrupted;
  work.lease().Release();
  DW_RETURN_IF_ERROR(installed.Install());
  DW_RETURN_IF_ERROR(files.GiveName(slot));
  bases_.End();
  state_ = State::kNone;
  // The version is committed, whatever fails here; CheckFiles tries it again.
  const Status recorded = installed.Finish();
  if (!recorded.ok()) LogWarn("{}: {}", buffer_.directory().native(), MessageOf(recorded));
  work.Remember();
  // A fresh file has replaced one that others read; its memory is free once they close it.
  if (buffer_.buffers() == 1) files.RemoveReplaced();
  return absl::OkStatus();
}

}  // namespace deltawire::receiver
