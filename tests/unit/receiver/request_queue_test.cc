// Whoever asks for a sync is answered once, by a pull that began after the request.
#include "receiver/request_queue.h"

#include <catch2/catch.hpp>

namespace deltawire::receiver::request_queue_test {
namespace {

TEST_CASE("a request is answered by the first pull that begins after it, once") {
  RequestQueue q;
  CHECK_FALSE(q.waiting());
  const uint64_t first = q.Add(false);
  CHECK(q.waiting());
  const auto batch = q.Take();
  CHECK_FALSE(q.waiting());
  const uint64_t second = q.Add(true);  // while the pull runs
  CHECK(q.waiting());
  CHECK_FALSE(batch.force_full);
  CHECK_FALSE(q.AnswerTo(first));
  q.Answer(batch, absl::OkStatus());
  CHECK_FALSE(q.AnswerTo(second));
  CHECK(q.AnswerTo(first) == std::optional<Status>(absl::OkStatus()));
  CHECK_FALSE(q.AnswerTo(first));
  const auto next = q.Take();
  CHECK(next.local == std::vector<uint64_t>{second});
  CHECK(next.force_full);
  q.Answer(next, absl::DataLossError("no"));
  q.Answer(q.Take(), absl::OkStatus());  // does not replace the earlier answer
  CHECK(q.AnswerTo(second)->code() == StatusCode::kDataLoss);
}

TEST_CASE("a caller that has gone is not waited for") {
  RequestQueue q;
  const uint64_t gone = q.Add(false);
  q.Forget(gone);
  CHECK_FALSE(q.waiting());
  const uint64_t late = q.Add(false);
  const auto batch = q.Take();
  q.Forget(late);
  q.Answer(batch, absl::OkStatus());
  CHECK_FALSE(q.AnswerTo(late));
}

TEST_CASE("an agent that makes up requests without end fills a bounded queue") {
  RequestQueue q;
  for (uint64_t n = 0; n < 2 * RequestQueue::kMostRemote; ++n) q.AddRemote({0, n, false});
  const auto batch = q.Take();
  CHECK(batch.remote.size() == RequestQueue::kMostRemote);
  q.AddRemote({0, 1u << 30, false});
  CHECK_FALSE(q.waiting());
  CHECK(q.Answer(batch, absl::OkStatus()).size() == RequestQueue::kMostRemote);
  q.AddRemote({0, 1u << 30, false});
  CHECK(q.waiting());
}

TEST_CASE("an orchestrator's request is served once, and dropped with its attachment") {
  RequestQueue q;
  q.AddRemote({0, 5, false});
  q.AddRemote({0, 5, false});  // the same request once more
  q.AddRemote({1, 5, true});
  const auto batch = q.Take();
  CHECK(batch.remote.size() == 2);
  CHECK(batch.force_full);
  q.AddRemote({0, 5, false});  // and once more while it is served
  CHECK_FALSE(q.waiting());
  q.DropRemote(1);
  CHECK(q.Answer(batch, absl::OkStatus()) == std::vector<RequestQueue::Remote>{{0, 5}});
  CHECK(q.Answer(batch, absl::OkStatus()).empty());
}

}  // namespace
}  // namespace deltawire::receiver::request_queue_test
