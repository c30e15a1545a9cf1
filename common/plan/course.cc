#include "common/plan/course.h"

#include <algorithm>

namespace deltawire::plan {

void Course::Run() {
  Begin(0);
  while (true) {
    double next = flows.NextEnd();
    for (const Job& job : jobs) next = std::min(next, job.wake - now_);
    if (next == Flows::kNever) return;
    next = std::max(next, 0.0);
    const std::vector<size_t> ended = flows.Advance(next);
    now_ += next;
    for (const size_t work : ended) {
      const size_t job = of_work_.at(work);
      jobs[job].times.back().bound_by = flows.BoundBy(work);
      Next(job);
    }
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (jobs[i].wake <= now_) Next(i);
    }
  }
}

void Course::Begin(size_t i) {
  Job& job = jobs[i];
  job.wake = Flows::kNever;
  job.began = now_;
  const Step& step = job.steps[job.step];
  // The steps of one stage are merged.
  if (job.times.empty() || job.times.back().stage != step.stage) {
    job.times.push_back({step.stage, job.at, now_, 0, {}});
  }
  if (step.work) {
    of_work_[flows.Start(*step.work)] = i;
  } else if (step.until) {
    Await(i);
  } else {
    job.wake = now_ + (step.delay_after ? step.delay_after(job.took) : step.delay);
  }
  if (job.step > 0) return;
  for (const size_t next : job.with) Begin(next);
}

void Course::Await(size_t i) {
  const Moment& moment = *jobs[i].steps[jobs[i].step].until;
  const Job& other = jobs[moment.job];
  if (other.ends.size() <= moment.step) return;  // Next wakes it
  const double then = other.ends[moment.step] + moment.later;
  jobs[i].held = then > now_;
  jobs[i].wake = std::max(then, now_);
}

void Course::WakeThoseThatAwait(size_t job) {
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Job& j = jobs[i];
    if (j.times.empty() || j.step >= j.steps.size() || !j.steps[j.step].until) continue;
    const Moment& moment = *j.steps[j.step].until;
    if (moment.job != job || jobs[job].ends.size() != moment.step + 1) continue;
    Await(i);
    jobs[i].held = true;
  }
}

void Course::Next(size_t i) {
  Job& job = jobs[i];
  job.wake = Flows::kNever;
  job.times.back().seconds = now_ - job.times.back().begin;
  job.took = now_ - job.began;
  job.ended = now_;
  job.ends.push_back(now_);
  WakeThoseThatAwait(i);
  if (++job.step < job.steps.size()) return Begin(i);
  for (const size_t next : job.then) Begin(next);
}

}  // namespace deltawire::plan
