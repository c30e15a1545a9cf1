// A caller of a sync or a check is answered once, by a pull or check that began after the
// request.
#include "receiver/replica/request_queue.h"

#include <catch2/catch.hpp>

namespace deltawire::receiver::request_queue_test {
namespace {

const Identity kHeld{.lineage = {1, 2}, .id = {1, 5}, .root = 3, .attempt = 0};
VerifyResult Found(uint64_t corrupt) {
  return {.chunks = 9, .bad_chunks = corrupt, .bad_tensors = {}};
}

struct Rig {
  Rig() { commits.TakeUp(kHeld); }
  /// "": no answer, "ok", or the error.
  std::string Sync(uint64_t number) {
    const auto answer = q.SyncAnswer(number);
    if (!answer.ok()) return std::string(MessageOf(answer.status()));
    return *answer ? "ok" : "";
  }
  std::string Check(uint64_t number) {
    const auto answer = q.CheckAnswer(number);
    if (!answer.ok()) return std::string(MessageOf(answer.status()));
    if (!*answer) return "";
    CHECK((*answer)->chunks == 9);
    return (*answer)->repaired ? "repaired" : "ok";
  }
  CommitLog commits;
  RequestQueue q{commits};
};

TEST_CASE("requests: one is answered by the first pull that begins after it, once") {
  Rig s;
  CHECK_FALSE(s.q.wants_pull());
  const uint64_t first = s.q.AddSync(false);
  CHECK(s.q.wants_pull());
  const auto batch = s.q.Take();
  CHECK_FALSE(s.q.wants_pull());
  const uint64_t second = s.q.AddSync(true);  // while the pull runs
  CHECK(s.q.wants_pull());
  CHECK_FALSE(batch.force_full);
  CHECK(s.Sync(first).empty());
  s.q.Answer(batch, absl::OkStatus());
  CHECK(s.Sync(second).empty());
  CHECK(s.Sync(first) == "ok");
  CHECK(s.Sync(first).empty());
  const auto next = s.q.Take();
  CHECK(next.local == std::vector<uint64_t>{second});
  CHECK(next.force_full);
  s.q.Answer(next, absl::DataLossError("no"));
  s.q.Answer(s.q.Take(), absl::OkStatus());  // does not replace the earlier answer
  CHECK(s.Sync(second) == "no");
}

TEST_CASE("requests: a caller that has gone is not waited for") {
  Rig s;
  s.q.Forget(s.q.AddSync(false));
  CHECK_FALSE(s.q.wants_pull());
  const uint64_t late = s.q.AddSync(false);
  const auto batch = s.q.Take();
  s.q.Forget(late);
  s.q.Answer(batch, absl::OkStatus());
  CHECK(s.Sync(late).empty());
}

TEST_CASE("requests: what has no answer when the receiver stops gets an error") {
  Rig s;
  const uint64_t answered = s.q.AddSync(false), check = s.q.AddCheck(false);
  s.q.Answer(s.q.Take(), absl::OkStatus());
  int told = 0;
  const auto listener = s.q.OnAnswers([&] { ++told; });
  s.q.Stop();
  CHECK(told == 1);
  CHECK(s.Sync(answered) == "ok");
  CHECK_FALSE(s.q.CheckAnswer(check).ok());
}

TEST_CASE("requests: an agent that makes up requests without end fills a bounded queue") {
  Rig s;
  for (uint64_t n = 0; n < 2 * RequestQueue::kMostRemote; ++n) s.q.AddRemote({0, n, false});
  const auto batch = s.q.Take();
  CHECK(batch.remote.size() == RequestQueue::kMostRemote);
  s.q.AddRemote({0, 1u << 30, false});
  CHECK_FALSE(s.q.wants_pull());
  CHECK(s.q.Answer(batch, absl::OkStatus()).size() == RequestQueue::kMostRemote);
  s.q.AddRemote({0, 1u << 30, false});
  CHECK(s.q.wants_pull());
}

TEST_CASE("requests: an orchestrator's is served once, and dropped with its attachment") {
  Rig s;
  s.q.AddRemote({0, 5, false});
  s.q.AddRemote({0, 5, false});  // the same request once more
  s.q.AddRemote({1, 5, true});
  const auto batch = s.q.Take();
  CHECK(batch.remote.size() == 2);
  CHECK(batch.force_full);
  s.q.AddRemote({0, 5, false});  // and once more while it is served
  CHECK_FALSE(s.q.wants_pull());
  s.q.DropRemote(1);
  CHECK(s.q.Answer(batch, absl::OkStatus()) == std::vector<RequestQueue::Remote>{{0, 5}});
  CHECK(s.q.Answer(batch, absl::OkStatus()).empty());
}

TEST_CASE("requests: one check serves those who wait when it begins, others wait for the next") {
  Rig s;
  CHECK_FALSE(s.q.BeginCheck());
  const uint64_t a = s.q.AddCheck(false), b = s.q.AddCheck(true);
  CHECK_FALSE(s.q.wants_pull());
  REQUIRE(s.q.BeginCheck());
  const uint64_t late = s.q.AddCheck(false);
  CHECK_FALSE(s.q.EndCheck(Found(0)));
  for (const uint64_t number : {a, b}) {
    CHECK(s.Check(number) == "ok");
    CHECK(s.Check(number).empty());  // it is forgotten
  }
  CHECK(s.Check(late).empty());
  CHECK(s.q.wants_check());
  REQUIRE(s.q.BeginCheck());
  CHECK_FALSE(s.q.EndCheck(absl::FailedPreconditionError("no version")));
  CHECK(s.Check(late) == "no version");
  CHECK_FALSE(s.q.wants_check());
}

TEST_CASE("requests: a check whose callers have all gone is over") {
  Rig s;
  const uint64_t a = s.q.AddCheck(false), b = s.q.AddCheck(false);
  REQUIRE(s.q.BeginCheck());
  s.q.Forget(a);
  CHECK(s.q.checking());
  s.q.Forget(b);
  CHECK_FALSE(s.q.checking());
  CHECK_FALSE(s.q.BeginCheck());
}

TEST_CASE("requests: the next pull repairs what a check found, for those who asked for that") {
  Rig s;
  const uint64_t plain = s.q.AddCheck(false), repair = s.q.AddCheck(true);
  REQUIRE(s.q.BeginCheck());
  CHECK(s.q.EndCheck(Found(2)));
  CHECK_FALSE(s.q.checking());
  CHECK_FALSE(s.q.wants_check());
  CHECK(s.Check(plain) == "ok");
  CHECK(s.Check(repair).empty());
  CHECK(s.q.wants_pull());
  const uint64_t check =
      s.q.AddCheck(false);  // a check that comes meanwhile is no part of the pull
  const auto batch = s.q.Take();
  CHECK(batch.local == std::vector{repair});
  SECTION("and tells how it went") {
    s.q.Answer(batch, absl::OkStatus());
    const auto answer = s.q.CheckAnswer(repair);
    REQUIRE((answer.ok() && *answer));
    CHECK((*answer)->repaired);
    CHECK((*answer)->committed == kHeld);
    CHECK((*answer)->bad_chunks == 2);
  }
  SECTION("and may fail") {
    s.q.Answer(batch, absl::UnavailableError("no sender"));
    CHECK(s.Check(repair) == "no sender");
  }
  CHECK(s.Check(check).empty());
  CHECK(s.q.wants_check());
}

}  // namespace
}  // namespace deltawire::receiver::request_queue_test
