// The phase and message that a replica shows, and when a failure or wait is over.
#include "receiver/replica/replica_line.h"

#include <catch2/catch.hpp>

namespace deltawire::receiver::replica_line_test {
namespace {

using Cause = ReplicaLine::Cause;

struct LineRig {
  ReceiverPhase phase() const { return line.shown().phase; }
  std::string message() const { return line.shown().message; }

  BufferGate gate{{.model = "m"}};
  ReplicaLine line{"m", gate};
};

}  // namespace

TEST_CASE("replica line: a failure ends with its own cause") {
  LineRig rig;
  ReplicaLine& line = rig.line;
  CHECK(rig.phase() == ReceiverPhase::kStarting);
  line.FailConnection("the connection ended");
  line.Recover(Cause::kCheck);
  CHECK(rig.phase() == ReceiverPhase::kFailed);
  line.Recover(Cause::kConnection);
  CHECK(rig.phase() == ReceiverPhase::kStarting);
  CHECK(line.Rest("", ReceiverPhase::kIdle));
  CHECK(rig.message().empty());

  line.Fail(absl::DataLossError("a file is gone"), Cause::kCheck);
  CHECK_FALSE(line.Rest("", ReceiverPhase::kIdle));
  CHECK(rig.message() == "a file is gone");
  line.Recover(Cause::kCheck);
  CHECK(rig.phase() == ReceiverPhase::kStarting);

  // A check that succeeds says nothing of a pull that failed after the last one.
  line.Fail(absl::DataLossError("a file is gone"), Cause::kCheck);
  line.Fail(absl::UnavailableError("the stream broke"));
  line.Recover(Cause::kCheck);
  CHECK(rig.message() == "the stream broke");
  line.Succeed(ReceiverPhase::kIdle);
  CHECK(rig.phase() == ReceiverPhase::kIdle);
  CHECK(rig.message().empty());
}

TEST_CASE("replica line: rest shows what is waited for, and whether the phase is new") {
  LineRig rig;
  CHECK(rig.line.Rest("nothing is published", ReceiverPhase::kWaitingForVersion));
  CHECK_FALSE(rig.line.Rest("nothing is published", ReceiverPhase::kWaitingForVersion));
  CHECK(rig.message() == "nothing is published");
  CHECK(MessageOf(rig.line.WhyNoSender()) == "model \"m\": nothing is published");
}

TEST_CASE("replica line: rest does not hide that a connection has ended or waits") {
  LineRig rig;
  rig.line.Wait("sender s: no such model", absl::NotFoundError("x"), Cause::kConnection);
  CHECK_FALSE(rig.line.Rest("", ReceiverPhase::kIdle));
  CHECK(rig.phase() == ReceiverPhase::kWaitingForVersion);
  CHECK(rig.message().starts_with("waiting for a version: sender s: no such"));
  rig.line.Recover(Cause::kConnection);
  CHECK(rig.message().empty());
  CHECK(rig.line.Rest("", ReceiverPhase::kIdle));

  // A pull from before has succeeded all the same.
  rig.line.FailConnection("the connection ended");
  rig.line.Succeed(ReceiverPhase::kIdle);
  CHECK_FALSE(rig.line.Rest("", ReceiverPhase::kIdle));
  CHECK(rig.phase() == ReceiverPhase::kIdle);
}

}  // namespace deltawire::receiver::replica_line_test
