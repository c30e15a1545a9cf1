// What the state file claims must be true after a SIGKILL at any moment. Long runs are killed at
// random moments, and short ones are looked at after every single instruction.
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <optional>
#include <random>
#include <vector>

#include "common/shm/state_file.h"
#include "tests/support/forked.h"
#include "tests/support/temp_dir.h"

namespace deltawire::state_crash_test {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kChunks = 4;
constexpr uint32_t kSlots = 2;
constexpr size_t kChunkWords = 8;

/// Memory that parent and child share: two slots of data, which stand for the buffer files, and a
/// counter of steps.
struct Shared {
  std::atomic<uint64_t> steps;
  uint64_t data[kSlots][kChunks][kChunkWords];
};

class SharedMemory {
 public:
  SharedMemory()
      : at_(::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                   0)) {
    REQUIRE(at_ != MAP_FAILED);
  }
  ~SharedMemory() { ::munmap(at_, sizeof(Shared)); }
  Shared& operator*() const { return *static_cast<Shared*>(at_); }

 private:
  void* at_;
};

/// A chunk's word. Versions 2n and 2n+1 have the same bytes, so a chunk can go from one to the
/// other without a write. Their digests differ nevertheless, so a version beside the wrong digest
/// is noticed.
uint64_t WordOf(uint32_t chunk, uint64_t version, size_t word) {
  return (version / 2 + 1) * 0x9e3779b97f4a7c15 + chunk * 1000 + word;
}
Identity IdentityOf(StateId id) {
  const uint64_t mix = id.epoch * 1000 + id.version;
  return {.lineage = {mix ^ 1, mix ^ 2}, .id = id, .root = mix ^ 3, .attempt = mix ^ 4};
}
uint64_t DigestOf(uint32_t chunk, uint64_t version) { return version * 0x100000001b3 + chunk; }

/// Writes versions into the slots as the buffer's owner would, in an order that follows from the
/// seed. Runs in the child.
class Owner {
 public:
  Owner(StateFile& state, Shared& shared, uint64_t seed)
      : state_(state), shared_(shared), rng_(seed) {}

  void OneVersion() {
    const uint32_t slot = rng_() % kSlots;
    ++version_;
    if (rng_() % 8 == 0) ++epoch_;
    state_.BeginWrite(slot);
    Step();
    const bool abandon = rng_() % 4 == 0;
    const uint32_t first = rng_() % kChunks;
    const uint32_t writes = abandon ? rng_() % kChunks : kChunks;
    for (uint32_t i = 0; i < writes; ++i) WriteChunk(slot, (first + i) % kChunks, abandon);
    if (abandon) return;
    state_.FinishWrite(slot, IdentityOf({epoch_, version_}));
    Step();
    state_.set_active(slot);
    Step();
  }

 private:
  void Step() { shared_.steps.fetch_add(1, std::memory_order_relaxed); }

  void WriteChunk(uint32_t slot, uint32_t chunk, bool abandon) {
    const uint64_t held = state_.chunk_version(slot, chunk);
    const bool same_bytes = held != kVersionUnknown && held / 2 == version_ / 2;
    if (!same_bytes) {
      state_.MarkUnknown(slot, chunk);
      Step();
      for (size_t w = 0; w < kChunkWords; ++w) {
        shared_.data[slot][chunk][w] = WordOf(chunk, version_, w);
        if (w % 4 == 0) Step();
        if (abandon && rng_() % 64 == 0) return;
      }
    }
    state_.SetChunk(slot, chunk, version_, DigestOf(chunk, version_));
    Step();
  }

  StateFile& state_;
  Shared& shared_;
  std::mt19937_64 rng_;
  uint64_t version_ = 0;
  uint64_t epoch_ = 1;
};

/// Says which claim of the state file about `slot` is false; empty when all are true.
template <typename State>
std::string FalseClaim(const State& state, uint32_t slot, SlotPhase phase, const Identity& identity,
                       const Shared& shared) {
  const StateId id = identity.id;
  if (!identity.empty() &&
      (!(identity == IdentityOf(id)) || identity.attempt != IdentityOf(id).attempt)) {
    return fmt::format("slot {} has half of an identity", slot);
  }
  for (uint32_t c = 0; c < kChunks; ++c) {
    const uint64_t version = state.chunk_version(slot, c);
    if (phase == SlotPhase::kWhole && version != id.version) {
      return fmt::format("slot {} wholly {}, chunk {} of it {}", slot, id.version, c, version);
    }
    if (version == kVersionUnknown) continue;
    if (phase == SlotPhase::kEmpty) return fmt::format("slot {} empty, chunk {} known", slot, c);
    if (state.chunk_digest(slot, c) != DigestOf(c, version)) {
      return fmt::format("slot {} chunk {} version {} with another's digest", slot, c, version);
    }
    for (size_t w = 0; w < kChunkWords; ++w) {
      if (shared.data[slot][c][w] != WordOf(c, version, w)) {
        return fmt::format("slot {} chunk {} is not version {} at word {}", slot, c, version, w);
      }
    }
  }
  return {};
}

TEST_CASE("a SIGKILL at a random moment leaves only true claims") {
  const TempDir temp;
  const fs::path path = temp.path() / "state";
  uint32_t mid_write = 0;
  uint32_t whole = 0;
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    CAPTURE(seed);
    const SharedMemory memory;
    Shared& shared = *memory;
    REQUIRE(StateFile::Create(path, {kChunks, kSlots, {}, 0}).ok());
    const uint64_t kill_after = 1 + std::mt19937_64(seed)() % 4000;
    testing::Forked child([&] {
      auto state = StateFile::Open(path);
      if (!state.ok()) ::_exit(1);
      Owner owner(*state, shared, seed);
      for (;;) owner.OneVersion();
    });
    while (shared.steps.load(std::memory_order_relaxed) < kill_after) {
      if (child.Ended()) FAIL("the owner ended by itself");
    }
    child.Kill();
    const int status = child.Wait();
    REQUIRE(WIFSIGNALED(status));
    REQUIRE(WTERMSIG(status) == SIGKILL);

    const auto state = StateFile::Open(path);
    REQUIRE(state.ok());
    for (uint32_t s = 0; s < kSlots; ++s) {
      CHECK(FalseClaim(*state, s, state->phase(s), state->identity(s), shared) == "");
      const bool writing = state->phase(s) == SlotPhase::kWriting;
      CHECK((state->sequence(s) % 2 != 0) == writing);
      (writing ? mid_write : whole) += 1;
    }
  }
  CHECK(mid_write > 20);  // the kills hit both phases often enough
  CHECK(whole > 20);
}

/// Runs `body` in a child, one instruction at a time, and calls `inspect` after each until it
/// returns false. Returns the number of instructions, or nullopt where processes may not be traced.
std::optional<uint64_t> SingleStep(const std::function<void()>& body,
                                   const std::function<bool()>& inspect) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(2);
    ::raise(SIGSTOP);
    body();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFEXITED(status)) {
    REQUIRE(WEXITSTATUS(status) == 2);
    return std::nullopt;
  }
  uint64_t steps = 0;
  bool go_on = true;
  while (go_on && ::ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) == 0) {
    if (::waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) break;
    ++steps;
    go_on = inspect();
  }
  if (WIFSTOPPED(status)) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
  } else {
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
  return steps;
}

TEST_CASE("after every single instruction of the owner only true claims stand in the file") {
  const TempDir temp;
  const fs::path path = temp.path() / "state";
  for (const uint64_t seed : {11, 12, 13}) {
    CAPTURE(seed);
    const SharedMemory memory;
    Shared& shared = *memory;
    auto state = StateFile::Create(path, {kChunks, kSlots, {}, 0});
    REQUIRE(state.ok());
    const auto reader = StateReader::Open(path);
    REQUIRE(reader.ok());
    Owner owner(*state, shared, seed);
    std::string wrong;
    StateId last[kSlots];
    uint64_t commits = 0;
    const auto steps = SingleStep(
        [&] {
          for (int i = 0; i < 6; ++i) owner.OneVersion();
        },
        [&] {
          for (uint32_t s = 0; s < kSlots && wrong.empty(); ++s) {
            const StateReader::Slot slot = reader->slot(s);
            wrong = FalseClaim(*reader, s, slot.phase, slot.identity, shared);
            if (slot.id() == last[s]) continue;
            // A slot's id changes in one step, only forwards, and only while the whole slot is that
            // version.
            if (slot.phase != SlotPhase::kWhole || slot.id() < last[s]) {
              wrong = fmt::format("slot {} turned from {} into {}", s, ToString(last[s]),
                                  ToString(slot.id()));
            }
            last[s] = slot.id();
            ++commits;
          }
          return wrong.empty();
        });
    if (!steps) {
      WARN("SKIPPED: processes may not be traced here; only the random kills were checked");
      return;
    }
    CAPTURE(*steps);
    CHECK(wrong == "");
    CHECK(*steps > 1000);
    CHECK(commits >= 3);
  }
}

}  // namespace
}  // namespace deltawire::state_crash_test
