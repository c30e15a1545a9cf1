// A whole model without sockets: fencing of writers, rollback, identity over a restart, versions of
// a part that are published again, and side files of versions.
#include "sender/agent/model.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <optional>
#include <thread>

#include "common/layout/root.h"
#include "tests/support/eventually.h"
#include "tests/support/forked.h"
#include "tests/unit/sender/sender_model.h"

namespace deltawire::sender::model_test {
namespace {

ino_t Inode(const std::filesystem::path& path) {
  struct stat file {};
  REQUIRE(::stat(path.c_str(), &file) == 0);
  return file.st_ino;
}

/// A process that maps a half as a trainer does, and writes to it over and over until it is killed.
class Writer {
 public:
  explicit Writer(const std::filesystem::path& path)
      : shared_(static_cast<std::atomic<uint64_t>*>(
            ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))),
        child_([&] { Run(path.c_str()); }) {
    WaitPasses(1);
  }
  ~Writer() {
    child_.Kill();
    ::munmap(shared_, 4096);
  }
  void Stop() const { child_.Stop(); }
  /// Lets it go on, and waits until it has made one whole pass.
  void GoOn() {
    child_.Signal(SIGCONT);
    WaitPasses(*shared_ + 2);
  }

 private:
  void WaitPasses(uint64_t n) const {
    while (shared_->load() < n) std::this_thread::yield();
  }
  [[noreturn]] void Run(const char* path) {
    ::close_range(3, ~0U, 0);  // a trainer has none of the model's open files
    const int fd = ::open(path, O_RDWR);
    struct stat file {};
    ::fstat(fd, &file);
    const auto size = static_cast<size_t>(file.st_size);
    auto* bytes = static_cast<volatile uint8_t*>(
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    ::close(fd);
    while (true) {
      for (size_t i = size / 2; i < size; ++i) bytes[i] = static_cast<uint8_t>(i * 31);
      shared_->fetch_add(1);
    }
  }

  std::atomic<uint64_t>* shared_;
  testing::Forked child_;
};

/// The grant that rank 0 of 2 still has after rank 1 has given up their offload.
OffloadGrant Lost(SenderModel& m, uint64_t version, const std::string& publisher) {
  const auto grant = m->offloads().Begin({version, 0, 2, 0, publisher, 0, "job"}, NeverGone);
  REQUIRE(grant.ok());
  REQUIRE(m->offloads().Attend(grant->lease, 0).ok());
  REQUIRE(
      m->offloads().Begin({version, 1, 2, 0, "rank 1 of " + publisher, 0, "job"}, NeverGone).ok());
  REQUIRE(m->offloads().Abandon(grant->lease, 1, "loss is not a number").ok());
  CHECK(absl::IsAborted(AwaitReady(m->offloads(), grant->lease, 0, NeverGone)));
  return *grant;
}

bool Says(const Status& status, const std::string& part) {
  CAPTURE(status, part);
  const bool says = MessageOf(status).find(part) != std::string::npos;
  CHECK(says);
  return says;
}

}  // namespace

TEST_CASE("each publish tells of its stages once, and an abandoned offload of none") {
  // The publisher's thread tells, and Catch's assertions belong to the test's own: read after it
  // has ended.
  std::vector<std::pair<Stage, double>> told;
  std::vector<std::string> names;
  SenderModel model({}, {}, {}, 2, [&](const StageEnd& end) {
    told.emplace_back(end.stage, end.seconds);
    names.push_back(std::string(end.model) + "/" + std::string(end.engine));
  });
  const auto grant = model.Begin(1);
  REQUIRE(grant.ok());
  REQUIRE(model->offloads().Abandon(grant->lease, 0, "for the test").ok());
  CHECK(told.empty());  // no publisher has run yet
  CHECK(model->publisher().totals().abandoned == 1);
  const auto info = model.Publish(2);
  REQUIRE(info.ok());
  // The publisher tells after whoever waits for the version may have gone on.
  REQUIRE(testing::Eventually([&] { return model->publisher().history().recent().size() == 1; }));
  model.Restart();  // joins the publisher
  REQUIRE(told.size() == 4);
  CHECK(names == std::vector<std::string>(4, "m/"));
  CHECK(told[0] == std::pair{Stage::kWait, info->trainer_wait_seconds});
  CHECK(told[1] == std::pair{Stage::kOffload, info->offload_seconds});
  CHECK(told[2] == std::pair{Stage::kDiff, info->diff_seconds});
  CHECK(told[3] == std::pair{Stage::kPublish, info->publish_seconds});
  CHECK(info->diff_seconds > 0);
  CHECK(info->diff_seconds <= info->publish_seconds);
  CHECK(model->publisher().history().recent().empty());  // of this process only
}

TEST_CASE("a publisher that was stopped and goes on never changes what another one publishes") {
  SenderModel m;
  REQUIRE(m.Publish(1).ok());
  const OffloadGrant zombie = Lost(m, 2, "the first");
  Writer writer(zombie.half_path);
  writer.Stop();
  const auto second = m.Begin(2, "the second");
  REQUIRE(second.ok());
  m.Write(*second, 0, SenderModel::Content(2));
  writer.GoOn();
  REQUIRE(m.Ready(*second, 2).ok());
  REQUIRE(WaitPublished(m->offloads(), 2, second->lease, NeverGone).ok());
  CHECK(m.Holds(2));
  writer.GoOn();
  CHECK(m.Holds(2));
  // Later versions are safe too, also when it is the turn of the same half.
  for (uint64_t v = 3; v <= 6; ++v) {
    REQUIRE(m.Publish(v).ok());
    writer.GoOn();
    CHECK(m.Holds(v));
  }
  CHECK(absl::IsAborted(WaitPublished(m->offloads(), 2, zombie.lease, NeverGone).status()));
}

TEST_CASE(
    "ranks that wait without a thread are told when their offload gets on, and when it is over") {
  SenderModel m;
  std::atomic<int> news{0};
  const auto listener = m->offloads().OnNews([&] { ++news; });
  const auto told = [&](int before) { return testing::Eventually([&] { return news > before; }); };
  const auto zero = m->offloads().Begin({1, 0, 2, 0, "a", 0, "job"}, NeverGone);
  const auto one = m->offloads().Begin({1, 1, 2, 0, "a", 0, "job"}, NeverGone);
  REQUIRE((zero.ok() && one.ok()));
  REQUIRE((m->offloads().Attend(zero->lease, 0).ok() && m->offloads().Attend(one->lease, 1).ok()));
  m->offloads().CountWaiters(zero->lease, 1);
  CHECK_FALSE(m->offloads().Outcome(1, zero->lease, 0));
  SECTION("all are ready, and it is published") {
    m.Write(*zero, 0, SenderModel::Content(1));
    int before = news;
    REQUIRE(m->offloads().MarkReady({1, 0, 2, zero->lease, true, {}, {}}).ok());
    CHECK(told(before));
    CHECK(*m->offloads().IsReady(zero->lease, 0));
    CHECK_FALSE(*m->offloads().IsReady(one->lease, 1));
    m->offloads().EndAttend(zero->lease, 0);  // a rank that was ready may go
    CHECK_FALSE(*m->offloads().IsReady(one->lease, 1));
    REQUIRE(m->offloads().MarkReady({1, 1, 2, one->lease, true, {}, {}}).ok());
    // Asked only when there is news, as a call asks.
    int seen = 0;
    std::optional<StatusOr<VersionInfo>> outcome;
    CHECK(testing::Eventually([&] {
      if (std::exchange(seen, int{news}) != news)
        outcome = m->offloads().Outcome(1, zero->lease, 0);
      return outcome.has_value();
    }));
    REQUIRE((outcome && outcome->ok()));
    CHECK((*outcome)->id().version == 1);
    CHECK(*m->offloads().IsReady(one->lease, 1));
  }
  SECTION("one of them goes before it is ready") {
    const int before = news;
    m->offloads().EndAttend(one->lease, 1);
    CHECK(told(before));
    CHECK(Says(m->offloads().IsReady(zero->lease, 0).status(),
               "rank 1 of 2 has gone before it was ready"));
    CHECK(absl::IsAborted(m->offloads().Outcome(1, zero->lease, 0)->status()));
  }
  SECTION("the sender stops") {
    const int before = news;
    m->offloads().Stop(absl::UnavailableError("the test stops"));
    CHECK(told(before));
    CHECK(absl::IsUnavailable(m->offloads().IsReady(zero->lease, 0).status()));
    CHECK(absl::IsUnavailable(m->offloads().Outcome(1, zero->lease, 0)->status()));
  }
  m->offloads().CountWaiters(zero->lease, -1);
}

TEST_CASE("a half keeps its file when its writers are done or gone, else it gets a fresh one") {
  SenderModel m;
  REQUIRE(m.Publish(1).ok());
  const auto first = m.Begin(2, "a", 0, 7);
  REQUIRE(first.ok());
  const ino_t inode = Inode(first->half_path);
  SECTION("it has gone") {
    CHECK(absl::IsCancelled(AwaitReady(m->offloads(), first->lease, 0, [] { return true; })));
    CHECK(Inode(m.Begin(2, "b")->half_path) == inode);
  }
  SECTION("it gave up itself") {
    const Writer writer(first->half_path);
    REQUIRE(m->offloads().Abandon(first->lease, 0, "no").ok());
    CHECK(Inode(m.Begin(2, "b")->half_path) == inode);
  }
  SECTION("it begins again itself") {
    const Writer writer(first->half_path);
    CHECK(Inode(m.Begin(2, "another name", 0, 7)->half_path) == inode);
  }
  SECTION("somebody of its name begins while it hangs") {
    const Writer writer(first->half_path);
    CHECK(absl::IsFailedPrecondition(m.Begin(2, "a", 0, 8).status()));
    CHECK(absl::IsFailedPrecondition(m.Begin(2, "a").status()));
    CHECK(absl::IsCancelled(AwaitReady(m->offloads(), first->lease, 0, [] { return true; })));
    CHECK(Inode(m.Begin(2, "a", 0, 8)->half_path) != inode);
  }
  SECTION("of an earlier run of the sender nobody knows who was granted it") {
    const Writer writer(first->half_path);
    m.Restart();
    CHECK(Inode(m.Begin(2, "b")->half_path) != inode);
  }
}

TEST_CASE("a half whose writer never said that it was done is replaced if it is still open") {
  const bool open = GENERATE(false, true);
  CAPTURE(open);
  SenderModel m;
  const OffloadGrant lost = Lost(m, 2, "a");
  const ino_t was = Inode(lost.half_path);
  const auto writer = open ? std::make_unique<Writer>(lost.half_path) : nullptr;
  // A publisher's name must not matter, since two processes can have the same.
  const std::string name = GENERATE("a", "b");
  CHECK((Inode(m.Begin(2, name)->half_path) == was) == !open);
}

TEST_CASE("of two publishers of one version exactly one succeeds") {
  SenderModel m;
  const auto a = m.Begin(1, "a");
  REQUIRE(a.ok());
  const Status refused = m.Begin(1, "b").status();
  CHECK(absl::IsFailedPrecondition(refused));
  Says(refused, "(a)");
  m.Write(*a, 0, SenderModel::Content(1));
  REQUIRE(m.Ready(*a, 1).ok());
  REQUIRE(WaitPublished(m->offloads(), 1, a->lease, NeverGone).ok());
  Says(m.Begin(1, "b").status(), "is not newer than the published");
  CHECK(m.Holds(1));
}

TEST_CASE("a caller that has gone while it waited for its half begins nothing") {
  SenderModel m;
  CHECK(absl::IsCancelled(m->offloads().Begin({1, 0, 1, 0, "a"}, [] { return true; }).status()));
  CHECK(m->offloads().version() == 0);
}

TEST_CASE("ranks that wait hear that another rank went while it was granted its half") {
  SenderModel m;
  const auto zero = m->offloads().Begin({1, 0, 2, 0, "a", 0, "job"}, NeverGone);
  REQUIRE(zero.status() == absl::OkStatus());
  REQUIRE(m->offloads().Attend(zero->lease, 0).ok());
  std::optional<StatusOr<VersionInfo>> heard;
  const auto listener =
      m->offloads().OnNews([&] { heard = m->offloads().Outcome(1, zero->lease, 0); });
  CHECK(absl::IsCancelled(
      m->offloads().Begin({1, 1, 2, 0, "a", 0, "job"}, [] { return true; }).status()));
  REQUIRE(heard);
  CHECK(absl::IsAborted(heard->status()));
}

TEST_CASE("a trainer gets its half while receivers are still being told of the version before") {
  const bool rollback = GENERATE(false, true);
  CAPTURE(rollback);
  std::promise<void> over;
  const std::shared_future<void> released = over.get_future().share();
  std::atomic<bool> blocks{false}, cut{false};
  std::atomic<int> told{0};
  SenderModel m;
  m->publisher().SetListener([&] {
    ++told;
    if (blocks) released.wait();
  });
  // Cutting cannot help here. If it is tried, the listener goes on, so that the test ends.
  m->offloads().diff().SetCutter([&](uint32_t) {
    if (!cut.exchange(true)) over.set_value();
  });
  REQUIRE(m.Publish(1).ok());
  if (rollback) REQUIRE(m.Publish(2).ok());
  const int before = rollback ? 2 : 1;
  REQUIRE(testing::Eventually([&] { return told == before; }));
  blocks = true;
  std::thread back([&] {
    if (rollback) (void)m->publisher().RollBack(1);
  });
  const bool published = rollback || m.Publish(2).ok();
  const bool telling = testing::Eventually([&] { return told > before; });
  const auto next = m->offloads().Begin({3, 0, 1, 0, "test"}, NeverGone);
  const bool in_time = !cut.exchange(true);
  if (in_time) over.set_value();
  back.join();
  CHECK(published);
  CHECK(telling);
  CHECK(next.status() == absl::OkStatus());
  CHECK(in_time);
}

TEST_CASE("ranks that wait for their half do not wake each other") {
  SenderModel m({.grace = std::chrono::milliseconds(500)});
  REQUIRE(m.Publish(1).ok());
  const auto first = m->published();
  REQUIRE(m.Publish(2).ok());
  auto reader = m->LeaseHalf(first->half, first->info.identity);
  REQUIRE(reader != nullptr);
  m->offloads().diff().SetCutter([&](uint32_t) { reader.reset(); });
  constexpr uint32_t kWorld = 4;
  std::atomic<int> looks{0};
  std::atomic<uint32_t> granted{0};
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto looked = [&] {
        ++looks;
        return false;
      };
      if (m->offloads().Begin({3, rank, kWorld, 0, "test", 0, "job"}, looked).ok()) ++granted;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(granted == kWorld);
  CHECK(reader == nullptr);
  // Each rank looks every 50 ms whether its caller has gone, so about ten times; a machine that is
  // busy makes it fewer.
  CHECK(looks < 20 * static_cast<int>(kWorld));
}

TEST_CASE("a pool that is busy with other work holds nobody up") {
  SenderModel m;
  REQUIRE(m.Publish(1).ok());
  std::promise<void> over;
  const std::shared_future<void> wait = over.get_future().share();
  for (size_t i = 0; i < m.pool().size(); ++i) m.pool().Submit([wait] { wait.wait(); });
  const auto grant = m.Begin(2, "a");
  REQUIRE(grant.ok());
  REQUIRE(m->offloads().MarkWritten(grant->lease, {.rank = 0, .tensors = {0, 1, 2}}).ok());
  REQUIRE(m->offloads().Abandon(grant->lease, 0, "no").ok());
  const auto again = m.Begin(2, "a");
  REQUIRE(again.ok());
  over.set_value();
  m.Write(*again, 0, SenderModel::Content(2));
  REQUIRE(m.Ready(*again, 2).ok());
  REQUIRE(WaitPublished(m->offloads(), 2, again->lease, NeverGone).ok());
  CHECK(m.Holds(2));
}

TEST_CASE("chunks that several ranks have counted are diffed early, and once") {
  SenderModel m;
  REQUIRE(m.Publish(1).ok());
  const auto zero = m->offloads().Begin({2, 0, 2, 0, "a", 0, "job"}, NeverGone);
  const auto one = m->offloads().Begin({2, 1, 2, 0, "b", 0, "job"}, NeverGone);
  REQUIRE((zero.ok() && one.ok()));
  m.Write(*zero, 0, SenderModel::Content(2));
  const auto half = static_cast<uint32_t>(kChunkBytes / 2);
  for (const uint32_t rank : {0, 1}) {
    const WrittenNotice counted{.rank = rank, .chunks = {0, 1}, .chunk_bytes = {half, 500}};
    REQUIRE(m->offloads().MarkWritten(zero->lease, counted).ok());
  }
  for (const uint32_t rank : {0, 1}) {
    REQUIRE(m->offloads().MarkReady({2, rank, 2, zero->lease, true, {}, {}}).ok());
  }
  const auto info = WaitPublished(m->offloads(), 2, zero->lease, NeverGone);
  REQUIRE(info.ok());
  CHECK(m.Holds(2));
  CHECK(info->changed_elements == 4);
}

TEST_CASE("what ranks have counted is diffed before the last one is ready") {
  SenderModel m({}, {}, {}, 1);
  REQUIRE(m.Publish(1).ok());
  const auto zero = m->offloads().Begin({2, 0, 2, 0, "a", 0, "job"}, NeverGone);
  const auto one = m->offloads().Begin({2, 1, 2, 0, "b", 0, "job"}, NeverGone);
  REQUIRE((zero.ok() && one.ok()));
  m.Write(*zero, 0, SenderModel::Content(2));
  const auto half = static_cast<uint32_t>(kChunkBytes / 2);
  for (const uint32_t rank : {0, 1}) {
    REQUIRE(m->offloads()
                .MarkWritten(zero->lease, {.rank = rank, .chunks = {0}, .chunk_bytes = {half}})
                .ok());
  }
  // The pool has one thread, which takes tasks in turn: when this one runs, the diff has run.
  std::promise<void> behind;
  m.pool().Submit([&] { behind.set_value(); });
  behind.get_future().wait();
  // No trainer may write after MarkWritten. This write shows that the diff looked at the bytes
  // before it, not at those that are there at the end.
  m.Write(*zero, 0, std::vector<std::byte>(100, std::byte{77}));
  for (const uint32_t rank : {0, 1}) {
    REQUIRE(m->offloads().MarkReady({2, rank, 2, zero->lease, true, {}, {}}).ok());
  }
  REQUIRE(WaitPublished(m->offloads(), 2, zero->lease, NeverGone).ok());
  const std::vector<std::byte> marked = SenderModel::Content(2);
  CHECK((*m->published()->digests)[0] ==
        m->backend().digest(m->key(), Bytes(marked).first(m->chunks()[0].bytes)));
}

TEST_CASE("a scalar that changes in every step does not end the way back") {
  SenderModel m;
  for (uint64_t v = 1; v <= 4; ++v) REQUIRE(m.Publish(v).ok());
  const Identity second = m->published()->info.identity;
  const auto back = m->publisher().RollBack(3);
  INFO(back.status());
  REQUIRE(back.ok());
  CHECK(back->id() == StateId{2, 3});
  CHECK(m.Holds(3));
  REQUIRE(m->publisher().RollBack(1).ok());
  CHECK(m.Holds(1));
  CHECK(!(m->published()->info.identity == second));
  // A version from before the rollbacks can still be rebuilt.
  const auto at = m->At({.id = {1, 2}});
  REQUIRE(at.ok());
  CHECK(RootOf(*(*at)->digests, m->owned()) == (*at)->info.identity.root);
}

TEST_CASE("the root follows the digests, and identity and lineage survive a restart") {
  SenderModel m;
  for (uint64_t v = 1; v <= 3; ++v) REQUIRE(m.Publish(v).ok());
  const auto before = m->published();
  CHECK(before->info.identity.root == RootOf(*before->digests, m->owned()));
  CHECK(before->info.identity.attempt != 0);
  CHECK(!(before->info.identity.lineage == Hash128{}));
  const auto earlier = m->At({.id = {1, 2}});
  REQUIRE(earlier.ok());
  m.Restart();
  CHECK(m->published()->info.identity == before->info.identity);
  CHECK(m->published()->info.identity.attempt == before->info.identity.attempt);
  CHECK(m.Holds(3));
  // The version before is still in the other half.
  const auto other = m->At((*earlier)->info.identity);
  REQUIRE(other.ok());
  CHECK(*(*other)->digests == *(*earlier)->digests);
  CHECK(m->LeaseHalf((*other)->half, (*other)->info.identity) != nullptr);
  // Another model has another lineage, so its version 3 is another state.
  SenderModel another;
  REQUIRE(another.Publish(3).ok());
  CHECK(!(another->published()->info.identity == before->info.identity));
}

TEST_CASE("a part's version that was given up elsewhere is published again under another attempt") {
  SenderModel m({}, {{0, 2}});
  CHECK(absl::IsInvalidArgument(m.Begin(1).status()));
  REQUIRE(m.Publish(1, 11).ok());
  const auto first = m.Publish(2, 22);
  REQUIRE(first.ok());
  Says(m.Begin(2, "test", 22).status(), "this very attempt");
  const auto grant = m.Begin(2, "test", 33);
  REQUIRE(grant.ok());
  CHECK(grant->attempt == 33);
  std::vector<std::byte> content = SenderModel::Content(2);
  content.resize(2 << 20);  // the part that this agent owns
  content[100] = std::byte{77};
  m.Write(*grant, 0, content);
  REQUIRE(m.Ready(*grant, 2).ok());
  const auto second = WaitPublished(m->offloads(), 2, grant->lease, NeverGone);
  REQUIRE(second.ok());
  CHECK(second->id() == first->id());
  CHECK(second->identity.attempt == 33);
  CHECK(!(second->identity == first->identity));
  // Each attempt can be asked for by its whole identity.
  CHECK((*m->At(second->identity))->serial == 3);
  CHECK((*m->At(first->identity))->info.identity.root == first->identity.root);
  m.Restart();
  CHECK(m->published()->info.identity == second->identity);
}

TEST_CASE("side files of a state from before a restart stay as long as a pull holds it") {
  SenderModel m({}, {}, {{"config.json", "one"}});
  REQUIRE(m.Publish(1).ok());
  const Identity first = m->published()->info.identity;
  const uint64_t one = m->side_files()->hash;
  REQUIRE(m->SetSideFiles({{"config.json", "two"}}).ok());
  REQUIRE(m.Publish(2).ok());
  m.Restart();
  const auto pinned = m->At(first);
  REQUIRE(pinned.ok());
  for (uint64_t version = 3; version <= 9; ++version) {
    REQUIRE(m.Publish(version).ok());
    REQUIRE(m->side_files(one) != nullptr);
    CHECK(m->side_files(one)->files[0].content == "one");
  }
}

TEST_CASE("side files belong to the version that was published with them") {
  SenderModel m({}, {}, {{"config.json", "one"}});
  CHECK(m->side_files()->files[0].content == "one");
  const uint64_t one = m->side_files()->hash;
  REQUIRE(m.Publish(1).ok());
  CHECK(m->published()->info.side_files_hash == one);
  REQUIRE(m->SetSideFiles({{"config.json", "two"}}).ok());
  CHECK(m->side_files()->hash == one);
  REQUIRE(m.Publish(2).ok());
  const uint64_t two = m->side_files()->hash;
  CHECK(two != one);
  CHECK(m->side_files(one)->files[0].content == "one");
  m.Restart();
  CHECK(m->side_files()->hash == two);
  CHECK(m->published()->info.side_files_hash == two);
  CHECK(m->side_files(one)->files[0].content == "one");  // the version in the other half needs them
  REQUIRE(m.Publish(3).ok());
  CHECK(m->side_files()->hash == two);
}

TEST_CASE("a wait answers for its own lease, a later version or not") {
  SenderModel m;
  const OffloadGrant lost = Lost(m, 1, "a");
  REQUIRE(m.Publish(2).ok());
  CHECK(absl::IsAborted(WaitPublished(m->offloads(), 1, lost.lease, NeverGone).status()));
  CHECK(WaitPublished(m->offloads(), 1, 0, NeverGone)->id() == StateId{1, 2});
}

}  // namespace deltawire::sender::model_test
