// A course of calls to one engine with a clock of its own, and answers that a test sets. Owner: the
// test case. Threads: one. Cost: none. Errors: fails the test where the course never rests.
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "receiver/engine/engine_course.h"
#include "receiver/engine/plugin_call.h"

namespace deltawire::receiver {

using Calls = std::vector<std::string>;

inline Identity Version(uint64_t version) {
  return {Hash128{1, 2}, {1, version}, version * 1000, 0};
}

inline const EngineAnswer kRefused{EngineAnswer::Result::kRefused, "500: no", {}};
inline const EngineAnswer kUnsure{EngineAnswer::Result::kUnsure, "answer: nothing within 1 ms", {}};
inline const EngineAnswer kUnreachable{.result = EngineAnswer::Result::kUnreachable,
                                       .why = "connect: Connection refused",
                                       .version = {},
                                       .gone = true};

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
      } else if (*action.call == EngineCall::kAsk) {
        answer.held = held;
      }
      if (IsPluginCall(*action.call)) answer.process = process;
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
  std::string named;           ///< what a probe hears
  Identity held = Version(1);  ///< what an engine that is asked says; empty: it is not attached
  std::string process;         ///< that answers
};

inline const Calls kVllmNext = {"prepare*", "pause", "load", "flush", "sample", "name", "resume"};
/// After a failure, or by another receiver.
inline const Calls kVllmFirst = {"ask",   "prepare*", "pause", "load",
                                 "flush", "sample",   "name",  "resume"};
/// The same, if all of it is compared in the pause.
inline const Calls kVllmProven = {"ask",   "prepare*", "pause", "load",
                                  "flush", "prove",    "name",  "resume"};

/// `calls`, and then a check of all memory.
inline Calls Checked(Calls calls) {
  calls.push_back("check*");
  return calls;
}
inline Calls After(const std::string& first, const Calls& rest) {
  Calls calls = {first};
  calls.insert(calls.end(), rest.begin(), rest.end());
  return calls;
}

}  // namespace deltawire::receiver
