// Who waits for whom, on a clock of the test's own.
#include "common/serving/admission.h"

#include <catch2/catch.hpp>

namespace deltawire::admission_test {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kMega = 1'000'000;

struct Rig {
  Admission admission;
  Admission::Time now{std::chrono::hours(1)};

  // The sender is seen to send 100 MB/s.
  void Busy(milliseconds time = milliseconds(1000)) {
    for (milliseconds done{0}; done < time; done += milliseconds(10)) {
      now += milliseconds(10);
      admission.AddSent(kMega, now);
    }
  }
  double Wait(uint64_t bytes) {
    return std::chrono::duration<double>(admission.Take(bytes, now)).count();
  }
};

}  // namespace

TEST_CASE("admission: whoever needs more than half of the model whole is a newcomer") {
  CHECK(ClassOf(100, 100) == PullClass::kNewcomer);
  CHECK(ClassOf(51, 100) == PullClass::kNewcomer);
  CHECK(ClassOf(50, 100) == PullClass::kFollower);
  CHECK(ClassOf(0, 100) == PullClass::kFollower);
  CHECK(ClassOf(0, 0) == PullClass::kFollower);
}

TEST_CASE("admission: newcomers among themselves wait for nobody") {
  Rig rig;
  rig.admission.Begin("m", PullClass::kNewcomer, 4, rig.now);
  rig.Busy();
  for (int i = 0; i < 100; ++i) CHECK(rig.Wait(kMega) == 0);
  CHECK(rig.admission.PieceBytes(512 << 10, rig.now) == 512 << 10);
}

TEST_CASE("admission: beside a follower newcomers get a quarter of what the sender sends") {
  Rig rig;
  rig.admission.Begin("m", PullClass::kNewcomer, 4, rig.now);
  rig.Busy();
  const uint64_t follower = rig.admission.Begin("m", PullClass::kFollower, 4, rig.now);
  CHECK(rig.admission.IsHoldingBack(rig.now));
  CHECK(rig.Wait(kMega) == 0);
  CHECK(rig.Wait(kMega) == Approx(0.04).epsilon(0.05));  // at 25 MB/s
  CHECK(rig.Wait(kMega) == Approx(0.08).epsilon(0.05));
  rig.admission.End(follower);
  CHECK_FALSE(rig.admission.IsHoldingBack(rig.now));
  CHECK(rig.Wait(kMega) == 0);
}

TEST_CASE("admission: what newcomers were made to wait for is forgotten with the follower") {
  Rig rig;
  rig.Busy();
  const uint64_t follower = rig.admission.Begin("m", PullClass::kFollower, 4, rig.now);
  for (int i = 0; i < 50; ++i) rig.Wait(kMega);
  rig.admission.End(follower);
  CHECK(rig.Wait(kMega) == 0);
  rig.admission.Begin("m", PullClass::kFollower, 4, rig.now);
  CHECK(rig.Wait(kMega) == 0);
}

TEST_CASE("admission: a late joiner's share holds however many followers come") {
  Rig rig;
  rig.admission.Begin("m", PullClass::kNewcomer, 1, rig.now);
  rig.Busy();
  uint64_t got = 0;
  const auto start = rig.now;
  auto next = rig.now;
  while (rig.now - start < std::chrono::seconds(10)) {
    rig.admission.End(rig.admission.Begin("m", PullClass::kFollower, 4, rig.now));
    rig.admission.Begin("m", PullClass::kFollower, 4, rig.now);
    if (rig.now >= next) {
      next = rig.now + rig.admission.Take(kMega, rig.now);
      got += kMega;
    }
    rig.Busy(milliseconds(10));
  }
  CHECK(static_cast<double>(got) == Approx(250e6).epsilon(0.1));
}

TEST_CASE("admission: a follower whose own link is slow holds newcomers up for two seconds") {
  Rig rig;
  rig.Busy();
  rig.admission.Begin("m", PullClass::kFollower, 4, rig.now);
  CHECK(rig.admission.IsHoldingBack(rig.now + milliseconds(1999)));
  CHECK_FALSE(rig.admission.IsHoldingBack(rig.now + milliseconds(2000)));
  rig.now += milliseconds(2000);
  CHECK(rig.Wait(100 * kMega) == 0);
  CHECK(rig.Wait(100 * kMega) == 0);
}

TEST_CASE("admission: from a publish on followers are expected for a moment") {
  Rig rig;
  rig.Busy();
  rig.admission.Expect("m", 1, rig.now);
  CHECK(rig.Wait(kMega) == 0);
  CHECK(rig.Wait(kMega) > 0);
  CHECK(rig.admission.IsHoldingBack(rig.now + milliseconds(299)));
  CHECK_FALSE(rig.admission.IsHoldingBack(rig.now + milliseconds(300)));
}

TEST_CASE(
    "admission: nobody waits for followers that have all begun, nor a lone receiver for itself") {
  Rig rig;
  rig.Busy();
  rig.admission.Expect("m", 2, rig.now);
  rig.admission.End(rig.admission.Begin("m", PullClass::kFollower, 4, rig.now));
  CHECK(rig.admission.IsHoldingBack(rig.now));
  // The other one has lost its base, and pulls the model whole.
  rig.admission.Begin("m", PullClass::kNewcomer, 4, rig.now);
  CHECK_FALSE(rig.admission.IsHoldingBack(rig.now));
}

TEST_CASE("admission: followers whose pulls run when a version is published are not waited for") {
  Rig rig;
  rig.Busy();
  rig.admission.Begin("m", PullClass::kFollower, 4, rig.now);
  rig.admission.Begin("other", PullClass::kFollower, 4, rig.now);
  rig.now += milliseconds(2000);  // neither is young any more
  rig.admission.Expect("m", 1, rig.now);
  CHECK_FALSE(rig.admission.IsHoldingBack(rig.now));
  rig.admission.Expect("m", 2, rig.now);
  CHECK(rig.admission.IsHoldingBack(rig.now));
}

TEST_CASE("admission: who is held back takes small pieces, so that it is not silent") {
  Rig rig;
  rig.admission.Begin("m", PullClass::kNewcomer, 100, rig.now);
  const uint64_t gone = rig.admission.Begin("m", PullClass::kNewcomer, 100, rig.now);
  rig.admission.End(gone);
  rig.admission.End(gone);
  rig.Busy();
  rig.admission.Begin("m", PullClass::kFollower, 4, rig.now);
  CHECK(rig.admission.PieceBytes(512 << 10, rig.now) == Approx(25'000).epsilon(0.05));
  rig.admission.Begin("m", PullClass::kNewcomer, 100'000, rig.now);
  CHECK(rig.admission.PieceBytes(512 << 10, rig.now) == 4096);
}

TEST_CASE("admission: without a measured rate nobody waits") {
  Rig rig;
  rig.admission.Begin("m", PullClass::kFollower, 4, rig.now);
  CHECK(rig.Wait(1000 * kMega) == 0);
  CHECK(rig.Wait(1000 * kMega) == 0);
  // Nor by one that is long past.
  rig.Busy();
  rig.now += std::chrono::minutes(5);
  rig.admission.Begin("m", PullClass::kFollower, 4, rig.now);
  CHECK(rig.Wait(1000 * kMega) == 0);
  CHECK(rig.Wait(1000 * kMega) == 0);
}

TEST_CASE("admission: a pause between two windows is no low rate") {
  Rig rig;
  rig.Busy();
  rig.now += std::chrono::seconds(5);
  rig.admission.AddSent(1, rig.now);
  rig.Busy(milliseconds(400));
  rig.admission.Begin("m", PullClass::kFollower, 4, rig.now);
  CHECK(rig.Wait(kMega) == 0);
  CHECK(rig.Wait(kMega) == Approx(0.04).epsilon(0.05));  // a quarter of 100 MB/s
}

TEST_CASE("admission: what it counts, by model") {
  Rig rig;
  rig.admission.Begin("a", PullClass::kFollower, 1, rig.now);
  rig.admission.Begin("a", PullClass::kNewcomer, 1, rig.now);
  rig.admission.Begin("a", PullClass::kNewcomer, 1, rig.now);
  rig.admission.Begin("b", PullClass::kNewcomer, 1, rig.now);
  rig.admission.AddWait("a", milliseconds(250));
  rig.admission.AddWait("a", milliseconds(250));
  const auto a = rig.admission.CountsOf("a"), b = rig.admission.CountsOf("b");
  CHECK(a.followers == 1);
  CHECK(a.newcomers == 2);
  CHECK(a.held_back_seconds == Approx(0.5));
  CHECK(b.newcomers == 1);
  CHECK(b.held_back_seconds == 0);
}

}  // namespace deltawire::admission_test
