// A Replica's memory against its digests: asked for (Verify), and little by little when idle.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "common/base/human.h"
#include "receiver/replica.h"

namespace deltawire::receiver {
namespace {

using Clock = std::chrono::steady_clock;

// Small chunks are taken together: a pause costs a wake-up.
constexpr uint64_t kBatchBytes = 256 << 10;
constexpr std::chrono::milliseconds kNothingToDo{500};

}  // namespace

StatusOr<VerifyResult> Replica::Verify(bool repair, const std::function<bool()>& gone) {
  VerifyResult result;
  {
    std::lock_guard buffer_lock(buffer_mu_);
    if (buffer_ == nullptr || buffer_->committed().epoch == 0) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "model \"{}\": no whole version is committed; sync first", options_.model);
    }
    const auto start = Clock::now();
    result.committed = buffer_->committed();
    result.chunks = buffer_->chunks().size();
    result.bytes = buffer_->layout().total_bytes();
    const kernels::Backend& backend = kernels::Best();
    std::mutex mu;
    std::set<uint32_t> bad;
    pool_.ParallelFor(buffer_->chunks().size(), [&](size_t i) {
      const auto c = static_cast<uint32_t>(i);
      if (backend.digest(buffer_->key(), buffer_->chunk(c)) == buffer_->digest(c)) return;
      std::lock_guard guard(mu);
      bad.insert(c);
    });
    result.seconds = SecondsSince(start);
    result.bad_chunks = bad.size();
    std::set<uint32_t> tensors;
    for (const uint32_t c : bad) tensors.insert(buffer_->chunks()[c].tensor);
    for (const uint32_t t : tensors) {
      if (result.bad_tensors.size() < 100) {
        result.bad_tensors.push_back(buffer_->layout().tensor(t).name);
      }
    }
    if (bad.empty()) return result;
    spdlog::error("model {}: verify: {} chunks disagree with their digest", options_.model,
                  bad.size());
    if (!repair) return result;
    std::lock_guard lock(mu_);
    suspects_.insert(bad.begin(), bad.end());
  }
  auto synced = Sync(
      false, [](const ReplicaStatus&) {}, gone);
  if (!synced.ok()) return synced.status();
  result.committed = synced->id;
  result.repaired = true;
  return result;
}

std::chrono::nanoseconds Replica::ScrubSome() {
  std::lock_guard buffer_lock(buffer_mu_);
  const ChunkTable& chunks = buffer_->chunks();
  if (buffer_->committed().epoch == 0 || chunks.size() == 0) return kNothingToDo;
  const kernels::Backend& backend = kernels::Best();
  uint64_t bytes = 0;
  std::vector<uint32_t> bad;
  for (uint32_t n = 0; n < chunks.size() && bytes < kBatchBytes; ++n) {
    const uint32_t c = scrub_next_++ % chunks.size();
    bytes += chunks[c].bytes;
    if (backend.digest(buffer_->key(), buffer_->chunk(c)) != buffer_->digest(c)) bad.push_back(c);
  }
  scrub_next_ %= chunks.size();
  std::lock_guard lock(mu_);
  status_.scrubbed_bytes += bytes;
  for (const uint32_t c : bad) {
    if (!suspects_.insert(c).second) continue;
    ++status_.scrub_mismatches;
    spdlog::error(
        "model {}: {}: chunk {} of tensor {} has lost its digest: {} (check this machine's memory)",
        options_.model, ToString(status_.committed), c,
        buffer_->layout().tensor(chunks[c].tensor).name,
        options_.follow && !paused_ ? "fetching it whole" : "the next sync fetches it whole");
  }
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(
      static_cast<double>(bytes) / static_cast<double>(options_.scrub_bytes_per_s)));
}

Status Replica::MarkSuspects() {
  std::set<uint32_t> suspects;
  {
    std::lock_guard lock(mu_);
    suspects.swap(suspects_);
    if (suspects.empty()) return absl::OkStatus();
    status_.committed = {};
    status_.repaired_chunks += suspects.size();
  }
  const Status begun = buffer_->BeginUpdate();
  if (!begun.ok()) {
    std::lock_guard lock(mu_);
    suspects_ = std::move(suspects);
    return begun;
  }
  for (const uint32_t c : suspects) buffer_->MarkUnknown(c);
  return absl::OkStatus();
}

}  // namespace deltawire::receiver
