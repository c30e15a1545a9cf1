// States that were published before the newest one: which of them can be named, how they are
// rebuilt, and what goes when nobody can need it any more.
#include "common/serving/version_store.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/unit/sender/hand_published.h"

namespace deltawire::sender::version_store_test {
namespace {

using test::HandPublished;
using test::PublishedVersion;

bool Says(const Status& status, const std::string& part) {
  CAPTURE(status, part);
  const bool says = MessageOf(status).find(part) != std::string::npos;
  CHECK(says);
  return says;
}

/// An identity as somebody has it who knows the version, and perhaps its root or its attempt.
Identity Named(uint64_t version, uint64_t root = 0, uint64_t attempt = 0) {
  return {{}, {1, version}, root, attempt};
}

TEST_CASE("version store: before the first version there is nothing to name or to go back to") {
  HandPublished f(1);
  CHECK(f.store().newest() == nullptr);
  CHECK(absl::IsFailedPrecondition(f.store().At(Named(1)).status()));
  CHECK(absl::IsFailedPrecondition(f.store().Reach(1).status()));
  CHECK(f.store().side_files(0) == nullptr);
  CHECK(f.store().log_bytes() == 0);
}

TEST_CASE("version store: what the log leads on from is made again as it was and nothing else") {
  const uint64_t seed = GENERATE(range(1, 4));
  // The log has room for all deltas, for a few, or for none; the newest one always stays.
  const uint64_t limit = GENERATE(uint64_t{1} << 30, uint64_t{60'000}, uint64_t{1});
  CAPTURE(seed, limit);
  HandPublished f(seed, limit);
  uint64_t serial = 0;
  for (uint64_t version = 1; version <= 9; ++version) {
    CAPTURE(version);
    const auto newest = f.Publish({.version = version,
                                   .chunks = f.SomeChunks(),
                                   .attempt = 100 + version,
                                   .side_file = "of " + std::to_string(version)});
    REQUIRE(f.store().newest() == newest);
    CHECK(newest->serial > serial);
    serial = newest->serial;
    uint64_t bytes = 0;
    for (const auto& delta : newest->log) bytes += delta->memory_bytes();
    CHECK(f.store().log_bytes() == bytes);
    CHECK((bytes <= limit || newest->log.size() == 1));
    if (limit == uint64_t{1} << 30) CHECK(newest->log.size() == version - 1);
    for (uint64_t behind = 0; behind < version; ++behind) {
      CAPTURE(behind);
      const PublishedVersion& was = f.versions()[version - 1 - behind];
      const auto at = f.store().At(was.identity);
      if (behind > newest->log.size()) {
        CHECK(absl::IsAborted(at.status()));
        Says(at.status(), "is not kept any more");
        continue;
      }
      REQUIRE(at.status() == absl::OkStatus());
      const Published& state = **at;
      CHECK(state.info.identity == was.identity);
      CHECK(state.info.identity.attempt == was.identity.attempt);
      CHECK(*state.digests == was.digests);
      CHECK(state.side_files->hash == was.side_files_hash);
      const auto here = newest->log.end() - static_cast<std::ptrdiff_t>(behind);
      CHECK(state.log == LogView(newest->log.begin(), here));
      if (behind > 0) CHECK(state.serial == 0);
      // There are two halves, so older versions have no bytes of their own.
      CHECK((f.halves().Lease(state.half, was.identity) != nullptr) == (behind < 2));
    }
  }
}

TEST_CASE("version store: a name must agree with a state in every field that it states") {
  HandPublished f(2);
  f.Publish({.version = 1, .attempt = 11});
  f.Publish({.version = 2, .chunks = {0}, .attempt = 22});
  f.Publish({.version = 2, .chunks = {1}, .attempt = 33});
  f.Publish({.version = 3, .chunks = {0, 1}, .attempt = 44});
  const Identity first = f.versions()[1].identity, second = f.versions()[2].identity;
  REQUIRE(first.root != second.root);
  const auto root_of = [&](const Identity& id) {
    const auto at = f.store().At(id);
    return at.ok() ? (*at)->info.identity.root : 0;
  };
  const auto refused = [&](const Identity& id, const std::string& why) {
    const Status status = f.store().At(id).status();
    return absl::IsAborted(status) && Says(status, why);
  };
  // A version number that was published twice names the newer state.
  CHECK(root_of(Named(2)) == second.root);
  for (const Identity& id : {first, second}) {
    CHECK(root_of(id) == id.root);
    CHECK(root_of(Named(2, id.root)) == id.root);
    CHECK(root_of(Named(2, 0, id.attempt)) == id.root);
    CHECK(*(*f.store().At(id))->digests == f.versions()[id == first ? 1 : 2].digests);
  }
  CHECK(refused(Named(2, first.root, second.attempt), "is not kept"));
  CHECK(refused(Named(2, first.root + 1), "is not kept"));
  CHECK(refused(Named(2, 0, 55), "is not kept"));
  CHECK(refused(Named(3, 0, 33), "is not kept"));
  CHECK(refused(Named(4), "is not published here"));
  Identity stranger = second;
  stranger.lineage = {3, 4};
  CHECK(refused(stranger, "is not published here"));
}

TEST_CASE("version store: who asks for one state shares it and the last one takes it away") {
  HandPublished f(3);
  for (uint64_t v = 1; v <= 2; ++v) f.Publish({.version = v, .chunks = {0}});
  auto one = f.store().At(f.versions()[0].identity);
  auto two = f.store().At(f.versions()[0].identity);
  REQUIRE((one.ok() && two.ok()));
  CHECK(*one == *two);
  f.Publish({.version = 3, .chunks = {0}});
  // It is still the same object, so payloads that were encoded for it are still used.
  CHECK(*f.store().At(f.versions()[0].identity) == *one);
  const std::weak_ptr<const Published> made = *one, newest = f.store().newest();
  *one = nullptr;
  CHECK(!made.expired());
  *two = nullptr;
  CHECK(made.expired());
  f.Publish({.version = 4, .chunks = {0}});
  CHECK(newest.expired());
  CHECK(*(*f.store().At(f.versions()[0].identity))->digests == f.versions()[0].digests);
}

TEST_CASE("version store: who holds a state holds its deltas and no others outlive the log") {
  const uint64_t seed = 4;
  CAPTURE(seed);
  HandPublished f(seed, 1);
  f.Publish({.version = 1});
  auto held = f.Publish({.version = 2, .chunks = {0, 2, 3}});
  f.Publish({.version = 3, .chunks = {0, 1}});
  const std::weak_ptr<const Delta> first = held->log.back(),
                                   second = f.store().newest()->log.back();
  f.Publish({.version = 4, .chunks = {0, 1}});
  CHECK(second.expired());
  REQUIRE(held->log.size() == 1);
  std::vector<std::byte> bytes = f.versions()[0].bytes;
  for (const ChunkDelta& d : held->log[0]->chunks()) {
    const Chunk& chunk = f.chunks[d.chunk];
    uint64_t digest = 0;
    REQUIRE(f.backend().decode_apply(
                f.key(), d.payload, MutableBytes(bytes).subspan(chunk.offset, chunk.bytes),
                chunk.width, d.digest_before, &digest) == kernels::DecodeStatus::kOk);
  }
  CHECK(bytes == f.versions()[1].bytes);
  held = nullptr;
  CHECK(first.expired());
  CHECK(f.store().log_bytes() == f.store().newest()->log[0]->memory_bytes());
}

TEST_CASE("version store: a version that no delta leads to ends the history before it") {
  HandPublished f(5);
  for (uint64_t v = 1; v <= 3; ++v) f.Publish({.version = v, .chunks = {1}});
  const auto alone = f.Publish({.version = 4, .chunks = {1}, .with_delta = false});
  CHECK(alone->log.empty());
  CHECK(f.store().log_bytes() == 0);
  CHECK(absl::IsAborted(f.store().At(f.versions()[2].identity).status()));
  CHECK(absl::IsNotFound(f.store().Reach(3).status()));
  f.Publish({.version = 5, .chunks = {1}});
  const auto at = f.store().At(f.versions()[3].identity);
  REQUIRE(at.ok());
  CHECK(*(*at)->digests == f.versions()[3].digests);
  CHECK(absl::IsAborted(f.store().At(f.versions()[2].identity).status()));
}

TEST_CASE("version store: what a restart finds in the other half is there until it is written to") {
  HandPublished f(6);
  for (uint64_t v = 1; v <= 3; ++v) {
    f.Publish({.version = v, .chunks = {0, 1}, .side_file = std::to_string(v)});
  }
  f.Restart();
  const PublishedVersion& before = f.versions()[1];
  auto at = f.store().At(before.identity);
  REQUIRE(at.ok());
  CHECK(*(*at)->digests == before.digests);
  CHECK(f.halves().Lease((*at)->half, before.identity) != nullptr);
  CHECK(f.store().side_files(before.side_files_hash) != nullptr);
  CHECK(absl::IsAborted(f.store().At(f.versions()[0].identity).status()));
  // There is no delta between the two versions, so nothing can be rolled back.
  CHECK(absl::IsNotFound(f.store().Reach(2).status()));
  *at = nullptr;
  f.Publish({.version = 4, .chunks = {0}});
  CHECK(absl::IsAborted(f.store().At(before.identity).status()));
  CHECK(*(*f.store().At(f.versions()[2].identity))->digests == f.versions()[2].digests);
}

TEST_CASE("version store: the way back ends at a change that was too large to keep") {
  HandPublished f(7);
  for (uint64_t v = 1; v <= 6; ++v) {
    f.Publish({.version = v,
               .chunks = {0, 2},
               .attempt = v * 11,
               .payload_limit = v == 3 ? 0 : uint64_t{1} << 30});
  }
  CHECK(absl::IsFailedPrecondition(f.store().Reach(6).status()));
  for (const uint64_t version : {3, 4, 5}) {
    CAPTURE(version);
    const auto reached = f.store().Reach(version);
    REQUIRE(reached.ok());
    CHECK(*reached == f.versions()[version - 1].identity);
    CHECK(reached->attempt == version * 11);
  }
  for (const uint64_t version : {1, 2, 7}) {
    CAPTURE(version);
    const Status status = f.store().Reach(version).status();
    CHECK(absl::IsNotFound(status));
    Says(status, "reaches back to version 3");
  }
  std::vector<std::byte> data = f.versions()[5].bytes;
  std::vector<uint64_t> digests = f.versions()[5].digests;
  const Status beyond =
      f.store().UndoInto(data, *f.store().newest(), f.versions()[1].identity, digests);
  CHECK(absl::IsDataLoss(beyond));
  Says(beyond, "tensor a");
}

TEST_CASE("version store: the way back goes as far as the log and to the newest of a number") {
  HandPublished f(8, 60'000);
  for (uint64_t v = 1; v <= 8; ++v) f.Publish({.version = v, .chunks = {0}});
  const size_t deltas = f.store().newest()->log.size();
  REQUIRE((deltas > 1 && deltas < 7));
  for (uint64_t v = 1; v <= 7; ++v) CHECK(f.store().Reach(v).ok() == (v >= 8 - deltas));
  f.Publish({.version = 8, .chunks = {0}, .attempt = 2});
  f.Publish({.version = 9, .chunks = {0}});
  CHECK(*f.store().Reach(8) == f.versions()[8].identity);
}

TEST_CASE("version store: undoing gives the bytes and the digests of any version in reach") {
  const uint64_t seed = GENERATE(range(20, 24));
  CAPTURE(seed);
  HandPublished f(seed);
  for (uint64_t v = 1; v <= 7; ++v) f.Publish({.version = v, .chunks = f.SomeChunks()});
  for (uint64_t v = 1; v <= 6; ++v) {
    CAPTURE(v);
    const PublishedVersion& target = f.versions()[v - 1];
    std::vector<std::byte> data = f.versions()[6].bytes;
    std::vector<uint64_t> digests = f.versions()[6].digests;
    REQUIRE(f.store().UndoInto(data, *f.store().newest(), target.identity, digests) ==
            absl::OkStatus());
    CHECK(data == target.bytes);
    CHECK(digests == target.digests);
  }
}

TEST_CASE("version store: nothing is undone from a base that is another one") {
  HandPublished f(9);
  for (uint64_t v = 1; v <= 3; ++v) f.Publish({.version = v, .chunks = {1}});
  const auto newest = f.store().newest();
  std::vector<std::byte> data = f.versions()[2].bytes;
  std::vector<uint64_t> digests = f.versions()[2].digests;
  SECTION("by its digest") {
    digests[1] ^= 1;
    const Status status = f.store().UndoInto(data, *newest, f.versions()[0].identity, digests);
    CHECK(absl::IsDataLoss(status));
    Says(status, "tensor b");
  }
  SECTION("by a publish since") {
    f.Publish({.version = 4, .chunks = {1}});
    CHECK(absl::IsAborted(f.store().UndoInto(data, *newest, f.versions()[0].identity, digests)));
    CHECK(data == f.versions()[2].bytes);
    CHECK(digests == f.versions()[2].digests);
  }
  SECTION("of a version that never was") {
    CHECK(absl::IsAborted(f.store().UndoInto(data, *newest, Named(7), digests)));
    CHECK(data == f.versions()[2].bytes);
  }
}

TEST_CASE("version store: side files are there for whoever may still ask for them") {
  HandPublished f(10, 1);
  const auto publish = [&](uint64_t version) {
    return f.Publish({.version = version, .chunks = {0}, .side_file = std::to_string(version)});
  };
  const auto has = [&](uint64_t version) {
    const uint64_t hash = f.versions()[version - 1].side_files_hash;
    const auto set = f.store().side_files(hash);
    return set != nullptr && set->hash == hash && set->files[0].content == std::to_string(version);
  };
  auto was_newest = publish(1);
  publish(2);
  publish(3);
  auto was_made = f.store().At(f.versions()[1].identity);
  REQUIRE(was_made.ok());
  for (uint64_t v = 4; v <= 20; ++v) {
    publish(v);
    CHECK(has(v));
    // The log still leads on from version v - 1, and a pull may just have ended at v - 2.
    CHECK(has(v - 1));
    CHECK(has(v - 2));
    CHECK((has(1) && has(2)));
  }
  CHECK(!has(3));
  was_newest = nullptr;
  CHECK((!has(1) && has(2)));
  *was_made = nullptr;
  CHECK(!has(2));
  // Versions that bring no new set do not drive out the last sets.
  for (uint64_t v = 21; v <= 40; ++v) {
    f.Publish({.version = v, .chunks = {0}, .side_file = "20"});
  }
  CHECK((has(19) && has(20)));
}

TEST_CASE("version store: who reads beside a publisher sees whole versions") {
  const uint64_t seed = 11;
  CAPTURE(seed);
  HandPublished f(seed, 100'000);
  f.Publish({.version = 1});
  std::atomic<bool> over{false};
  std::atomic<uint64_t> read{0}, wrong{0};
  const auto check = [&](const Published& state) {
    const bool right = RootOf(*state.digests, f.owned) == state.info.identity.root &&
                       (state.log.empty() || state.log.back()->to() == state.info.id()) &&
                       f.store().side_files(state.side_files->hash) != nullptr;
    ++(right ? read : wrong);
  };
  std::vector<std::thread> readers;
  for (uint64_t n = 0; n < 2; ++n) {
    readers.emplace_back([&, n] {
      kernels::test::Random random(seed + n);
      while (!over) {
        const auto newest = f.store().newest();
        check(*newest);
        if (newest->log.empty()) continue;
        const StateId from = newest->log[random.Below(newest->log.size())]->from();
        const auto at = f.store().At(Named(from.version));
        if (at.ok() ? (*at)->info.id() != from : !absl::IsAborted(at.status())) ++wrong;
        if (at.ok()) check(**at);
      }
    });
  }
  for (uint64_t v = 2; v <= 100; ++v) f.Publish({.version = v, .chunks = f.SomeChunks()});
  while (read + wrong < 100) std::this_thread::yield();
  over = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace deltawire::sender::version_store_test
