// EncodedCache: a payload is made once for all who ask for it, and the cache keeps to its bound.
#include "common/serving/encoded_cache.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

namespace deltawire {
namespace {

using kernels::Codec;

EncodedCache::Value Made(size_t bytes) {
  auto value = std::make_shared<Encoded>();
  value->bytes.resize(bytes);
  return value;
}

}  // namespace

TEST_CASE("many threads that ask for one payload share it") {
  EncodedCache cache(1 << 20);
  const ChunkDelta first;
  const EncodedCache::Key key{&first, Codec::kTight, 2};
  std::atomic<int> made{0}, asked{0};
  std::vector<EncodedCache::Value> got(8);
  std::vector<std::thread> threads;
  for (auto& value : got) {
    threads.emplace_back([&] {
      ++asked;
      value = cache.Get(key, [&] {
        while (asked < 8) std::this_thread::yield();  // all threads ask before it is made
        ++made;
        return Made(10);
      });
    });
  }
  for (auto& t : threads) t.join();
  CHECK(made == 1);
  for (const auto& value : got) CHECK(value == got[0]);
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
    for (const auto& key : keys) cache.Get(key, make);
  }
  CHECK(made == 5);
  for (const auto& key : keys) CHECK(cache.Has(key));
}

TEST_CASE("what does not fit the limit, or was not made, is handed on and made again") {
  EncodedCache cache(100);
  const ChunkDelta a, b, c;
  int made = 0;
  const auto get = [&](const ChunkDelta& d, size_t bytes) {
    return cache.Get({&d, Codec::kTight, 0}, [&] {
      ++made;
      return Made(bytes);
    });
  };
  CHECK(get(a, 60)->bytes.size() == 60);
  CHECK(get(b, 60)->bytes.size() == 60);
  CHECK(get(a, 60) != nullptr);
  CHECK(made == 2);
  CHECK(get(b, 60) != nullptr);
  CHECK(made == 3);
  CHECK_FALSE(cache.Has({&b, Codec::kTight, 0}));
  CHECK(cache.Get({&c, Codec::kTight, 0}, [] { return EncodedCache::Value(); }) == nullptr);
  CHECK(get(c, 40) != nullptr);
  CHECK(cache.Has({&c, Codec::kTight, 0}));
}

}  // namespace deltawire
