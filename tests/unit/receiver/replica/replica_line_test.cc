// The phase and message that a replica shows, and when a failure is over.
#include "receiver/replica/replica_line.h"

#include <catch2/catch.hpp>

namespace deltawire::receiver::replica_line_test {
namespace {

using Cause = ReplicaLine::Cause;

}  // namespace

TEST_CASE("replica line: a failure ends with its own cause") {
  ReplicaLine line("m");
  CHECK(line.phase() == ReceiverPhase::kStarting);
  line.Show("the connection ended", Cause::kConnection);
  line.Recover(Cause::kCheck);
  CHECK(line.phase() == ReceiverPhase::kFailed);
  CHECK(line.Rest("", ReceiverPhase::kIdle));  // attached again
  CHECK(line.phase() == ReceiverPhase::kIdle);
  CHECK(line.message().empty());

  line.Fail(absl::DataLossError("a file is gone"), Cause::kCheck);
  CHECK_FALSE(line.Rest("", ReceiverPhase::kIdle));
  CHECK(line.message() == "a file is gone");
  line.Recover(Cause::kCheck);
  CHECK(line.phase() == ReceiverPhase::kStarting);

  // A check that succeeds says nothing of a pull that failed after the last one.
  line.Fail(absl::DataLossError("a file is gone"), Cause::kCheck);
  line.Fail(absl::UnavailableError("the stream broke"));
  line.Recover(Cause::kCheck);
  CHECK(line.message() == "the stream broke");
  line.Succeed(ReceiverPhase::kIdle);
  CHECK(line.phase() == ReceiverPhase::kIdle);
  CHECK(line.message().empty());
}

TEST_CASE("replica line: rest shows what is waited for, and whether the phase is new") {
  ReplicaLine line("m");
  CHECK(line.Rest("nothing is published", ReceiverPhase::kWaitingForVersion));
  CHECK_FALSE(line.Rest("nothing is published", ReceiverPhase::kWaitingForVersion));
  CHECK(line.message() == "nothing is published");
  CHECK(MessageOf(line.WhyNoSender()) == "model \"m\": nothing is published");
}

}  // namespace deltawire::receiver::replica_line_test
