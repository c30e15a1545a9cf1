// Assigns upstreams to receivers that name a site, whenever one of them attaches, leaves or
// changes. It has an AssignCourse for each model, and holds no lock while it calls the Attachments.
// Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"
#include "common/serving/attachments.h"
#include "sender/agent/fleet/assign_course.h"

namespace deltawire::sender {

class Assigner : public SiteObserver {
 public:
  /// Does nothing unless `on`.
  Assigner(bool on, const plan::AssignLimits& limits, Attachments& attachments);

  void SiteReported(const std::string& model, bool changed) override;
  void SiteGone(const std::string& model) override { Update(model); }

  /// The places of the receivers that name a site, by id.
  std::map<std::string, SitePlace> places(const std::string& model) const;

 private:
  struct Course {
    std::unique_ptr<AssignCourse> course;
    std::map<std::string, SitePlace> places;
    SteadyClock::time_point again{};
  };
  void Update(const std::string& model);
  void UpdateOne(const std::string& model);

  const plan::AssignLimits limits_;
  Attachments& attachments_;
  const SteadyClock::time_point started_ = SteadyClock::now();
  mutable CheckedMutex mu_;
  std::map<std::string, Course> courses_ ABSL_GUARDED_BY(mu_);
  // Models whose receivers have changed since the last update.
  std::set<std::string> due_ ABSL_GUARDED_BY(mu_);
  // A thread is in Update's loop, and finds additions to due_.
  bool updating_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace deltawire::sender
