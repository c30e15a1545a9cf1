#include "common/base/receiver_phase.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>

namespace deltawire::receiver_phase_test {
namespace {

TEST_CASE("a receiver's phases: their names are what messages have always had") {
  constexpr std::pair<ReceiverPhase, std::string_view> kAll[] = {
      {ReceiverPhase::kNone, ""},
      {ReceiverPhase::kUnknown, "unknown"},
      {ReceiverPhase::kStarting, "starting"},
      {ReceiverPhase::kIdle, "idle"},
      {ReceiverPhase::kPulling, "pulling"},
      {ReceiverPhase::kApplying, "applying"},
      {ReceiverPhase::kPaused, "paused"},
      {ReceiverPhase::kFailed, "failed"},
      {ReceiverPhase::kWaitingForVersion, "waiting for version"},
      {ReceiverPhase::kWaitingForReader, "waiting for reader"},
      {ReceiverPhase::kAsked, "asked"},
      {ReceiverPhase::kCommitted, "committed"},
  };
  for (const auto& [phase, name] : kAll) {
    CHECK(ToString(phase) == name);
    CHECK(ParseReceiverPhase(name) == phase);
  }
}

TEST_CASE("a receiver's phases: a name of no phase is read as unknown, however long it is") {
  for (const std::string_view name : {"Pulling", "pulling ", "waiting", "relaying"}) {
    CHECK(ParseReceiverPhase(name) == ReceiverPhase::kUnknown);
  }
  CHECK(ParseReceiverPhase(std::string(1 << 20, 'p')) == ReceiverPhase::kUnknown);
}

}  // namespace
}  // namespace deltawire::receiver_phase_test
