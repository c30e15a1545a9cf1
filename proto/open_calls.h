// Counts the open calls of one kind that may last long, and refuses further ones beyond two limits:
// one for each caller (a principal, or an address where callers have no names) and one for all.
// Owner: the Access; what Take returns may outlive it. Threads: any. Cost: a look-up. Errors:
// kResourceExhausted says whose calls are too many.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/base/sync.h"

namespace deltawire {

class OpenCalls {
 public:
  struct Limits {
    size_t most = 0, most_per_caller = 0;
  };
  /// `what`: what messages call these calls, such as "watches".
  OpenCalls(std::string what, const Limits& limits) : what_(std::move(what)), limits_(limits) {}

  /// Counts a call until the result is dropped.
  StatusOr<std::shared_ptr<const void>> Take(const std::string& caller) {
    std::lock_guard lock(counts_->mu);
    const auto known = counts_->by_caller.find(caller);
    const size_t same = known == counts_->by_caller.end() ? 0 : known->second;
    if (same >= limits_.most_per_caller) {
      return Errorf(StatusCode::kResourceExhausted,
                    "{} has {} {} open, which is the most; end some of them first", caller, same,
                    what_);
    }
    if (counts_->all >= limits_.most) {
      return Errorf(StatusCode::kResourceExhausted,
                    "{} {} are open, which is the most of all callers; try again when some have "
                    "ended",
                    counts_->all, what_);
    }
    ++counts_->all;
    ++counts_->by_caller[caller];
    return std::shared_ptr<const void>(nullptr, [counts = counts_, caller](const void*) {
      std::lock_guard guard(counts->mu);
      --counts->all;
      if (--counts->by_caller[caller] == 0) counts->by_caller.erase(caller);
    });
  }

 private:
  struct Counts {
    Mutex mu;
    size_t all = 0;
    std::map<std::string, size_t> by_caller;
  };
  const std::string what_;
  const Limits limits_;
  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
};

}  // namespace deltawire
