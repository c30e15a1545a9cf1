#include "receiver/buffer/buffer_slot.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "common/layout/root.h"

namespace deltawire::receiver {

void ForEachChunk(const ChunkTable& chunks, ThreadPool* pool,
                  const std::function<void(uint32_t)>& f) {
  if (pool != nullptr) {
    return pool->ParallelFor(chunks.size(), [&](size_t i) { f(static_cast<uint32_t>(i)); });
  }
  for (uint32_t i = 0; i < chunks.size(); ++i) f(i);
}

Status BufferSlot::Open(const std::filesystem::path& path) {
  DW_ASSIGN_OR_RETURN(
      BufferFile file,
      BufferFile::Open(path, env_.layout, {.huge_pages = env_.huge_pages, .pool = env_.pool}));
  file_ = std::make_shared<BufferFile>(std::move(file));
  lease_ = FileLease(file_->fd());
  return absl::OkStatus();
}

Status BufferSlot::Make(const std::filesystem::path& path, const std::function<bool()>& stop) {
  DW_ASSIGN_OR_RETURN(
      BufferFile file,
      BufferFile::Create(path, env_.layout,
                         {.huge_pages = env_.huge_pages, .pool = env_.pool, .stop = stop}));
  state_.set_inode(index_, file.inode());
  file_ = std::make_shared<BufferFile>(std::move(file));
  lease_ = FileLease(file_->fd());
  if (env_.leases) lease_.Try();
  return absl::OkStatus();
}

void BufferSlot::Forget() {
  if (state_.phase(index_) != SlotPhase::kEmpty || inode() != 0) state_.set_inode(index_, 0);
  lease_ = FileLease();
  served_.reset();
  file_.reset();
}

Status BufferSlot::Remove() {
  const std::filesystem::path path = file_->path();
  const bool its = HasItsPath();
  Forget();
  if (!its || ::unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return ErrnoError("remove " + path.native());
}

bool BufferSlot::HasItsPath() const {
  struct stat named;
  return ::stat(file_->path().c_str(), &named) == 0 && named.st_ino == file_->inode();
}

bool BufferSlot::HasAnotherName() const {
  struct stat file;
  return !env_.unsafe_in_place && ::fstat(file_->fd(), &file) == 0 && file.st_nlink > 1;
}

void BufferSlot::Remember() {
  struct stat file;
  if (::fstat(file_->fd(), &file) != 0) return;
  written_[0] = file.st_mtim.tv_sec;
  written_[1] = file.st_mtim.tv_nsec;
}

bool BufferSlot::IsTouched() const {
  struct stat file;
  return ::fstat(file_->fd(), &file) != 0 || file.st_mtim.tv_sec != written_[0] ||
         file.st_mtim.tv_nsec != written_[1] ||
         static_cast<uint64_t>(file.st_size) != file_->file_bytes();
}

bool BufferSlot::IsReusable() const {
  // A file whose path was removed or replaced is not reused: it might not get a name again.
  return file_ && HasItsPath() && !HasAnotherName() && (env_.leases || env_.unsafe_in_place);
}

std::shared_ptr<ServedFile> BufferSlot::Serve() {
  if (served_ == nullptr) served_ = std::make_shared<ServedFile>(file_);
  return served_;
}

bool BufferSlot::CloseServed() {
  if (served_ != nullptr && !served_->Close()) return false;
  served_ = nullptr;
  return true;
}

bool BufferSlot::HasItsRoot() const {
  uint64_t root = 0;
  for (uint32_t i = 0; i < env_.chunks.size(); ++i) root += RootTerm(i, digest(i));
  return root == identity().root;
}

std::vector<uint32_t> BufferSlot::FindCorrupt() const {
  Mutex mu;
  std::vector<uint32_t> corrupt;
  ForEachChunk(env_.chunks, env_.pool, [&](uint32_t i) {
    if (!Knows(i) || HasItsDigest(i)) return;
    std::lock_guard lock(mu);
    corrupt.push_back(i);
  });
  std::sort(corrupt.begin(), corrupt.end());
  return corrupt;
}

Status BufferSlot::CopyChunk(const BufferSlot& from, uint32_t i) {
  const uint64_t digest = from.digest(i);
  MarkUnknown(i);
  const Bytes source = from.bytes(i);
  const MutableBytes copy = bytes(i);
  if (!source.empty()) std::memcpy(copy.data(), source.data(), source.size());
  if (env_.backend.digest(env_.key, copy) == digest) {
    SetChunk(i, from.version(i), digest);
    return absl::OkStatus();
  }
  return Errorf(
      StatusCode::kDataLoss,
      "{}: chunk {} of tensor {} has lost its digest; it must be fetched whole (check this "
      "machine's memory)",
      file_->path().parent_path().native(), i, env_.layout.tensor(env_.chunks[i].tensor).name);
}

Status BufferSlot::CatchUpChunk(const BufferSlot& from, uint32_t i,
                                std::span<const AppliedDelta* const> deltas) {
  const uint64_t want = from.digest(i);
  uint64_t at = digest(i);
  bool known = Knows(i);
  for (const AppliedDelta* d : deltas) {
    if (!known || at == want) break;
    if (d->digest_before != at) continue;
    MarkUnknown(i);
    uint64_t after = 0;
    known = env_.backend.decode_apply(env_.key, d->payload, bytes(i), env_.chunks[i].width, at,
                                      &after) == kernels::DecodeStatus::kOk &&
            after == d->digest_after;
    at = after;
  }
  if (!known || at != want) return CopyChunk(from, i);
  SetChunk(i, from.version(i), want);
  return absl::OkStatus();
}

}  // namespace deltawire::receiver
