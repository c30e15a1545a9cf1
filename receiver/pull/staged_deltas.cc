#include "receiver/pull/staged_deltas.h"

#include <algorithm>
#include <utility>

#include "common/base/human.h"
#include "common/base/log.h"

namespace deltawire::receiver {

void StagedDeltas::BeginRound(const ChunkBases& bases, bool at_once) {
  MutexLock lock(mu_);
  bytes_ = 0;
  for (auto it = staged_.begin(); it != staged_.end();) {
    std::vector<StagedDelta>& list = it->second;
    std::erase_if(list, [](const StagedDelta& d) { return !d.complete; });
    const bool fits = !list.empty() && bases.known(it->first) &&
                      bases.digest(it->first) == list.front().header.digest_before;
    if (!fits) {
      it = staged_.erase(it);
      continue;
    }
    for (const StagedDelta& d : list) bytes_ += d.bytes;
    ++it;
  }
  streaming_ = at_once || bytes_ > limit_;
}

bool StagedDeltas::empty() const {
  MutexLock lock(mu_);
  return staged_.empty();
}

bool StagedDeltas::has_refused() const {
  MutexLock lock(mu_);
  return !refused_.empty();
}

uint64_t StagedDeltas::room() const {
  MutexLock lock(mu_);
  return std::max<uint64_t>(1, limit_ - std::min(limit_, bytes_));
}

std::vector<wire::FrameHeader> StagedDeltas::Ends() const {
  MutexLock lock(mu_);
  std::vector<wire::FrameHeader> ends;
  for (const auto& [chunk, list] : staged_) ends.push_back(list.back().header);
  return ends;
}

void StagedDeltas::Overlay(wire::Have& have) const {
  MutexLock lock(mu_);
  for (const auto& [chunk, list] : staged_) {
    wire::Have::Entry& held = have.chunks[chunk];
    // As BeginRound discards them: the delta of a stream that broke may be incomplete, and a chunk
    // that was found corrupt has lost the base of its deltas.
    for (const StagedDelta& d : list) {
      if (!d.complete || d.header.digest_before != held.digest) break;
      held = {d.header.version, d.header.digest_after, 0};
    }
  }
  for (const uint32_t chunk : refused_) have.chunks[chunk] = {};
}

void StagedDeltas::Clear() { (void)TakeAll(); }

StagedDeltas::All StagedDeltas::TakeAll() {
  All all;
  MutexLock lock(mu_);
  for (auto& [chunk, list] : staged_) all.chunks.push_back(std::move(list));
  all.refused = std::exchange(refused_, {});
  staged_.clear();
  bytes_ = 0;
  return all;
}

MutableBytes StagedDeltas::Add(const wire::FrameHeader& header) {
  StagedDelta delta;
  delta.header = header;
  delta.payload = std::make_shared_for_overwrite<std::byte[]>(header.payload_bytes);
  delta.bytes = header.payload_bytes;
  const MutableBytes to(delta.payload.get(), delta.bytes);
  MutexLock lock(mu_);
  bytes_ += delta.bytes;
  if (bytes_ > limit_ && !streaming_) {
    streaming_ = true;
    LogInfo("a delta outgrows the staging bound of {}: applying the rest as it arrives",
            HumanBytes(limit_));
  }
  staged_[header.chunk].push_back(std::move(delta));
  return to;
}

StagedDelta* StagedDeltas::Last(uint32_t chunk, std::vector<Bytes>* before) {
  MutexLock lock(mu_);
  if (refused_.contains(chunk)) {
    DiscardUnder(chunk);
    return nullptr;
  }
  std::vector<StagedDelta>& list = staged_.at(chunk);
  for (size_t i = 0; i + 1 < list.size(); ++i) before->push_back(list[i].fast());
  return &list.back();
}

void StagedDeltas::SetFast(StagedDelta& last, std::shared_ptr<std::byte[]> fast, size_t bytes,
                           bool keep) {
  if (keep) last.came = std::move(last.payload);
  last.payload = std::move(fast);
  MutexLock lock(mu_);
  bytes_ += bytes - last.bytes;
  last.bytes = bytes;
}

std::vector<StagedDelta> StagedDeltas::Complete(uint32_t chunk) {
  MutexLock lock(mu_);
  const auto it = staged_.find(chunk);
  it->second.back().complete = true;
  if (!streaming_) return {};
  std::vector<StagedDelta> now = std::move(it->second);
  for (const StagedDelta& d : now) bytes_ -= d.bytes;
  staged_.erase(it);
  return now;
}

void StagedDeltas::Abandon(uint32_t chunk) {
  MutexLock lock(mu_);
  const auto it = staged_.find(chunk);
  if (it == staged_.end()) return;
  bytes_ -= it->second.back().bytes;
  it->second.pop_back();
  if (it->second.empty()) staged_.erase(it);
}

void StagedDeltas::Discard(uint32_t chunk) {
  MutexLock lock(mu_);
  DiscardUnder(chunk);
}

void StagedDeltas::Refuse(uint32_t chunk) {
  MutexLock lock(mu_);
  DiscardUnder(chunk);
  refused_.insert(chunk);
}

void StagedDeltas::SetWhole(uint32_t chunk, bool right) {
  MutexLock lock(mu_);
  if (right) {
    refused_.erase(chunk);
  } else {
    refused_.insert(chunk);  // deltas that follow cannot be applied either
  }
}

void StagedDeltas::DiscardUnder(uint32_t chunk) {
  const auto it = staged_.find(chunk);
  if (it == staged_.end()) return;
  for (const StagedDelta& d : it->second) bytes_ -= d.bytes;
  staged_.erase(it);
}

}  // namespace deltawire::receiver
