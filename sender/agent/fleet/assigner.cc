#include "sender/agent/fleet/assigner.h"

#include "common/base/log.h"

namespace deltawire::sender {
namespace {

std::vector<SiteReceiver> SiteReceivers(const std::vector<ReceiverView>& all) {
  std::vector<SiteReceiver> here;
  for (const ReceiverView& view : all) {
    if (view.offer.site.empty()) continue;
    here.push_back({.id = view.id,
                    .offer = view.offer,
                    .peer = view.peer,
                    .follows = view.report.follows,
                    .paused = view.report.phase == ReceiverPhase::kPaused,
                    .busy = view.report.phase == ReceiverPhase::kPulling ||
                            view.report.phase == ReceiverPhase::kApplying,
                    .member = view.member,
                    .barred = view.report.barred});
  }
  return here;
}

}  // namespace

Assigner::Assigner(bool on, const plan::AssignLimits& limits, Attachments& attachments)
    : limits_(limits), attachments_(attachments) {
  if (on) attachments_.SetSiteObserver(this);
}

void Assigner::SiteReported(const std::string& model, bool changed) {
  if (!changed) {
    MutexLock lock(mu_);
    const auto course = courses_.find(model);
    if (course != courses_.end() && SteadyClock::now() < course->second.again) return;
  }
  Update(model);
}

void Assigner::Update(const std::string& model) {
  {
    MutexLock lock(mu_);
    due_.insert(model);
    // An assignment may reveal that a receiver has left, which calls Update again.
    if (std::exchange(updating_, true)) return;
  }
  while (true) {
    std::string next;
    {
      MutexLock lock(mu_);
      if (due_.empty()) {
        updating_ = false;
        return;
      }
      next = *due_.begin();
      due_.erase(due_.begin());
    }
    UpdateOne(next);
  }
}

void Assigner::UpdateOne(const std::string& model) {
  const std::vector<SiteReceiver> here = SiteReceivers(attachments_.Receivers(model));
  std::map<std::string, Assignment> told;
  {
    MutexLock lock(mu_);
    const auto now = SteadyClock::now();
    Course& c = courses_[model];
    if (c.course == nullptr) c.course = std::make_unique<AssignCourse>(limits_, started_);
    const auto before = std::exchange(c.places, c.course->Update(here, now));
    c.again = c.course->again();
    for (const auto& [id, place] : c.places) {
      told[id] = place.told;
      const auto was = before.find(id);
      const bool known = was != before.end();
      if (!place.not_handed_out.empty() &&
          (!known || was->second.not_handed_out != place.not_handed_out)) {
        LogInfo("model {}: no receiver is assigned to {}: {}", model, id, place.not_handed_out);
      }
      if (place.told.undecided || (known && was->second.told == place.told)) continue;
      LogInfo("model {}: {} is assigned to {}", model, id,
              place.parent.empty() ? "this sender" : place.parent);
    }
  }
  attachments_.SetAssignments(model, told);
}

std::map<std::string, SitePlace> Assigner::places(const std::string& model) const {
  MutexLock lock(mu_);
  const auto course = courses_.find(model);
  return course == courses_.end() ? std::map<std::string, SitePlace>() : course->second.places;
}

}  // namespace deltawire::sender
