// Chunks of an earlier state, rebuilt from newer bytes and shared by the pulls that end at it.
// Owner: the Published state. Threads: any. Cost: the chunks' memory, for all states of a model
// together at most its budget. Errors: none; a chunk beyond the budget is not kept.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "common/base/bytes.h"
#include "common/base/sync.h"

namespace deltawire {

class KeptChunks {
 public:
  struct Budget {
    explicit Budget(uint64_t bytes) : left(bytes) {}
    std::atomic<uint64_t> left;
  };
  struct Kept {
    std::shared_ptr<const std::byte[]> memory;  ///< null: not kept
    size_t bytes = 0;
  };

  explicit KeptChunks(std::shared_ptr<Budget> budget) : budget_(std::move(budget)) {}
  ~KeptChunks() { budget_->left += bytes_; }
  KeptChunks(const KeptChunks&) = delete;
  KeptChunks& operator=(const KeptChunks&) = delete;

  Kept Find(uint32_t chunk) const {
    std::lock_guard lock(mu_);
    const auto it = chunks_.find(chunk);
    return it == chunks_.end() ? Kept{} : it->second;
  }
  /// False when the budget is spent; true also when the chunk is kept already.
  bool Keep(uint32_t chunk, Kept kept) {
    std::lock_guard lock(mu_);
    if (chunks_.contains(chunk)) return true;
    uint64_t left = budget_->left;
    do {
      if (left < kept.bytes) return false;
    } while (!budget_->left.compare_exchange_weak(left, left - kept.bytes));
    bytes_ += kept.bytes;
    chunks_.emplace(chunk, std::move(kept));
    return true;
  }

 private:
  const std::shared_ptr<Budget> budget_;
  mutable Mutex mu_;
  uint64_t bytes_ = 0;
  std::map<uint32_t, Kept> chunks_;
};

}  // namespace deltawire
