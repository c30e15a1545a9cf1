#include "receiver/buffer/chunk_bases.h"

#include <algorithm>
#include <set>

#include "common/base/sync.h"
#include "common/layout/root.h"

namespace deltawire::receiver {

ChunkBases::ChunkBases(WeightFiles& files, const Layout& layout, const ChunkTable& chunks,
                       ThreadPool* pool)
    : files_(files), layout_(layout), chunks_(chunks), pool_(pool), touched_(chunks.size()) {}

int ChunkBases::slot_of(uint32_t i) const {
  // A chunk that this update has touched is either new, or unknown and must be fetched whole; the
  // older bytes in the other file are not its base.
  const int work = slot_, front = files_.front();
  if (work >= 0 && touched_[i] != 0) return files_.slot(work).Knows(i) ? work : -1;
  if (front >= 0) return front;
  const int last = files_.last_front();
  if (files_.slot(last).Knows(i)) return last;
  return files_.slot(1 - last).Knows(i) ? 1 - last : -1;
}

uint64_t ChunkBases::digest(uint32_t i) const {
  const int slot = slot_of(i);
  return slot < 0 ? 0 : files_.slot(slot).digest(i);
}

Bytes ChunkBases::bytes(uint32_t i) const {
  const int slot = slot_of(i);
  return slot < 0 ? Bytes() : files_.slot(slot).bytes(i);
}

wire::Have ChunkBases::have() const {
  wire::Have have;
  have.held = files_.slot(files_.last_front()).identity();
  have.chunks.resize(chunks_.size());
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    const int slot = slot_of(i);
    if (slot >= 0) have.chunks[i] = {files_.slot(slot).version(i), files_.slot(slot).digest(i)};
  }
  return have;
}

void ChunkBases::Begin(int slot, bool fresh) {
  files_.slot(slot).BeginWrite();
  if (fresh || slot_ != slot) std::fill(touched_.begin(), touched_.end(), uint8_t{0});
  slot_ = slot;
}

bool ChunkBases::Resume(int slot) {
  const BufferSlot& file = files_.slot(slot);
  if (!file.has_file() || !file.IsWriting()) return false;
  // Chunks at one of these versions are not from the update: the file's previous version, and the
  // front file's, to which CatchUpSecondFile was bringing the file.
  const std::set<uint64_t> older = {file.identity().id.version,
                                    files_.slot(files_.last_front()).identity().id.version};
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    if (!file.Knows(i) || older.contains(file.version(i))) continue;
    touched_[i] = 1;
    slot_ = slot;
  }
  return slot_ == slot;
}

void ChunkBases::Revert() {
  BufferSlot& work = files_.slot(slot_);
  work.BeginWrite();  // the file is whole if its commit failed behind the last byte
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    if (touched_[i] != 0) work.MarkUnknown(i);
  }
  std::fill(touched_.begin(), touched_.end(), uint8_t{0});
  slot_ = -1;
}

StatusOr<MutableBytes> ChunkBases::Prepare(uint32_t i, uint64_t digest) {
  const int base = slot_of(i), work = slot_;
  if (base < 0 || files_.slot(base).digest(i) != digest) {
    return Errorf(StatusCode::kDataLoss,
                  "{}: chunk {} of tensor {} is not at the digest that its delta starts from",
                  files_.directory().native(), i, layout_.tensor(chunks_[i].tensor).name);
  }
  BufferSlot& to = files_.slot(work);
  const bool there = base == work || (to.Knows(i) && to.digest(i) == digest);
  if (!there) DW_RETURN_IF_ERROR(to.CopyChunk(files_.slot(base), i));
  MarkUnknown(i);
  return to.bytes(i);
}

void ChunkBases::MarkUnknown(uint32_t i) {
  files_.slot(slot_).MarkUnknown(i);
  touched_[i] = 1;
}

void ChunkBases::Set(uint32_t i, uint64_t version, uint64_t digest) {
  files_.slot(slot_).SetChunk(i, version, digest);
  touched_[i] = 1;
}

StatusOr<std::vector<uint64_t>> ChunkBases::DigestsOf(const Identity& whole) const {
  std::vector<uint64_t> digests(chunks_.size());
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    const int base = slot_of(i);
    if (base < 0) {
      return Errorf(StatusCode::kInternal, "{}: chunk {} of tensor {} is missing",
                    files_.directory().native(), i, layout_.tensor(chunks_[i].tensor).name);
    }
    digests[i] = files_.slot(base).digest(i);
  }
  if (const uint64_t root = RootOf(digests, Coverage::All(chunks_.size())); root != whole.root) {
    return Errorf(StatusCode::kDataLoss, "{}: the chunks have root {:016x}, so they are not {}",
                  files_.directory().native(), root, DescribeFully(whole));
  }
  return digests;
}

Status ChunkBases::FillFile(const std::vector<uint64_t>& digests) {
  BufferSlot& work = files_.slot(slot_);
  Mutex mu;
  Status failed;
  std::vector<uint32_t> corrupt;
  ForEachChunk(chunks_, pool_, [&](uint32_t i) {
    if (work.Knows(i) && work.digest(i) == digests[i]) return;
    const Status copied = work.CopyChunk(files_.slot(slot_of(i)), i);
    if (copied.ok()) return;
    std::lock_guard lock(mu);
    failed.Update(copied);
    corrupt.push_back(i);
  });
  // Without this every retry would copy the same corrupt bytes.
  if (!corrupt.empty()) DW_RETURN_IF_ERROR(Withdraw(corrupt));
  corrupt_.insert(corrupt_.end(), corrupt.begin(), corrupt.end());
  return failed;
}

Status ChunkBases::Withdraw(std::span<const uint32_t> chunks) {
  for (const int s : {0, 1}) {
    BufferSlot& slot = files_.slot(s);
    std::vector<uint32_t> corrupt;
    for (const uint32_t c : chunks) {
      if (slot.Knows(c) && !slot.HasItsDigest(c)) corrupt.push_back(c);
    }
    if (corrupt.empty()) continue;
    if (s == files_.front()) DW_RETURN_IF_ERROR(files_.Hide());
    slot.BeginWrite();
    for (const uint32_t c : corrupt) {
      slot.MarkUnknown(c);
      if (s == slot_) touched_[c] = 0;  // the other file's bytes are the base again
    }
  }
  return absl::OkStatus();
}

}  // namespace deltawire::receiver
