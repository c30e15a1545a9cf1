#include "receiver/pull/round_tally.h"

namespace deltawire::receiver {
namespace {

constexpr size_t kMostNamed = 8;

}  // namespace

void RoundTally::CountForm(size_t form, uint64_t bytes, bool by_history) {
  MutexLock lock(mu_);
  ++forms_.chunks[form];
  forms_.bytes[form] += bytes;
  history_chunks_ += by_history ? 1 : 0;
}

bool RoundTally::AddMismatched(uint32_t chunk) {
  MutexLock lock(mu_);
  return mismatched_.insert(chunk).second && mismatched_.size() <= kMostNamed;
}

void RoundTally::AddCorrupt(uint32_t chunk) {
  MutexLock lock(mu_);
  corrupt_.push_back(chunk);
}

std::set<uint32_t> RoundTally::mismatched() const {
  MutexLock lock(mu_);
  return mismatched_;
}

bool RoundTally::has_corrupt() const {
  MutexLock lock(mu_);
  return !corrupt_.empty();
}

std::vector<uint32_t> RoundTally::TakeCorrupt() {
  MutexLock lock(mu_);
  return std::exchange(corrupt_, {});
}

void RoundTally::AddTo(PullStats& stats) const {
  MutexLock lock(mu_);
  const uint64_t whole = forms_.chunks[FormCounts::kRaw];
  stats.chunks_full += whole;
  for (const uint64_t chunks : forms_.chunks) stats.chunks_delta += chunks;
  stats.chunks_delta -= whole;
  stats.payload_bytes += bytes_;
  stats.refused_chunks += refusals_;
  stats.history_chunks += history_chunks_;
  stats.forms += forms_;
}

}  // namespace deltawire::receiver
