#include "receiver/engine/engine_checks.h"

#include <utility>

namespace deltawire::receiver {
namespace {

constexpr size_t kChecksKept = 8;  // for callers that have not read their result yet

}  // namespace

bool EngineChecks::pending() const {
  return ended_.empty() ? asked_ > 0 : asked_ > ended_.back().number;
}

void EngineChecks::End(std::string error, bool drifted) {
  ended_.push_back({begun_, std::move(error), drifted});
  if (ended_.size() > kChecksKept) ended_.pop_front();
}

void EngineChecks::Refuse(const std::string& why) {
  if (!pending()) return;
  Begin();
  End(why);
}

}  // namespace deltawire::receiver
