#include "receiver/buffer/check.h"

#include "receiver/buffer/buffer_names.h"

namespace deltawire::receiver {
namespace {

/// Checks the bytes of the named file if another process wrote to it.
Status CheckBytes(Buffer& buffer, BufferHealth& health) {
  BufferSlot& named = buffer.files().slot(buffer.files().front());
  if (!named.IsTouched()) return absl::OkStatus();
  // Restores the size first: reading beyond the end of a shortened file would give SIGBUS.
  DW_RETURN_IF_ERROR(named.file().Restore(buffer.layout()));
  health.corrupt_chunks = named.FindCorrupt();
  if (!health.corrupt_chunks.empty()) {
    return buffer.bases().Withdraw(health.corrupt_chunks);
  }
  named.Remember();
  return absl::OkStatus();
}

Status CheckName(Buffer& buffer, BufferHealth& health) {
  DW_ASSIGN_OR_RETURN(const WeightFiles::Name name, buffer.files().RestoreName());
  if (name == WeightFiles::Name::kThere) return absl::OkStatus();
  if (name == WeightFiles::Name::kLost) {
    // The file of an update takes its place; without an update, a copy does.
    if (buffer.update().state() != BufferUpdate::State::kNone) return absl::OkStatus();
    DW_RETURN_IF_ERROR(buffer.update().CommitCopy());
  }
  health.put_back.emplace_back(kWeights);
  return absl::OkStatus();
}

}  // namespace

StatusOr<BufferHealth> CheckFiles(Buffer& buffer) {
  WeightFiles& files = buffer.files();
  DW_RETURN_IF_ERROR(files.CheckPlace());
  BufferHealth health;
  if (buffer.updating()) return health;  // the next commit puts everything in place
  DW_RETURN_IF_ERROR(CheckBytes(buffer, health));
  if (!buffer.updating()) DW_RETURN_IF_ERROR(CheckName(buffer, health));
  DW_ASSIGN_OR_RETURN(const std::vector<std::string> names, buffer.side_files().PutBack());
  health.put_back.insert(health.put_back.end(), names.begin(), names.end());
  DW_RETURN_IF_ERROR(files.RemoveLeftOver());
  return health;
}

bool IsIntact(const Buffer& buffer, uint32_t i) {
  const WeightFiles& files = buffer.files();
  const int front = files.front(), base = buffer.bases().slot_of(i);
  if (front >= 0 && !files.slot(front).HasItsDigest(i)) return false;
  return base < 0 || base == front || files.slot(base).HasItsDigest(i);
}

}  // namespace deltawire::receiver
