// A counter of open calls of one kind, or of the bytes that they hold. It has two limits: one for
// each caller (a principal or, without principals, an address) and one for all. Beyond them, it
// refuses with kResourceExhausted and names the caller. The result of Take may outlive it, and any
// thread may use both.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/base/human.h"
#include "common/base/status.h"
#include "common/base/sync.h"

namespace deltawire {

class OpenCalls {
 public:
  struct Limits {
    size_t most = 0, most_per_caller = 0;
  };
  /// `what` names the calls in messages, such as "watches".
  OpenCalls(std::string what, const Limits& limits) : what_(std::move(what)), limits_(limits) {}

  /// Counts a call until the result is destroyed.
  StatusOr<std::shared_ptr<const void>> Take(const std::string& caller) {
    std::lock_guard lock(counts_->mu);
    const size_t same = Of(caller);
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
    return Count(caller, 1);
  }

  /// Counts the bytes that a call holds until the result is destroyed.
  StatusOr<std::shared_ptr<const void>> TakeBytes(const std::string& caller, size_t bytes) {
    std::lock_guard lock(counts_->mu);
    const size_t same = Of(caller);
    if (same + bytes > limits_.most_per_caller) {
      return Errorf(StatusCode::kResourceExhausted,
                    "{} of {} would hold {}, and {} is the most of one caller; send smaller "
                    "requests, or end some calls first",
                    what_, caller, HumanBytes(same + bytes), HumanBytes(limits_.most_per_caller));
    }
    if (counts_->all + bytes > limits_.most) {
      return Errorf(StatusCode::kResourceExhausted,
                    "{} of all callers would hold {}, and {} is the most; try again when some have "
                    "ended",
                    what_, HumanBytes(counts_->all + bytes), HumanBytes(limits_.most));
    }
    return Count(caller, bytes);
  }

 private:
  // REQUIRES (here and below): the lock held
  size_t Of(const std::string& caller) const {
    const auto known = counts_->by_caller.find(caller);
    return known == counts_->by_caller.end() ? 0 : known->second;
  }
  std::shared_ptr<const void> Count(const std::string& caller, size_t amount) {
    counts_->all += amount;
    counts_->by_caller[caller] += amount;
    return {nullptr, [counts = counts_, caller, amount](const void*) {
              std::lock_guard guard(counts->mu);
              counts->all -= amount;
              if ((counts->by_caller[caller] -= amount) == 0) counts->by_caller.erase(caller);
            }};
  }

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
