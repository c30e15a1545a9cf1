// A ServedPull's chunks whose payloads another thread is making: their streams go on with other
// chunks meanwhile, and send them when they are made.
#include <algorithm>
#include <utility>

#include "common/serving/served_pull.h"

namespace deltawire {

void ServedPull::Defer(Stream& s, const Task& task) {
  // It is planned anew, perhaps after the pull was overtaken; a chunk that is sent then needs no
  // lift.
  if (!task.lift && !s.early.empty() && s.early.back() == task.chunk) s.early.pop_back();
  s.deferred.push_back({task.chunk, task.lift, task.elsewhere});
}

std::optional<ServedPull::Task> ServedPull::NextDeferred(Stream& s, const Published& now) {
  while (true) {
    const auto made = std::ranges::find_if(
        s.deferred, [](const Deferred& deferred) { return deferred.payload->made(); });
    if (made == s.deferred.end()) return std::nullopt;
    const Deferred deferred = std::move(*made);
    s.deferred.erase(made);
    if (auto task = deferred.lift ? PlanLift(deferred.chunk, now) : Plan(s, deferred.chunk, now)) {
      return task;
    }
  }
}

bool ServedPull::AwaitDeferred(Stream& s, const std::function<void()>& wake) {
  return std::ranges::all_of(
      s.deferred, [&](const Deferred& deferred) { return deferred.payload->Await(wake); });
}

bool ServedPull::AwaitMade(Stream& s, const std::function<void()>& wake) {
  return std::ranges::all_of(s.deferred, [&](const Deferred& deferred) {
    return !deferred.piece || deferred.payload->Await(wake);
  });
}

bool ServedPull::defers() const {
  return std::ranges::any_of(streams_,
                             [](const Stream& s) { return s.making || !s.deferred.empty(); });
}

}  // namespace deltawire
