// A Model's memory against its digests: found chunk by chunk when idle, rebuilt or taken out of
// use.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>

#include "sender/model.h"

namespace deltawire::sender {
namespace {

// Small chunks are taken together: a pause costs a wake-up.
constexpr uint64_t kBatchBytes = 256 << 10;
constexpr std::chrono::milliseconds kNothingToDo{500};

}  // namespace

std::chrono::nanoseconds Model::ScrubSome(std::unique_lock<std::mutex>& lock) {
  if (phase_ != OffloadPhase::kIdle || published_ == nullptr || chunks_.size() == 0) {
    return kNothingToDo;
  }
  lock.unlock();
  uint64_t bytes = 0;
  {
    const LeasedState leased = Lease();
    const Bytes half = std::as_const(halves_[leased.state->half]).data();
    for (uint32_t n = 0; n < chunks_.size() && bytes < kBatchBytes; ++n) {
      const uint32_t c = scrub_next_++ % chunks_.size();
      if (!owned_.contains(c)) continue;
      const Bytes now = half.subspan(chunks_[c].offset, chunks_[c].bytes);
      bytes += now.size();
      if (backend_.digest(key_, now) != (*leased.state->digests)[c]) {
        Damaged(c, leased);
      } else {
        leased.state->damaged[c] = 0;
      }
    }
    scrub_next_ %= chunks_.size();
  }
  lock.lock();
  scrub_.bytes += bytes;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(
      static_cast<double>(bytes) / static_cast<double>(options_.scrub_bytes_per_s)));
}

void Model::Damaged(uint32_t c, const LeasedState& leased) {
  // First: nobody sends it any more, nor diffs against it.
  const bool known = leased.state->damaged[c].exchange(1) != 0;
  const bool rebuilt = RebuildChunk(c, leased);
  const std::string& tensor = layout_.tensor(chunks_[c].tensor).name;
  if (rebuilt) {
    spdlog::error(
        "model {}: {}: chunk {} of tensor {} had lost its digest; rebuilt from the "
        "version before (check this machine's memory)",
        name_, ToString(leased.state->info.id), c, tensor);
  } else if (!known) {
    spdlog::error(
        "model {}: {}: chunk {} of tensor {} has lost its digest; it is not sent any "
        "more until a version in which the trainer writes that tensor (check this machine's "
        "memory)",
        name_, ToString(leased.state->info.id), c, tensor);
  }
  std::lock_guard lock(mu_);
  if (!known) ++scrub_.mismatches;
  if (rebuilt) ++scrub_.repaired;
}

bool Model::RebuildChunk(uint32_t c, const LeasedState& leased) {
  const Published& now = *leased.state;
  if (now.log.empty() || now.log.back()->to() != now.info.id) return false;
  const ChunkDelta* delta = now.log.back()->Find(c);
  if (delta != nullptr && delta->full) return false;
  const Chunk& place = chunks_[c];
  // The trainer may be writing there by now; what comes out is believed only by its digest.
  const Bytes before =
      std::as_const(halves_[1 - now.half]).data().subspan(place.offset, place.bytes);
  std::vector<std::byte> bytes(before.begin(), before.end());
  if (delta != nullptr) {
    uint64_t ignored = 0;
    const auto applied = backend_.decode_apply(key_, delta->payload, bytes, place.width,
                                               delta->digest_before, &ignored);
    if (applied != kernels::DecodeStatus::kOk) return false;
  }
  if (backend_.digest(key_, bytes) != (*now.digests)[c]) return false;
  std::lock_guard lock(mu_);
  // Only while nobody reads what is written: no publish or rollback, which hold no lease, and no
  // lease but this scrub's.
  if (phase_ != OffloadPhase::kIdle || published_ != leased.state || readers_[now.half] != 1) {
    return false;
  }
  std::memcpy(halves_[now.half].data().data() + place.offset, bytes.data(), bytes.size());
  now.full_xxh3[c] = 0;
  now.damaged[c] = 0;
  return true;
}

ScrubTotals Model::scrub() const {
  std::lock_guard lock(mu_);
  return scrub_;
}

uint64_t Model::damaged_chunks() const {
  const auto now = published();
  if (now == nullptr) return 0;
  uint64_t n = 0;
  for (uint32_t c = 0; c < chunks_.size(); ++c) n += now->damaged[c];
  return n;
}

}  // namespace deltawire::sender
