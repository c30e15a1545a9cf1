// When an attachment is made, needs a beat, or ends. An Attachment is pure, so the times are made
// up.
#include "receiver/attach/attachment.h"

#include <catch2/catch.hpp>

namespace deltawire::receiver::attachment_test {
namespace {

using Need = Attachment::Need;
using State = Attachment::State;
using std::chrono::milliseconds;

struct Setup {
  Setup() { attachment.Begin(now); }
  void Say() { REQUIRE(attachment.NoteEvent(attachment.last_event() + 1, now).ok()); }
  void End(const Status& why) {
    attachment.End();
    attachment.NoteEnd(why, now);
  }

  Attachment::Time now{std::chrono::hours(1)};
  Attachment attachment{"s", 1};
};

}  // namespace

TEST_CASE("attachment: a lost or doubled event ends it") {
  for (const uint64_t number : {0, 1, 3}) {
    CAPTURE(number);
    Setup s;
    s.Say();
    CHECK(s.attachment.NoteEvent(number, s.now).code() == StatusCode::kDataLoss);
    CHECK(s.attachment.NeedAt(s.now) == Need::kDetach);
    CHECK(s.attachment.NextNeed() <= s.now);
    CHECK(absl::IsCancelled(s.attachment.NoteEvent(2, s.now)));
    s.End(absl::OkStatus());
    s.now += Backoff::kFirst;
    CHECK(s.attachment.NeedAt(s.now) == Need::kAttach);
    s.attachment.Begin(s.now);
    s.Say();
    CHECK(s.attachment.state() == State::kAttached);
    CHECK(s.attachment.last_event() == 1);
  }
}

TEST_CASE("attachment: an upstream silent for three seconds is left, also before its first word") {
  for (const bool spoke : {false, true}) {
    Setup s;
    if (spoke) s.Say();
    s.now += milliseconds(2999);
    CHECK_FALSE(s.attachment.NeedAt(s.now) == Need::kDetach);
    s.now += milliseconds(1);
    CHECK(s.attachment.NeedAt(s.now) == Need::kDetach);
    CHECK(s.attachment.NextNeed() <= s.now);
  }
}

TEST_CASE("attachment: a beat is due a second after the last report") {
  Setup s;
  s.Say();
  CHECK(s.attachment.NeedAt(s.now) == Need::kNothing);
  CHECK(s.attachment.NextNeed() == s.now + Attachment::kBeat);
  s.now += Attachment::kBeat;
  s.Say();
  CHECK(s.attachment.NeedAt(s.now) == Need::kBeat);
  s.attachment.NoteSent(s.now);
  CHECK(s.attachment.NeedAt(s.now) == Need::kNothing);
}

TEST_CASE("attachment: no beat is due before the first event, since none could be sent") {
  Setup s;
  const auto silent_at = s.now + Attachment::kSilence;
  s.now += Attachment::kBeat;
  CHECK(s.attachment.NeedAt(s.now) == Need::kNothing);
  CHECK(s.attachment.NextNeed() == silent_at);
}

TEST_CASE("attachment: nothing is due while it ends, and then it is made anew after a pause") {
  Setup s;
  s.Say();
  const uint64_t number = s.attachment.number();
  s.attachment.End();
  CHECK(s.attachment.number() != number);
  CHECK(s.attachment.NeedAt(s.now + std::chrono::hours(1)) == Need::kNothing);
  CHECK(absl::IsCancelled(s.attachment.NoteEvent(2, s.now)));
  s.attachment.NoteEnd(absl::UnavailableError("gone"), s.now);
  CHECK(s.attachment.NeedAt(s.now) == Need::kNothing);
  CHECK(s.attachment.NeedAt(s.now + Backoff::kFirst) == Need::kAttach);
}

TEST_CASE("attachment: an upstream that has no version yet is asked again soon") {
  Setup s;
  milliseconds longest{0};
  for (int i = 0; i < 10; ++i) {
    s.End(absl::NotFoundError("not registered yet"));
    longest = std::max(longest,
                       std::chrono::duration_cast<milliseconds>(s.attachment.NextNeed() - s.now));
    s.now = s.attachment.NextNeed();
    s.attachment.Begin(s.now);
  }
  CHECK(longest > milliseconds(50));
  CHECK(longest <= milliseconds(200));
}

}  // namespace deltawire::receiver::attachment_test
