// Ranks that die, hang, fail or never come: the other ranks soon get an error that names them, and
// the next collective works.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <thread>

#include "common/base/sigpipe_blocked.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/export/ranks.h"

namespace deltawire::testing::gather_failure_test {
namespace {

using Catch::Contains;
using Catch::StartsWith;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kBucket = 16ULL << 20;

std::string Text(const Status& s) { return s.ok() ? "OK" : s.ToString(); }

// Where a rank pauses: it says so and waits for the test.
struct Pause {
  int rank = -1;
  size_t bucket = 0;
};

// Gathers six items from each rank but the root; each item fills a bucket. A rank pauses before it
// gives its `bucket`-th item, and the root while it consumes that bucket.
Status PausingGather(Collective& collective, const Line& line, std::initializer_list<Pause> pauses,
                     milliseconds wait_timeout, const Status& fail = absl::OkStatus()) {
  std::vector<GatherItem> items;
  for (size_t round = 0; round < 6; ++round) {
    for (int r = 0; r < collective.size(); ++r) {
      if (r != collective.root()) items.push_back({static_cast<uint32_t>(r), kBucket});
    }
  }
  const auto plan = MakeBuckets(items, kBucket);
  const std::vector<std::byte> data(kBucket, std::byte{7});
  size_t given = 0;
  const auto pause = [&](size_t bucket) -> Status {
    for (const Pause& p : pauses) {
      if (p.rank != collective.rank() || p.bucket != bucket) continue;
      line.Say("paused");
      line.AwaitGo();
      if (!fail.ok()) return fail;
    }
    return absl::OkStatus();
  };
  GatherOptions options;
  options.bucket_bytes = kBucket;
  options.wait_timeout = wait_timeout;
  return GatherBuckets(
             collective, *plan,
             [&](uint64_t) -> StatusOr<Bytes> {
               DW_RETURN_IF_ERROR(pause(given++));
               return Bytes(data);
             },
             [&](size_t bucket, auto) { return pause(bucket); }, options)
      .status();
}

// What a surviving rank does: it says its gather's error, checks that later calls fail at once, and
// gathers again with the ranks that are left.
std::string Survive(const Status& failed, Collective& broken, const std::string& dir, int rank,
                    int dead, int size, const Line& line) {
  line.Say(Text(failed));
  const auto start = Collective::Clock::now();
  const Status again = broken.Barrier(Soon());
  if (again.ok() || broken.StartGather(1, {}, {}, Soon()).ok()) return "not broken";
  if (Collective::Clock::now() - start > seconds(5)) return "later calls wait";
  auto next = NewGlooCollective(Loopback(dir, "again", rank - (rank > dead), size - 1), Soon());
  if (!next.ok()) return Text(next.status());
  return Text(PausingGather(**next, line, {}, seconds(30)));
}

TEST_CASE("a rank that is killed in the middle of a gather is an error for all the others") {
  TempDir dir;
  Ranks ranks(4, [&](int rank, const Line& line) -> std::string {
    auto c = NewGlooCollective(Loopback(dir.path(), "job", rank, 4), Soon());
    if (!c.ok()) return Text(c.status());
    const Status s = PausingGather(**c, line, {{2, 3}}, seconds(40));
    return Survive(s, **c, dir.path(), rank, 2, 4, line);
  });
  REQUIRE(ranks.Hear(2) == "paused");
  const auto killed = Collective::Clock::now();
  ranks.Signal(2, SIGKILL);
  for (const int r : {0, 1, 3}) {
    CAPTURE(r);
    const std::string error = ranks.Hear(r);
    CHECK_THAT(error, StartsWith("UNAVAILABLE"));
    CHECK_THAT(error, Contains("rank 2 is gone"));
    // The error comes far sooner than the timeout of 40 seconds.
    CHECK(Collective::Clock::now() - killed < seconds(15));
  }
  for (const int r : {0, 1, 3}) CHECK(ranks.Hear(r) == "OK");
}

TEST_CASE("a rank that is killed in the middle of a message is an error for the root") {
  TempDir dir;
  Ranks ranks(2, [&](int rank, const Line& line) -> std::string {
    auto c = NewGlooCollective(Loopback(dir.path(), "job", rank, 2), Soon());
    if (!c.ok()) return Text(c.status());
    const Status s = PausingGather(**c, line, {{0, 1}, {1, 2}, {1, 3}}, seconds(40));
    return Survive(s, **c, dir.path(), rank, 1, 2, line);
  });
  REQUIRE(ranks.Hear(1) == "paused");  // before it sends bucket 2
  REQUIRE(ranks.Hear(0) == "paused");  // consumes bucket 1, and can already receive bucket 2
  ranks.Signal(0, SIGSTOP);
  ranks.Go(1);
  // Rank 1 has begun to send bucket 2, which is more than sockets' buffers hold, and nobody reads.
  REQUIRE(ranks.Hear(1) == "paused");
  ranks.Signal(1, SIGKILL);
  ranks.Go(0);
  ranks.Signal(0, SIGCONT);
  const std::string error = ranks.Hear(0);
  CHECK_THAT(error, StartsWith("UNAVAILABLE"));
  CHECK_THAT(error, Contains("rank 1 is gone"));
  CHECK(ranks.Hear(0) == "OK");
}

TEST_CASE("a root that is killed is an error for the others") {
  TempDir dir;
  Ranks ranks(3, [&](int rank, const Line& line) -> std::string {
    auto c = NewGlooCollective(Loopback(dir.path(), "job", rank, 3), Soon());
    if (!c.ok()) return Text(c.status());
    const Status s = PausingGather(**c, line, {{0, 2}, {1, 4}}, seconds(40));
    return Survive(s, **c, dir.path(), rank, 0, 3, line);
  });
  REQUIRE(ranks.Hear(0) == "paused");
  ranks.Signal(0, SIGKILL);
  for (const int r : {1, 2}) {
    CAPTURE(r);
    const std::string error = ranks.Hear(r);
    CHECK_THAT(error, StartsWith("UNAVAILABLE"));
    CHECK_THAT(error, Contains("rank 0 (the root) is gone"));
  }
  for (const int r : {1, 2}) CHECK(ranks.Hear(r) == "OK");
}

TEST_CASE("a rank that hangs is named when the wait's time is over") {
  TempDir dir;
  Ranks ranks(3, [&](int rank, const Line& line) -> std::string {
    auto c = NewGlooCollective(Loopback(dir.path(), "job", rank, 3), Soon());
    if (!c.ok()) return Text(c.status());
    const auto timeout = rank == 0 ? milliseconds(1500) : milliseconds(40'000);
    const Status s = PausingGather(**c, line, {{1, 2}}, timeout);
    return Survive(s, **c, dir.path(), rank, 1, 3, line);
  });
  REQUIRE(ranks.Hear(1) == "paused");
  const std::string root_says = ranks.Hear(0);
  CHECK_THAT(root_says, StartsWith("DEADLINE_EXCEEDED"));
  CHECK_THAT(root_says, Contains("rank 1 is silent"));
  const std::string other_says = ranks.Hear(2);  // the root told it, before its own 40 s
  CHECK_THAT(other_says, StartsWith("UNAVAILABLE"));
  CHECK_THAT(other_says, Contains("rank 1 is silent"));
  for (const int r : {0, 2}) CHECK(ranks.Hear(r) == "OK");
}

TEST_CASE("what one rank's source or consumer says reaches every rank") {
  const int failing = GENERATE(0, 1);
  CAPTURE(failing);
  TempDir dir;
  Ranks ranks(3, [&](int rank, const Line& line) -> std::string {
    auto c = NewGlooCollective(Loopback(dir.path(), "job", rank, 3), Soon());
    if (!c.ok()) return Text(c.status());
    const Status s = PausingGather(**c, line, {{failing, 2}}, seconds(40),
                                   absl::DataLossError("the shard is rotten"));
    line.Say(Text(s));
    // All ranks are alive, so they meet again under the numbers that they had.
    auto next = NewGlooCollective(Loopback(dir.path(), "again", rank, 3), Soon());
    return Text(next.ok() ? PausingGather(**next, line, {}, seconds(30)) : next.status());
  });
  REQUIRE(ranks.Hear(failing) == "paused");
  ranks.Go(failing);
  for (int r = 0; r < 3; ++r) {
    CAPTURE(r);
    const std::string error = ranks.Hear(r);
    CHECK_THAT(error, StartsWith(r == failing ? "DATA_LOSS" : "UNAVAILABLE"));
    CHECK_THAT(error, Contains("the shard is rotten"));
  }
  for (int r = 0; r < 3; ++r) CHECK(ranks.Hear(r) == "OK");
}

TEST_CASE("ranks that never come are named, and a job's name is good for once") {
  TempDir dir;
  Ranks ranks(2, [&](int rank, const Line& line) -> std::string {
    // The other rank waits for longer, since its next try would come as the root's missing rank 1.
    const auto limit = milliseconds(rank == 0 ? 2000 : 4000);
    auto c = NewGlooCollective(Loopback(dir.path(), "job", rank * 2, 4), In(limit));
    line.Say(c.ok() ? "OK" : Text(c.status()));
    c = NewGlooCollective(Loopback(dir.path(), "job", rank, 2), Soon());
    line.Say(c.ok() ? "OK" : Text(c.status()));
    c = NewGlooCollective(Loopback(dir.path(), "job2", rank, 2), Soon());
    return c.ok() ? "OK" : Text(c.status());
  });
  const std::string root_says = ranks.Hear(0);
  CHECK_THAT(root_says, StartsWith("DEADLINE_EXCEEDED"));
  CHECK_THAT(root_says, Contains("rank 1, rank 3 did not come"));
  CHECK_THAT(ranks.Hear(1), !StartsWith("OK"));
  CHECK_THAT(ranks.Hear(0), StartsWith("ALREADY_EXISTS"));
  CHECK_THAT(ranks.Hear(1), !StartsWith("OK"));
  for (const int r : {0, 1}) CHECK(ranks.Hear(r) == "OK");
}

TEST_CASE("a gather that is dropped breaks the collective for all") {
  TempDir dir;
  Ranks ranks(2, [&](int rank, const Line&) -> std::string {
    auto c = NewGlooCollective(Loopback(dir.path(), "job", rank, 2), Soon());
    if (!c.ok()) return Text(c.status());
    std::vector<std::byte> data(kBucket);
    const std::vector<MutableBytes> parts = {{}, data};
    auto pending = (*c)->StartGather(
        0, rank == 0 ? Bytes() : Bytes(data),
        rank == 0 ? std::span<const MutableBytes>(parts) : std::span<const MutableBytes>(), Soon());
    if (!pending.ok()) return Text(pending.status());
    if (rank == 1) pending->reset();
    // The root's own gather may have come through.
    if (rank == 0) (*pending)->Wait(Soon()).IgnoreError();
    return Text((*c)->Barrier(Soon()));
  });
  CHECK_THAT(ranks.Hear(0), Contains("dropped before its end"));
  CHECK_THAT(ranks.Hear(1), Contains("dropped before its end"));
}

TEST_CASE("a write to a closed pipe under SigpipeBlocked leaves no trace") {
  Ranks ranks(2, [&](int rank, const Line& line) -> std::string {
    int fds[2];
    if (pipe(fds) != 0 || close(fds[0]) != 0) return "pipe";
    bool failed = false;
    {
      const SigpipeBlocked no_sigpipe;
      const auto write_one = [&] { failed = write(fds[1], "x", 1) == -1 && errno == EPIPE; };
      if (rank == 0) {
        write_one();
      } else {
        std::thread(write_one).join();
      }
    }
    if (!failed) return "the write went through";
    sigset_t mask, pending;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    sigpending(&pending);
    if (sigismember(&mask, SIGPIPE) || sigismember(&pending, SIGPIPE)) return "a trace";
    line.Say("ok");
    // Without SigpipeBlocked the signal ends the process, as it did before.
    return write(fds[1], "x", 1) == -1 ? "survived" : "wrote";
  });
  for (const int r : {0, 1}) {
    CHECK(ranks.Hear(r) == "ok");
    CHECK(ranks.Hear(r) == "(ended)");
  }
}

TEST_CASE("options that cannot work are refused") {
  TempDir dir;
  // This runs in a child, since Gloo leaks two kilobytes where it finds no address, which a
  // sanitizer would report.
  Ranks ranks(1, [&](int, const Line&) -> std::string {
    const auto code = [&](const GlooOptions& options) {
      return NewGlooCollective(options, In(seconds(1))).status().code();
    };
    if (code(Loopback(dir.path(), "job", 0, 1)) != StatusCode::kOk) return "one rank is refused";
    for (int wrong = 0; wrong < 9; ++wrong) {
      GlooOptions options = Loopback(dir.path(), "other", 0, 2);
      if (wrong == 0) options.rank = 2;
      if (wrong == 1) options.size = 0;
      if (wrong == 2) options.root = -1;
      if (wrong == 3) options.rendezvous = "tcp:host:1";
      if (wrong == 4) options.rendezvous += "/not/there";
      if (wrong == 5) options.job = "../x";
      if (wrong == 6) options.address = "no such host";
      // This address is reserved for documentation, so nobody has it.
      if (wrong == 7) options.address = "192.0.2.1";
      if (wrong == 8) options.interface = "nope0";
      if (code(options) != StatusCode::kInvalidArgument) return fmt::format("took {}", wrong);
    }
    return "ok";
  });
  CHECK(ranks.Hear(0) == "ok");
}

}  // namespace
}  // namespace deltawire::testing::gather_failure_test
