// A queue of reports of groups' members. It hands them to an observer in order, one thread at a
// time, so an observer learns that an attachment has ended before the next one reports. A report
// replaces the same member's undelivered one. Thread-safe.
#pragma once

#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"
#include "common/delta/receiver_report.h"

namespace deltawire {

/// An observer of the receivers that have a GroupWord. It is called without a lock.
class MemberObserver {
 public:
  virtual ~MemberObserver() = default;
  virtual void Reported(const std::string& model, const std::string& id,
                        const ReceiverReport& report) = 0;
  /// The attachment has ended; another one may have taken its place. Also called for a receiver
  /// that is not attached when it is given its first word.
  virtual void Detached(const std::string& model, const std::string& id) = 0;
};

class MemberReports {
 public:
  /// Queues a report; nullopt: the attachment has ended.
  void Add(const std::string& model, const std::string& id, std::optional<ReceiverReport> report);
  /// Delivers everything that is queued. Returns at once if another thread is delivering, which
  /// then delivers the rest.
  void Deliver(MemberObserver& observer) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Event {
    std::string model, id;
    std::optional<ReceiverReport> report;
  };
  CheckedMutex mu_;
  std::list<Event> events_ ABSL_GUARDED_BY(mu_);  // the oldest first
  // The newest event of each member, by model and id.
  std::map<std::pair<std::string, std::string>, std::list<Event>::iterator> newest_
      ABSL_GUARDED_BY(mu_);
  bool delivering_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace deltawire
