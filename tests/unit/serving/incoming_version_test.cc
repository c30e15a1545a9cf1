// A version that is still coming: what of it can be taken, and when nothing more can.
#include "common/serving/incoming_version.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <new>
#include <thread>

#include "common/layout/root.h"
#include "tests/support/eventually.h"

namespace deltawire::incoming_version_test {
namespace {

using Step = IncomingVersion::Step;
constexpr uint32_t kChunks = 4;

/// What a relay holds: chunk c at version 1, with the digest 100 + c.
wire::Have Base(bool known = true) {
  wire::Have base;
  base.chunks.resize(kChunks);
  for (uint32_t c = 0; known && c < kChunks; ++c) base.chunks[c] = {1, 100 + c, 0};
  if (known) base.held = {.lineage = {1, 2}, .id = {1, 1}, .root = 5};
  return base;
}

/// Version 2: `changed` chunks have the digest 200 + c.
Identity Two(const std::vector<uint32_t>& changed) {
  Identity id{.lineage = {1, 2}, .id = {1, 2}};
  for (uint32_t c = 0; c < kChunks; ++c) {
    const bool is = std::find(changed.begin(), changed.end(), c) != changed.end();
    id.root += RootTerm(c, (is ? 200 : 100) + c);
  }
  return id;
}

wire::FrameHeader Header(uint32_t c, wire::FrameType type = wire::FrameType::kChunkDelta) {
  wire::FrameHeader h{.type = type, .chunk = c, .payload_bytes = 8, .epoch = 1, .version = 2};
  if (type == wire::FrameType::kChunkDelta) h.digest_before = 100 + c;
  h.digest_after = 200 + c;
  return h;
}

IncomingVersion::Piece Came(uint32_t c) {
  return {.header = Header(c), .payload = std::make_shared<std::byte[]>(8)};
}

struct Counting : IncomingVersion::Watcher {
  void OnPiece(bool last) override { ++(last ? alls : ones); }
  int ones = 0, alls = 0;
};

}  // namespace

TEST_CASE("incoming version: a copy for which there is no memory does not keep the version open") {
  const auto v = std::make_shared<IncomingVersion>(Two({0}), Base(), 1000);
  IncomingVersion::Piece piece{.header = Header(0, wire::FrameType::kChunkFull)};
  const std::byte at{};
  piece.whole = Bytes(&at, size_t{1} << 63);  // refused before it is asked for
  CHECK_THROWS_AS(v->CopyOf(piece), std::bad_alloc);
  std::atomic<bool> over{false};
  // Detached: an Abandon that waits for ever must not keep the test's process.
  std::thread([v, &over] {
    v->Abandon(absl::AbortedError("a test"));
    over = true;
  }).detach();
  REQUIRE(testing::Eventually([&] { return over.load(); }));
  CHECK(v->step() == Step::kAbandoned);
}

TEST_CASE("incoming version: what is released is no longer taken, and its state is named") {
  IncomingVersion v(Two({1}), Base(), 1000);
  v.Add(Came(1));
  auto state = std::make_shared<Published>();
  v.Settle(state);
  CHECK(v.PieceAt(0).piece);
  v.Release();
  CHECK_FALSE(v.PieceAt(0).piece);
  CHECK(v.PieceAt(0).step == Step::kSettled);
  CHECK(v.PieceAt(0).state == state);
}

TEST_CASE("incoming version: pieces are taken in the order in which they came, once each") {
  IncomingVersion v(Two({1, 3}), Base(), 1000);
  const auto watcher = std::make_shared<Counting>();
  v.Watch(watcher);
  CHECK_FALSE(v.PieceAt(0).piece);
  v.Add(Came(3));
  v.Add(Came(1));
  v.Add(Came(3));  // repaired where it arrived; those who are served have it
  CHECK(watcher->ones == 2);
  CHECK(v.PieceAt(0).piece->header.chunk == 3);
  CHECK(v.PieceAt(1).piece->header.chunk == 1);
  CHECK_FALSE(v.PieceAt(2).piece);
  CHECK(v.digest(3) == 203);
  CHECK(v.digest(0) == 100);
  CHECK(v.PieceAt(2).step == Step::kComing);
}

TEST_CASE("incoming version: it is complete only when its chunks have its root") {
  IncomingVersion v(Two({1, 3}), Base(), 1000);
  v.Add(Came(1));
  CHECK_FALSE(v.IsWhole({v.identity(), 0}));
  v.Add(Came(3));
  Identity other = v.identity();
  other.id.version = 3;
  CHECK_FALSE(v.IsWhole({other, 0}));
  REQUIRE(v.IsWhole({v.identity(), 0}));
  v.Complete({v.identity(), 9}, nullptr);
  CHECK(v.PieceAt(2).step == Step::kComplete);
  CHECK(v.end().side_files_hash == 9);
  wire::Have have = Base();
  CHECK_FALSE(v.Has(have.chunks));
  for (const uint32_t c : {1, 3}) have.chunks[c] = {2, 200 + c, 0};
  CHECK(v.Has(have.chunks));
  have.chunks[0].version = ~uint64_t{0};  // the digest of unknown bytes says nothing
  CHECK_FALSE(v.Has(have.chunks));
}

TEST_CASE("incoming version: unknown chunks that do not come make up nothing") {
  IncomingVersion v(Two({0, 1, 2, 3}), Base(false), 1000);
  for (uint32_t c = 0; c < 3; ++c) v.Add(Came(c));
  CHECK_FALSE(v.IsWhole({v.identity(), 0}));
  v.Add(Came(3));
  CHECK(v.IsWhole({v.identity(), 0}));
}

TEST_CASE("incoming version: payloads beyond the limit are not kept and their digests are") {
  IncomingVersion v(Two({0, 1, 2}), Base(), 20);
  for (uint32_t c = 0; c < 3; ++c) v.Add(Came(c));
  CHECK(v.PieceAt(1).piece);
  CHECK_FALSE(v.PieceAt(2).piece);
  CHECK(v.IsWhole({v.identity(), 0}));
  // A whole chunk lies where it arrived, and takes nothing.
  IncomingVersion whole(Two({0}), Base(), 0);
  std::vector<std::byte> bytes(8);
  whole.Add({.header = Header(0, wire::FrameType::kChunkFull), .whole = bytes});
  CHECK(whole.PieceAt(0).piece);
}

TEST_CASE("incoming version: a frame of another version gives it up") {
  IncomingVersion v(Two({1}), Base(), 1000);
  const auto watcher = std::make_shared<Counting>();
  v.Watch(watcher);
  v.Add(Came(1));
  v.AbandonUnlessOf(Header(2));
  CHECK(v.PieceAt(0).step == Step::kComing);
  wire::FrameHeader later = Header(2);
  later.version = 3;
  v.AbandonUnlessOf(later);
  const auto found = v.PieceAt(0);
  CHECK(found.step == Step::kAbandoned);
  CHECK_FALSE(found.piece);
  CHECK(absl::IsAborted(found.why));
  CHECK(watcher->alls == 1);
  v.Abandon(absl::InternalError("later"));  // the first reason counts
  CHECK(absl::IsAborted(v.PieceAt(0).why));
  v.Add(Came(2));
  CHECK_FALSE(v.PieceAt(0).piece);
}

TEST_CASE("incoming version: whole chunks are copied while it comes and not once it is settled") {
  IncomingVersion v(Two({1}), Base(), 1000);
  std::vector<std::byte> bytes(8, std::byte{7});
  v.Add({.header = Header(1, wire::FrameType::kChunkFull), .whole = bytes});
  const auto piece = *v.PieceAt(0).piece;
  const auto copy = v.CopyOf(piece);
  REQUIRE(copy != nullptr);
  CHECK(copy[7] == std::byte{7});
  CHECK(v.CopyOf(piece) == copy);  // of one that a frame carries, another frame takes the same
  auto state = std::make_shared<Published>();
  v.Settle(state);
  CHECK(v.CopyOf(piece) == nullptr);
  CHECK(v.PieceAt(0).piece);  // a delta's payload could still be taken
  CHECK(v.PieceAt(0).step == Step::kSettled);
  CHECK(v.PieceAt(0).state == state);
  v.Abandon(absl::AbortedError("too late"));
  CHECK(v.PieceAt(0).step == Step::kSettled);
}

TEST_CASE("incoming version: no copy is being made when it has been given up") {
  for (int round = 0; round < 50; ++round) {
    IncomingVersion v(Two({1}), Base(), 1000);
    std::vector<std::byte> bytes(1 << 20, std::byte{7});
    v.Add({.header = Header(1, wire::FrameType::kChunkFull), .whole = bytes});
    const auto piece = *v.PieceAt(0).piece;
    std::thread reader([&] {
      const auto copy = v.CopyOf(piece);
      if (copy != nullptr) CHECK(copy[(1 << 20) - 1] == std::byte{7});
    });
    v.Abandon(absl::AbortedError("given up"));
    std::fill(bytes.begin(), bytes.end(), std::byte{8});
    reader.join();
  }
}

TEST_CASE("incoming version: history is shared by who holds the same and kept as much of it") {
  IncomingVersion v(Two({1}), Base(), 1000);
  v.SetHistory({{1, 9}, {1, 8}}, 3);
  CHECK(v.history_wanted() == 3);
  const Identity held = Base().held;
  CHECK(v.SharesHistory(held, {}, 0));
  CHECK(v.SharesHistory(held, {{1, 9}}, 1));
  CHECK_FALSE(v.SharesHistory(held, {{1, 9}}, 2));
  CHECK_FALSE(v.SharesHistory(held, {{1, 8}}, 1));
  Identity other = held;
  other.root ^= 1;
  CHECK_FALSE(v.SharesHistory(other, {{1, 9}}, 1));
}

TEST_CASE("incoming version: the root of one that is still written is what its end says") {
  Identity unwritten = Two({1, 3}), written = unwritten;
  unwritten.root = 0;
  CHECK(IsOf(unwritten, written));
  IncomingVersion v(unwritten, Base(), 1000);
  v.Add(Came(1));
  CHECK_FALSE(v.IsWhole({written, 0}));
  v.Add(Came(3));
  Identity other = written;
  other.root += 1;
  CHECK_FALSE(v.IsWhole({other, 0}));
  other = written;
  other.attempt = 9;
  CHECK_FALSE(IsOf(unwritten, other));
  CHECK_FALSE(v.IsWhole({other, 0}));
  REQUIRE(v.IsWhole({written, 7}));
  v.Complete({written, 7}, nullptr);
  CHECK(v.end().identity == written);
}

}  // namespace deltawire::incoming_version_test
