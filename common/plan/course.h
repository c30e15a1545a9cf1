// Jobs of several stages on virtual time. Each stage takes its time, does work on shared resources,
// or waits for another job's stage. Jobs live as long as the course. For one thread; costs jobs
// squared, plus the flows.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/stages.h"
#include "common/plan/flows.h"

namespace deltawire::plan {

struct StageTime {
  Stage stage{};     ///< publish, connect, transfer, apply or commit
  std::string at;    ///< the trainer, or a hop's name
  double begin = 0;  ///< seconds since the trainer was ready
  double seconds = 0;
  std::string bound_by;  ///< the main limit on its time
};

/// The end of another job's step, plus some seconds.
struct Moment {
  size_t job = 0, step = 0;
  double later = 0;
};

struct Step {
  Stage stage{};
  double delay = 0;
  std::optional<Work> work;
  /// If set, computes `delay` from the seconds of the previous step.
  std::function<double(double)> delay_after = nullptr;
  /// If set, the step ends at that moment, or at once if it has passed.
  std::optional<Moment> until = std::nullopt;
};

/// A sequence of stages, and the jobs that begin at its begin and at its end.
struct Job {
  std::string at;
  std::vector<Step> steps;
  std::vector<size_t> with, then;
  std::vector<StageTime> times;
  bool background = false;
  size_t step = 0;
  double wake = Flows::kNever;  // the end of a delay
  double began = 0, took = 0;   // of the current and of the previous step
  std::vector<double> ends;     // of the completed steps
  bool held = false;            // whether the last step with a Moment had to wait for it
  double ended = 0;
};

class Course {
 public:
  Flows flows;
  std::vector<Job> jobs;

  /// Runs jobs[0] and all jobs that follow from it.
  void Run();

 private:
  void Begin(size_t i);
  void Await(size_t i);
  void WakeThoseThatAwait(size_t job);
  void Next(size_t i);

  double now_ = 0;
  std::map<size_t, size_t> of_work_;
};

}  // namespace deltawire::plan
