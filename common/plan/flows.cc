#include "common/plan/flows.h"

#include <algorithm>
#include <utility>

namespace deltawire::plan {
namespace {

constexpr double kDone = 1e-9;     // rounding error of a finished work
constexpr int kRounds = 200;       // limit of sharing rounds; a handful is usual
constexpr double kSettled = 1e-9;  // a level that moves by less has settled

}  // namespace

size_t Flows::AddResource(std::string name, double capacity) {
  resources_.push_back({std::move(name), capacity});
  for (Running& r : works_) r.bound_seconds.insert(r.bound_seconds.end() - 1, 0.0);
  return resources_.size() - 1;
}

size_t Flows::Start(Work work) {
  std::erase_if(work.uses, [](const Use& u) { return u.amount <= 0; });
  Running r;
  r.work = std::move(work);
  r.bound_seconds.resize(resources_.size() + 1);
  works_.push_back(std::move(r));
  running_.push_back(works_.size() - 1);
  Share();
  return works_.size() - 1;
}

// Returns a work's pace if `resource` had unlimited capacity.
double Flows::PaceWithout(const Running& r, size_t resource,
                          const std::vector<double>& levels) const {
  double pace = r.work.least_seconds > 0 ? 1 / r.work.least_seconds : kNever;
  for (const Use& u : r.work.uses) {
    if (u.resource != resource) pace = std::min(pace, u.weight * levels[u.resource] / u.amount);
  }
  return pace;
}

bool Flows::Level(size_t resource, std::vector<double>& levels) const {
  struct Wish {
    double per_weight, weight;  // one member's demand over its weight; sum over all members
  };
  std::vector<Wish> wishes;
  double weights = 0;
  for (const size_t i : running_) {
    const Running& r = works_[i];
    for (const Use& u : r.work.uses) {
      if (u.resource != resource) continue;
      const double wanted = u.amount * PaceWithout(r, resource, levels);
      wishes.push_back({wanted / u.weight, u.weight * u.sharers});
      weights += u.weight * u.sharers;
    }
  }
  // A work that wants less than the equal share leaves the rest to the others.
  std::ranges::sort(wishes, {}, &Wish::per_weight);
  double left = resources_[resource].capacity, level = kNever;
  for (const Wish& w : wishes) {
    if (w.per_weight * weights > left) {
      level = left / weights;
      break;
    }
    left -= w.per_weight * w.weight;
    weights -= w.weight;
  }
  const double before = std::exchange(levels[resource], level);
  return before != level && !(std::abs(before - level) <= kSettled * level);
}

void Flows::Share() {
  std::vector<double> levels(resources_.size(), kNever);
  for (int round = 0; round < kRounds; ++round) {
    bool moved = false;
    for (size_t r = 0; r < resources_.size(); ++r) moved |= Level(r, levels);
    if (!moved) break;
  }
  for (const size_t i : running_) {
    Running& r = works_[i];
    r.pace = r.work.least_seconds > 0 ? 1 / r.work.least_seconds : kNever;
    r.bound = kOwnPace;
    for (const Use& u : r.work.uses) {
      const double pace = u.weight * levels[u.resource] / u.amount;
      if (pace >= r.pace) continue;
      r.pace = pace;
      r.bound = u.resource;
    }
  }
  // If the shares have not settled, scale them down to the capacity.
  for (size_t n = 0; n < resources_.size(); ++n) {
    double wanted = 0;
    for (const size_t i : running_) {
      for (const Use& u : works_[i].work.uses) {
        if (u.resource == n) wanted += u.sharers * u.amount * works_[i].pace;
      }
    }
    if (wanted <= resources_[n].capacity || wanted == kNever) continue;
    for (const size_t i : running_) {
      for (const Use& u : works_[i].work.uses) {
        if (u.resource == n) works_[i].pace *= resources_[n].capacity / wanted;
      }
    }
  }
}

double Flows::NextEnd() const {
  double next = kNever;
  for (const size_t i : running_) {
    const Running& r = works_[i];
    next = std::min(next, r.pace == kNever ? 0 : r.left / r.pace);
  }
  return next;
}

std::vector<size_t> Flows::Advance(double seconds) {
  std::vector<bool> busy(resources_.size());
  for (const size_t i : running_) {
    Running& r = works_[i];
    const double part = r.pace == kNever ? r.left : std::min(r.left, r.pace * seconds);
    r.left -= part;
    r.bound_seconds[r.bound == kOwnPace ? resources_.size() : r.bound] += seconds;
    for (const Use& u : r.work.uses) {
      resources_[u.resource].used += u.sharers * u.amount * part;
      busy[u.resource] = true;
    }
  }
  for (size_t n = 0; n < resources_.size(); ++n) resources_[n].busy += busy[n] ? seconds : 0;
  std::vector<size_t> ended;
  std::erase_if(running_, [&](size_t i) {
    if (works_[i].left > kDone) return false;
    ended.push_back(i);
    return true;
  });
  if (!ended.empty()) Share();
  return ended;
}

std::string Flows::BoundBy(size_t work) const {
  const Running& r = works_[work];
  const auto most = std::ranges::max_element(r.bound_seconds);
  const auto at = static_cast<size_t>(most - r.bound_seconds.begin());
  return at == resources_.size() ? r.work.pace : resources_[at].name;
}

}  // namespace deltawire::plan
