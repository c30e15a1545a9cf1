// EncodedCache: a payload is made once for all who ask for it, nobody waits for another thread, and
// the cache keeps to its bound.
#include "common/serving/encoded_cache.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <new>
#include <span>
#include <thread>

namespace deltawire::encoded_cache_test {
namespace {

using kernels::Codec;

constexpr uint64_t kEntry = EncodedCache::kEntryBytes;
constexpr size_t kSize = 1000;
constexpr auto kSkip = EncodedCache::IfBusy::kSkip, kMake = EncodedCache::IfBusy::kMake;

EncodedCache::Value Made(size_t bytes) {
  auto memory = std::make_shared<std::vector<std::byte>>(bytes);
  auto value = std::make_shared<Encoded>();
  value->bytes = *memory;
  value->keep = std::move(memory);
  return value;
}

}  // namespace

TEST_CASE("many threads that ask for one payload share it, and none waits for it") {
  EncodedCache cache(1 << 20);
  const ChunkDelta first;
  const EncodedCache::Key key{&first, Codec::kTight, 2};
  std::atomic<int> made{0}, busy{0};
  std::vector<EncodedCache::Value> got(8);
  std::vector<std::thread> threads;
  for (auto& value : got) {
    threads.emplace_back([&] {
      const auto make = [&] {
        while (busy < 7) std::this_thread::yield();  // all others have their answer before
        ++made;
        return Made(10);
      };
      auto answer = cache.Get(key, make, kSkip);
      if (answer.busy) ++busy;
      while (answer.busy) answer = cache.Get(key, make, kSkip);
      value = answer.value;
    });
  }
  for (auto& t : threads) t.join();
  CHECK(made == 1);
  for (const auto& value : got) CHECK((value != nullptr && value == got[0]));
}

TEST_CASE("whoever cannot skip a busy payload makes it for itself, and the first one is kept") {
  EncodedCache cache(1 << 20);
  const ChunkDelta first;
  const EncodedCache::Key key{&first, Codec::kTight, 0};
  const auto kept = Made(1);
  const auto make = [&] {
    CHECK(cache
              .Get(
                  key, [] { return Made(2); }, kSkip)
              .busy);
    CHECK(cache
              .Get(
                  key, [] { return Made(2); }, kMake)
              .value->bytes.size() == 2);
    CHECK_FALSE(cache.Has(key));
    return kept;
  };
  CHECK(cache.Get(key, make, kSkip).value == kept);
  CHECK(cache
            .Get(
                key, [] { return Made(3); }, kMake)
            .value == kept);
}

TEST_CASE("a payload that cannot be made, or whose making throws, is not busy afterwards") {
  EncodedCache cache(1 << 20);
  const ChunkDelta first;
  const EncodedCache::Key key{&first, Codec::kTight, 0};
  const auto got = cache.Get(
      key, [] { return EncodedCache::Value(); }, kSkip);
  CHECK((!got.busy && got.value == nullptr));
  const auto throws = []() -> EncodedCache::Value { throw std::bad_alloc(); };
  CHECK_THROWS_AS(cache.Get(key, throws, kSkip), std::bad_alloc);
  CHECK(cache.counts().bytes == 0);
  CHECK(cache
            .Get(
                key, [] { return Made(1); }, kSkip)
            .value != nullptr);
  CHECK(cache.Has(key));
}

TEST_CASE("retired caches keep one limit together, and give up their own payloads only") {
  constexpr uint64_t kLimit = 4 * (kSize + kEntry);
  const auto totals = std::make_shared<EncodedCache::Totals>();
  const std::vector<ChunkDelta> deltas(8);
  const auto fill = [&](EncodedCache& cache, size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) {
      cache.Get(
          {&deltas[i], Codec::kTight, 0}, [] { return Made(kSize); }, kSkip);
    }
  };
  auto one = std::make_unique<EncodedCache>(kLimit, totals);
  fill(*one, 0, 3);
  one->Retire(kLimit);
  CHECK(one->counts().bytes == 3 * (kSize + kEntry));
  EncodedCache two(kLimit, totals);
  fill(two, 0, 4);
  CHECK(totals->counts().bytes == 7 * (kSize + kEntry));
  two.Retire(kLimit);
  CHECK(one->counts().bytes == 3 * (kSize + kEntry));
  CHECK(two.counts().bytes == kSize + kEntry);
  // A new payload takes the place of an older one of the same cache.
  fill(two, 4, 8);
  CHECK(totals->counts().bytes <= kLimit);
  one.reset();
  fill(two, 4, 8);
  CHECK(two.counts().bytes == kLimit);
  EncodedCache gone(kLimit, totals);
  fill(gone, 0, 2);
  gone.Retire(0);
  CHECK(gone.counts().bytes == 0);
}

TEST_CASE("delta, codec, depth and context tell payloads apart") {
  EncodedCache cache(1 << 20);
  const ChunkDelta a, b;
  int made = 0;
  const auto make = [&] {
    ++made;
    return Made(1);
  };
  const EncodedCache::Key keys[] = {{&a, Codec::kTight, 0},
                                    {&b, Codec::kTight, 0},
                                    {&a, Codec::kDense, 0},
                                    {&a, Codec::kTight, 1, 7},
                                    {&a, Codec::kTight, 1, 8}};
  for (const auto& key : keys) CHECK_FALSE(cache.Has(key));
  for (int round = 0; round < 2; ++round) {
    for (const auto& key : keys) cache.Get(key, make, kSkip);
  }
  CHECK(made == 5);
  for (const auto& key : keys) CHECK(cache.Has(key));
  CHECK(cache.counts().bytes == 5 * (1 + kEntry));
}

TEST_CASE("a payload that has no room even in an empty half takes no other's place") {
  EncodedCache cache(4 * (kSize + kEntry));
  const std::vector<ChunkDelta> deltas(5);
  const auto get = [&](size_t i, size_t bytes) {
    const EncodedCache::Key key{&deltas[i], Codec::kTight, 0};
    cache.Get(
        key, [&] { return Made(bytes); }, kSkip);
    return cache.Has(key);
  };
  for (size_t i = 0; i < 4; ++i) CHECK(get(i, kSize));
  CHECK_FALSE(get(4, 3 * kSize + 2 * kEntry));
  CHECK(cache.counts().evicted == 0);
  for (const ChunkDelta& delta : std::span(deltas).first(4)) {
    CHECK(cache.Has({&delta, Codec::kTight, 0}));
  }
}

TEST_CASE(
    "beyond the limit half of the room stays, and in the other the newest replace the oldest") {
  EncodedCache cache(8 * (kSize + kEntry));
  const std::vector<ChunkDelta> deltas(100);
  const auto key = [&](size_t i) { return EncodedCache::Key{&deltas[i], Codec::kTight, 0}; };
  int made = 0;
  const auto get = [&](size_t i, size_t bytes = kSize) {
    const auto make = [&] {
      ++made;
      return Made(bytes);
    };
    const auto got = cache.Get(key(i), make, kSkip);
    REQUIRE(got.value != nullptr);
    CHECK(got.value->bytes.size() == bytes);
    CHECK(cache.counts().bytes <= 8 * (kSize + kEntry));
  };
  for (size_t i = 0; i < 50; ++i) {
    // Three receivers that are in step find what the first of them had made.
    for (int receiver = 0; receiver < 3; ++receiver) get(i);
  }
  CHECK(made == 50);
  for (size_t i = 0; i < 50; ++i) CHECK(cache.Has(key(i)) == (i < 4 || i >= 46));
  CHECK(cache.counts().evicted == 42);
  // One that comes late finds what has stayed.
  for (size_t i = 0; i < 4; ++i) get(i);
  CHECK(made == 50);
  // One that takes more than there is room for is handed on.
  get(60, 8 * kSize);
  CHECK_FALSE(cache.Has(key(60)));
  // Payloads without bytes have their place, too, and so their bound.
  for (size_t i = 60; i < 100; ++i) get(i, 0);
  CHECK(cache.counts().bytes > 8 * kSize);
}

TEST_CASE("the totals are of all caches of a model, and keep what was evicted") {
  const auto totals = std::make_shared<EncodedCache::Totals>();
  const std::vector<ChunkDelta> deltas(6);
  const auto fill = [&](EncodedCache& cache, size_t payloads) {
    for (size_t i = 0; i < payloads; ++i) {
      cache.Get(
          {&deltas[i], Codec::kTight, 0}, [] { return Made(kSize); }, kSkip);
    }
  };
  auto before = std::make_unique<EncodedCache>(4 * (kSize + kEntry), totals);
  EncodedCache now(4 * (kSize + kEntry), totals);
  fill(*before, 6);
  fill(now, 1);
  CHECK(totals->counts().bytes == 5 * (kSize + kEntry));
  CHECK(totals->counts().evicted == 2);
  before.reset();
  CHECK(totals->counts().bytes == kSize + kEntry);
  CHECK(totals->counts().evicted == 2);
}

TEST_CASE("a payload that was made elsewhere is found, and does not replace one") {
  EncodedCache cache(1 << 20);
  const ChunkDelta a;
  const EncodedCache::Key key{&a, Codec::kTight, 3, 9};
  CHECK_FALSE(cache.has_foreign());
  const auto came = Made(5);
  cache.Put(key, came);
  cache.Put(key, Made(6));
  CHECK(cache.has_foreign());
  CHECK(cache
            .Get(
                key, [] { return Made(7); }, kSkip)
            .value == came);
}

}  // namespace deltawire::encoded_cache_test
