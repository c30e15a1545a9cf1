// A course of calls to one engine with a clock of its own, and answers that a test sets. Owner: the
// test case. Threads: one. Cost: none. Errors: fails the test where the course never rests.
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "receiver/engine/engine_course.h"

namespace deltawire::receiver {

using Calls = std::vector<std::string>;

inline Identity Version(uint64_t version) {
  return {Hash128{1, 2}, {1, version}, version * 1000, 0};
}

inline const EngineAnswer kRefused{EngineAnswer::Result::kRefused, "500: no", {}};
inline const EngineAnswer kUnsure{EngineAnswer::Result::kUnsure, "answer: nothing within 1 ms", {}};
inline const EngineAnswer kUnreachable{
    EngineAnswer::Result::kUnreachable, "connect: Connection refused", {}};

/// A course with a clock, and answers that are "done" unless a test says otherwise.
struct Walk {
  explicit Walk(EngineKind kind, EngineCourse::Policy policy = {})
      : course(TraitsOf(kind), policy) {}

  /// Makes every call that is due now. Returns them; "*": the directory was to be held.
  Calls Run() {
    Calls calls;
    while (true) {
      const auto action = course.Next(now);
      if (!action.call) return calls;
      std::string name(ToString(*action.call));
      if (action.hold) name += "*";
      calls.push_back(name);
      REQUIRE(calls.size() < 100);
      course.Begin(action, now);
      now += std::chrono::milliseconds(1);
      auto& queue = answers[*action.call];
      EngineAnswer answer;
      if (!queue.empty()) {
        answer = queue.front();
        queue.erase(queue.begin());
      } else if (*action.call == EngineCall::kProbe) {
        answer.version = named;
      }
      course.Done(*action.call, answer, now);
    }
  }
  /// Goes on to when something is due, and makes the calls.
  Calls Later() {
    const auto action = course.Next(now);
    REQUIRE_FALSE(action.call);
    REQUIRE(action.until != EngineCourse::Time::max());
    now = action.until;
    return Run();
  }
  /// The engine serves `version`, which was ready.
  void Serve(uint64_t version) {
    course.Ready(Version(version));
    Run();
    REQUIRE(state() == EngineState::kServing);
    named = std::to_string(version);
  }
  EngineState state() const { return course.view().state; }
  Identity served() const { return course.view().served; }

  EngineCourse course;
  EngineCourse::Time now{std::chrono::hours(1)};
  std::map<EngineCall, std::vector<EngineAnswer>> answers;
  std::string named;  ///< what a probe hears
};

inline const Calls kVllmFirst = {"clear", "prepare*", "pause", "load", "flush", "finish", "resume"};
inline const Calls kVllmNext = {"prepare*", "pause", "load", "flush", "finish", "resume"};

}  // namespace deltawire::receiver
