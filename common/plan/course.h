// Jobs of several stages on virtual time: each stage takes its time, works on what it shares with
// others, or waits for another job's. Plain values of one thread; the jobs live as long as the
// course. Cost: jobs squared, and that of the flows. Errors: none.
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
  std::string bound_by;  ///< what it spent most of its time on
};

/// The end of another job's step, and some seconds more.
struct Moment {
  size_t job = 0, step = 0;
  double later = 0;
};

struct Step {
  Stage stage{};
  double delay = 0;
  std::optional<Work> work;
  /// Where set, `delay` follows from the seconds that the step before took.
  std::function<double(double)> delay_after = nullptr;
  /// Where set, the step ends then, or at once if that has passed.
  std::optional<Moment> until = std::nullopt;
};

/// Stages that come one after the other, and what begins with them and when they have ended.
struct Job {
  std::string at;
  std::vector<Step> steps;
  std::vector<size_t> with, then;
  std::vector<StageTime> times;
  bool background = false;
  size_t step = 0;
  double wake = Flows::kNever;  // the end of a delay
  double began = 0, took = 0;   // the step now, and the one before
  std::vector<double> ends;     // of the steps that have ended
  bool held = false;            // whether the last step with a Moment had to wait for it
  double ended = 0;
};

class Course {
 public:
  Flows flows;
  std::vector<Job> jobs;

  /// Runs jobs[0] and all that follows from it.
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
