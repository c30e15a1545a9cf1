// An update where memory is short: what Apply needs is taken by Prepare, so that no write ends in
// its middle. This program counts the memory that is asked for, and refuses it.
#include <sys/resource.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>

#include "tests/unit/engine_client/engine_pair.h"

namespace {

constexpr size_t kNever = ~size_t{0};
std::atomic<bool> g_watched{false};
std::atomic<size_t> g_asked{0};               // since Watch began
std::atomic<size_t> g_refused_after{kNever};  // so many are granted
std::atomic<size_t> g_refused_from{kNever};   // bytes

/// While it lives, memory is counted, and refused as it says.
class Watch {
 public:
  explicit Watch(size_t refused_after = kNever, size_t refused_from = kNever) {
    g_asked = 0;
    g_refused_after = refused_after;
    g_refused_from = refused_from;
    g_watched = true;
  }
  ~Watch() { g_watched = false; }
  size_t asked() const { return g_asked; }
};

}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  if (g_watched) {
    if (bytes >= g_refused_from || g_asked >= g_refused_after) throw std::bad_alloc();
    ++g_asked;
  }
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
// A sanitizer's own form of this would not use the one above, and then frees what it did not give.
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept try {
  return ::operator new(bytes);
} catch (const std::bad_alloc&) {
  return nullptr;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace deltawire::engine::apply_memory_test {
namespace {

using receiver::FakeAgent;

/// Applies, and says how often memory was asked for.
size_t AskedByApply(Pair& p) {
  REQUIRE(p.weights->Prepare().ok());
  const Watch watch;
  REQUIRE(p.weights->Apply() == absl::OkStatus());
  return watch.asked();
}

TEST_CASE("engine weights: what Apply asks for does not grow with the update") {
  Pair p(2, 1);
  auto one = p.now;
  one[0][0] ^= std::byte{1};
  p.Publish(one);
  const size_t least = AskedByApply(p);
  const auto first = p.now;
  for (uint64_t v = 3; v < 12; ++v) p.Publish(FakeAgent::Step(p.now, v));
  CHECK(AskedByApply(p) == least);
  REQUIRE(p.engine.Holds(p.now));
  {
    const Watch watch;
    REQUIRE(p.weights->Rollback() == absl::OkStatus());
    CHECK(watch.asked() <= least);
  }
  REQUIRE(p.engine.Holds(first));
  p.Publish(FakeAgent::Make(p.rig.layout, 77), true);  // all of it whole, from the buffer
  CHECK(AskedByApply(p) == least);
  CHECK(p.engine.Holds(p.now));
}

TEST_CASE(
    "engine weights: an update that finds no memory has written nothing and can be repeated") {
  const bool whole = GENERATE(false, true);
  CAPTURE(whole);
  Pair p(2, 1);
  const auto before = p.now;
  const Identity held = p.weights->held();
  p.Publish(whole ? FakeAgent::Make(p.rig.layout, 77) : FakeAgent::Step(p.now, 2), whole);
  if (!whole) {
    // The threads' scratch is by far the largest that is asked for.
    {
      const Watch watch(kNever, kernels::kChangesScratchBytes);
      REQUIRE_THROWS_AS(p.weights->Prepare(), std::bad_alloc);
    }
    REQUIRE(p.weights->Apply().code() == StatusCode::kFailedPrecondition);
  }
  REQUIRE(p.weights->Prepare().ok());
  for (size_t granted = 0;; ++granted) {
    CAPTURE(granted);
    REQUIRE(granted < 100);
    bool refused = false;
    Status applied;
    {
      const Watch watch(granted);
      try {
        applied = p.weights->Apply();
      } catch (const std::bad_alloc&) {
        refused = true;
      }
    }
    if (!refused) {
      CHECK(granted > 0);
      REQUIRE(applied == absl::OkStatus());
      break;
    }
    REQUIRE(p.engine.Holds(before));
    REQUIRE(p.weights->held() == held);
  }
  REQUIRE(p.engine.Holds(p.now));
  REQUIRE(p.weights->Rollback() == absl::OkStatus());
  CHECK(p.engine.Holds(before));
}

long MinorFaults() {
  rusage usage{};
  REQUIRE(::getrusage(RUSAGE_SELF, &usage) == 0);
  return usage.ru_minflt;
}

TEST_CASE("engine weights: the memory for whole chunks is there before Apply, not only promised") {
  constexpr size_t kBytes = 32 << 20;
  constexpr long kPages = kBytes / 4096;
  const Layout layout = *Layout::Create({{"a", DType::kU8, {kBytes}}});
  TempDir dir;
  const auto buffer =
      *receiver::CreateBuffer(dir.path(), std::make_shared<DirLock>(*DirLock::Acquire(dir.path())),
                              layout, 5, {.buffers = 2, .huge_pages = false});
  const auto commit = [&](uint64_t version) {
    REQUIRE(*buffer->update().Begin());
    Identity whole{.lineage = {1, 2}, .id = {1, version}};
    for (uint32_t i = 0; i < buffer->chunks().size(); ++i) {
      buffer->bases().MarkUnknown(i);
      const MutableBytes bytes = buffer->bases().chunk(i);
      std::memset(bytes.data(), static_cast<int>(version), bytes.size());
      const uint64_t digest = kernels::Best().digest(buffer->key(), bytes);
      buffer->bases().Set(i, version, digest);
      whole.root += RootTerm(i, digest);
    }
    REQUIRE(buffer->update().Commit(whole, {}) == absl::OkStatus());
  };
  commit(1);
  std::vector<std::byte> memory(kBytes, std::byte{1});
  const auto weights = *EngineWeights::Open(dir.path(), 1);
  Box box{.tensor = 0, .storage = 0, .copy = {}};
  box.copy.run_bytes = kBytes;
  REQUIRE(weights->Bind({{{"a", kBytes}}, {memory.data()}, {box}}) == absl::OkStatus());
  REQUIRE(weights->Adopt()->different.empty());
  commit(2);
  REQUIRE(weights->Prepare()->chunks_whole == buffer->chunks().size());
  const long before = MinorFaults();
  REQUIRE(weights->Apply() == absl::OkStatus());
  CHECK(MinorFaults() - before < kPages / 100);
  CHECK(memory == std::vector<std::byte>(kBytes, std::byte{2}));
  REQUIRE(weights->Rollback() == absl::OkStatus());
  CHECK(memory == std::vector<std::byte>(kBytes, std::byte{1}));
}

}  // namespace
}  // namespace deltawire::engine::apply_memory_test
