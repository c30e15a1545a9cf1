#include "sender/agent/diff/diff_base.h"

#include <algorithm>
#include <cstring>

namespace deltawire::sender {
namespace {

// The size of a copied block, which stays in the first-level cache until it is digested.
constexpr size_t kCopyStep = 16 << 10;

}  // namespace

void DiffBase::MarkCorrupt(uint32_t i, bool whole) {
  if (IsCorrupt(i)) return;
  if (in_.published != nullptr) in_.published->damaged[i] = 1;
  if (in_.corrupt) in_.corrupt(i, whole);
}

bool DiffBase::CopyOver(uint32_t i, bool may_be_there) {
  const Bytes from = before(i);
  const MutableBytes to = now(i);
  // Saves the copy, and keeps right bytes if those of the active half are corrupt.
  if (may_be_there && MayHaveBytes(i) && in_.backend->digest(*in_.key, to) == digest(i)) {
    return true;
  }
  uint64_t copied = 0;
  for (size_t at = 0; at < from.size(); at += kCopyStep) {
    const size_t bytes = std::min(kCopyStep, from.size() - at);
    std::memcpy(to.data() + at, from.data() + at, bytes);
    copied += in_.backend->digest_range(*in_.key, {to.data() + at, bytes}, at);
  }
  if (copied == digest(i)) return true;
  MarkCorrupt(i, false);
  return false;
}

bool DiffBase::MayHaveBytes(uint32_t i) const {
  if (in_.published == nullptr) return false;
  const LogView& log = in_.published->log;
  return !log.empty() && log.back()->Find(i) == nullptr;
}

}  // namespace deltawire::sender
