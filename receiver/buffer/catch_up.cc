#include "receiver/buffer/catch_up.h"

#include <atomic>
#include <map>
#include <mutex>

#include "common/base/sync.h"
#include "common/shm/file_lease.h"

namespace deltawire::receiver {
namespace {

/// Makes the hidden file ready to be changed. False: others have it open.
StatusOr<bool> BeginHidden(WeightFiles& files, int slot) {
  BufferSlot& hidden = files.slot(slot);
  if (!hidden.has_file() || hidden.HasAnotherName()) {
    DW_RETURN_IF_ERROR(files.Make(slot));
  } else if (hidden.TryAlone() != FileLease::Answer::kAlone) {
    return false;
  }
  if (!hidden.CloseServed()) {
    hidden.lease().Release();
    return false;
  }
  hidden.BeginWrite();
  return true;
}

}  // namespace

bool CanCatchUp(const Buffer& buffer) {
  return buffer.buffers() == 2 &&
         (buffer.lease_problem().empty() || buffer.options().unsafe_in_place);
}

bool LacksSecondFile(const Buffer& buffer) {
  const WeightFiles& files = buffer.files();
  return CanCatchUp(buffer) && files.front() < 0 &&
         !(files.slot(0).has_file() && files.slot(1).has_file());
}

Status MakeSecondFile(Buffer& buffer, const std::function<bool()>& stop) {
  if (!LacksSecondFile(buffer)) return absl::OkStatus();
  WeightFiles& files = buffer.files();
  const int slot = files.slot(0).has_file() ? 1 : 0;
  DW_RETURN_IF_ERROR(files.Make(slot, stop));
  files.slot(slot).lease().Release();
  return absl::OkStatus();
}

StatusOr<CaughtUp> CatchUpSecondFile(Buffer& buffer, std::span<const AppliedDelta> deltas,
                                     const std::function<bool()>& stop) {
  WeightFiles& files = buffer.files();
  const int front = files.front();
  if (buffer.buffers() != 2 || front < 0) return CaughtUp{};
  if (buffer.update().state() != BufferUpdate::State::kNone) return CaughtUp{};
  DW_ASSIGN_OR_RETURN(const bool begun, BeginHidden(files, 1 - front));
  if (!begun) return CaughtUp{};
  BufferSlot& hidden = files.slot(1 - front);
  std::map<uint32_t, std::vector<const AppliedDelta*>> by_chunk;
  for (const AppliedDelta& d : deltas) by_chunk[d.chunk].push_back(&d);
  Mutex mu;
  CaughtUp caught;
  std::atomic<bool> stopped{false};
  ForEachChunk(buffer.chunks(), buffer.options().pool, [&](uint32_t i) {
    // A process may have looked up the name while this file had it, and be waiting to open it now;
    // it must find the file whole, so the catch-up does not stop then.
    if (stopped || (stop() && !hidden.lease().wanted())) {
      stopped = true;
      return;
    }
    const auto mine = by_chunk.find(i);
    const Status done = hidden.CatchUpChunk(
        files.slot(front), i,
        mine == by_chunk.end() ? std::span<const AppliedDelta* const>() : mine->second);
    if (done.ok()) return;
    std::lock_guard lock(mu);
    caught.corrupt_chunks.push_back(i);
  });
  caught.whole = caught.corrupt_chunks.empty() && !stopped;
  if (caught.whole) hidden.FinishWrite(buffer.committed());
  hidden.lease().Release();
  return caught;
}

}  // namespace deltawire::receiver
