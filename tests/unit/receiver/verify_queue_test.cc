// Who is served by which check of all chunks, and who waits for a repair.
#include "receiver/verify_queue.h"

#include <catch2/catch.hpp>

namespace deltawire::receiver::verify_queue_test {
namespace {

VerifyResult Found(uint64_t bad) { return {.chunks = 9, .bad_chunks = bad}; }

TEST_CASE(
    "verify queue: one pass serves those who wait when it begins, and others wait for the next") {
  VerifyQueue queue;
  CHECK_FALSE(queue.Begin());
  const uint64_t a = queue.Add(false), b = queue.Add(true);
  REQUIRE(queue.Begin());
  const uint64_t late = queue.Add(false);
  CHECK(queue.End(Found(0)).empty());
  for (const uint64_t call : {a, b}) {
    const auto answer = queue.AnswerTo(call);
    REQUIRE((answer && answer->ok()));
    CHECK((*answer)->chunks == 9);
    CHECK_FALSE((*answer)->repaired);
    CHECK_FALSE(queue.AnswerTo(call));  // it is forgotten
  }
  CHECK_FALSE(queue.AnswerTo(late));
  CHECK(queue.waiting());
  REQUIRE(queue.Begin());
  CHECK(queue.End(absl::FailedPreconditionError("no version")).empty());
  CHECK(absl::IsFailedPrecondition(queue.AnswerTo(late)->status()));
  CHECK_FALSE(queue.waiting());
}

TEST_CASE("verify queue: a pass that nobody waits for any more is over") {
  VerifyQueue queue;
  const uint64_t a = queue.Add(false), b = queue.Add(false);
  REQUIRE(queue.Begin());
  CHECK(queue.Forget(a) == 0);
  CHECK(queue.passes());
  CHECK(queue.Forget(b) == 0);
  CHECK_FALSE(queue.passes());
  CHECK_FALSE(queue.Begin());
}

TEST_CASE("verify queue: what is bad is repaired for those who asked for that") {
  VerifyQueue queue;
  const uint64_t plain = queue.Add(false), repair = queue.Add(true), gone = queue.Add(true),
                 refused = queue.Add(true);
  REQUIRE(queue.Begin());
  CHECK(queue.End(Found(2)) == std::vector{repair, gone, refused});
  CHECK_FALSE(queue.passes());
  CHECK_FALSE((*queue.AnswerTo(plain))->repaired);
  queue.Repairs(repair, 7);
  queue.Repairs(gone, 8);
  queue.RepairFailed(refused, absl::UnavailableError("no sender"));
  CHECK(absl::IsUnavailable(queue.AnswerTo(refused)->status()));
  CHECK(queue.Forget(gone) == 8);  // the sync is to be forgotten, too
  CHECK(queue.sync(repair) == 7);
  CHECK(queue.waiting());
  CHECK_FALSE(queue.AnswerTo(repair));
  const Identity now{.lineage = {1, 2}, .id = {1, 5}, .root = 3};
  queue.Repaired(repair, absl::OkStatus(), now);
  const auto answer = queue.AnswerTo(repair);
  REQUIRE((answer && answer->ok()));
  CHECK((*answer)->repaired);
  CHECK((*answer)->committed == now);
  CHECK((*answer)->bad_chunks == 2);
  CHECK_FALSE(queue.waiting());
}

}  // namespace
}  // namespace deltawire::receiver::verify_queue_test
