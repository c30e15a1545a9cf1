// What a Model tells of a version while the trainer writes it, until it is published or given up.
#include <sys/mman.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/support/eventually.h"
#include "tests/unit/sender/sender_model.h"

namespace deltawire::sender::model_incoming_test {

TEST_CASE("a version that is written can be had from its first diffed chunk until its publish") {
  const bool part = GENERATE(false, true);
  CAPTURE(part);
  SenderModel m({}, part ? std::vector<ChunkRange>{{0, 2}} : std::vector<ChunkRange>{});
  std::atomic<int> changes = 0;
  std::atomic<bool> wanted = true;
  m->offloads().diff().incoming().SetListener([&] { return wanted.load(); }, [&] { ++changes; });
  // The first version comes whole, when it is published.
  REQUIRE(m.Publish(1, 5).ok());
  CHECK(changes == 0);
  const Identity one = m->published()->info.identity;

  const auto grant = m.Begin(2, "test", 6);
  REQUIRE(grant.ok());
  CHECK(m->offloads().incoming() == nullptr);
  m.Write(*grant, 0, SenderModel::Content(2));
  REQUIRE(m->offloads().MarkWritten(grant->lease, {.tensors = {0}}).ok());
  REQUIRE(testing::Eventually([&] { return changes > 0; }));
  const auto early = m->offloads().incoming();
  REQUIRE(early != nullptr);
  CHECK(early->news().base == one);
  const Identity& coming = early->identity();
  CHECK(coming.lineage == one.lineage);
  CHECK(coming.id == StateId{1, 2});
  CHECK(coming.attempt == grant->attempt);
  CHECK(coming.root == 0);
  REQUIRE(testing::Eventually([&] { return early->PieceAt(1).piece.has_value(); }));
  CHECK(early->PieceAt(0).piece->header.version == 2);
  CHECK(m->published()->info.identity == one);

  REQUIRE(m.Ready(*grant, 2).ok());
  REQUIRE(WaitPublished(m->offloads(), 2, grant->lease, NeverGone).ok());
  REQUIRE(testing::Eventually([&] { return m->offloads().incoming() == nullptr && changes > 1; }));
  const auto found = early->PieceAt(0);
  CHECK(found.step == IncomingVersion::Step::kSettled);
  REQUIRE(found.state != nullptr);
  CHECK(IsOf(coming, found.state->info.identity));
  CHECK_FALSE(IsOf(one, found.state->info.identity));

  // Nobody is there who would take it.
  wanted = false;
  changes = 0;
  REQUIRE(m.Publish(3, 7).ok());
  CHECK(m->offloads().incoming() == nullptr);
}

TEST_CASE("a version that is not published after all ends what was sent of it") {
  // By the trainer, by its death, by its beginning anew, by a rollback.
  const std::string how = GENERATE("abandon", "gone", "again", "rollback", "incomplete");
  CAPTURE(how);
  SenderModel m;
  m->offloads().diff().incoming().SetListener([] { return true; }, [] {});
  REQUIRE(m.Publish(1).ok());
  REQUIRE(m.Publish(2).ok());
  const auto grant = m.Begin(3, "test", 0, 77);
  REQUIRE(grant.ok());
  m.Write(*grant, 0, SenderModel::Content(3));
  REQUIRE(m->offloads().MarkWritten(grant->lease, {.tensors = {0}}).ok());
  REQUIRE(testing::Eventually([&] { return m->offloads().incoming() != nullptr; }));
  const auto early = m->offloads().incoming();
  if (how == "abandon")
    REQUIRE(m->offloads().Abandon(grant->lease, 0, "loss is not a number").ok());
  if (how == "gone")
    CHECK_FALSE(AwaitReady(m->offloads(), grant->lease, 0, [] { return true; }).ok());
  if (how == "again") {
    REQUIRE(m.Begin(3, "test", 0, 77).ok());
    // The half may be written from the grant on, so nothing of it is read any more.
    CHECK(early->PieceAt(0).step == IncomingVersion::Step::kAbandoned);
  }
  if (how == "rollback") {
    CHECK_FALSE(AwaitReady(m->offloads(), grant->lease, 0, [] { return true; }).ok());
    REQUIRE(m->publisher().RollBack(1).ok());
    CHECK(early->PieceAt(0).step == IncomingVersion::Step::kAbandoned);
  }
  if (how == "incomplete") {
    CHECK_FALSE(m->offloads().MarkReady({3, 0, 1, grant->lease, false, {0}, {}}).ok());
  }
  REQUIRE(testing::Eventually(
      [&] { return early->PieceAt(0).step == IncomingVersion::Step::kAbandoned; }));
  CHECK(m->offloads().incoming() == nullptr);
  CHECK(absl::IsAborted(early->PieceAt(0).why));
  CHECK(m->published()->info.id().version == (how == "rollback" ? 1 : 2));
}

TEST_CASE("a half is granted again when nothing of what was given up is read, whoever gave it up") {
  // A chunk that takes long to copy, of memory that nobody has touched.
  constexpr size_t kLong = size_t{192} << 20;
  constexpr size_t kLate = kLong - (size_t{8} << 20);  // memcpy may read the very end first
  void* const memory =
      mmap(nullptr, kLong, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  const MutableBytes half(static_cast<std::byte*>(memory), kLong);
  SenderModel m;
  m->offloads().diff().incoming().SetListener([] { return true; }, [] {});
  REQUIRE(m.Publish(1).ok());
  const auto grant = m.Begin(2);
  REQUIRE(grant.ok());
  m.Write(*grant, 0, SenderModel::Content(2));
  REQUIRE(m->offloads().MarkWritten(grant->lease, {.tensors = {0}}).ok());
  REQUIRE(testing::Eventually([&] { return m->offloads().incoming() != nullptr; }));
  const auto early = m->offloads().incoming();
  std::shared_ptr<const std::byte[]> copy;
  std::thread pull([&] { copy = early->CopyOf({.header = {}, .payload = {}, .whole = half}); });
  unsigned char touched = 0;
  while (mincore(memory, 4096, &touched) == 0 && (touched & 1) == 0) std::this_thread::yield();
  REQUIRE(m->offloads().Abandon(grant->lease, 0, "loss is not a number").ok());
  // The model's own thread gives it up, and waits for the copy; the trainer begins anew meanwhile.
  while (early->step() != IncomingVersion::Step::kAbandoned) std::this_thread::yield();
  const auto again = m.Begin(2);
  half[kLate] = std::byte{1};
  pull.join();
  REQUIRE(again.ok());
  REQUIRE(copy != nullptr);
  CHECK(copy[kLate] == std::byte{0});
  CHECK(munmap(memory, kLong) == 0);
}

TEST_CASE("versions come when they are published where the options say so") {
  SenderOptions options;
  options.early = Early::kDiff;
  SenderModel m(options);
  int changes = 0;
  m->offloads().diff().incoming().SetListener([] { return true; }, [&] { ++changes; });
  REQUIRE(m.Publish(1, 5).ok());
  const auto grant = m.Begin(2, "test", 6);
  REQUIRE(grant.ok());
  REQUIRE(m->offloads().MarkWritten(grant->lease, {.tensors = {0}}).ok());
  REQUIRE(m.Ready(*grant, 2).ok());
  REQUIRE(WaitPublished(m->offloads(), 2, grant->lease, NeverGone).ok());
  CHECK(changes == 0);
}

}  // namespace deltawire::sender::model_incoming_test
