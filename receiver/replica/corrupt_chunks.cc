#include "receiver/replica/corrupt_chunks.h"

#include <utility>

namespace deltawire::receiver {

void CorruptChunks::SetLayout(const std::string& fingerprint) {
  MutexLock lock(mu_);
  if (std::exchange(layout_, fingerprint) != fingerprint) chunks_.clear();
}

bool CorruptChunks::AddUnder(uint32_t chunk) {
  const bool added = chunks_.insert(chunk).second;
  counted_ += added ? 1 : 0;
  return added;
}

bool CorruptChunks::Add(uint32_t chunk) {
  MutexLock lock(mu_);
  return AddUnder(chunk);
}

bool CorruptChunks::AddOf(const std::string& fingerprint, uint32_t chunk) {
  MutexLock lock(mu_);
  return fingerprint == layout_ && AddUnder(chunk);
}

void CorruptChunks::Merge(const std::vector<uint32_t>& chunks) {
  MutexLock lock(mu_);
  chunks_.insert(chunks.begin(), chunks.end());
}

void CorruptChunks::Count(size_t chunks) {
  MutexLock lock(mu_);
  counted_ += chunks;
}

std::vector<uint32_t> CorruptChunks::Take() {
  MutexLock lock(mu_);
  const std::set<uint32_t> chunks = std::exchange(chunks_, {});
  return {chunks.begin(), chunks.end()};
}

bool CorruptChunks::empty() const {
  MutexLock lock(mu_);
  return chunks_.empty();
}

uint64_t CorruptChunks::counted() const {
  MutexLock lock(mu_);
  return counted_;
}

}  // namespace deltawire::receiver
