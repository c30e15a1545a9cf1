// What a receiver takes up when it starts again, also after a SIGKILL.
#include <atomic>
#include <catch2/catch.hpp>

#include "receiver/buffer/buffer.h"
#include "receiver/buffer/catch_up.h"
#include "receiver/buffer/recovery.h"
#include "tests/support/forked.h"
#include "tests/unit/receiver/buffer/buffer_rig.h"

namespace deltawire::receiver::buffer_recover_test {
namespace {

TEST_CASE("weights that changed while the receiver was down are not given their name") {
  for (const uint32_t buffers : {1, 2}) {
    BufferRig s({.buffers = buffers, .huge_pages = false});
    REQUIRE(s.Update(1) == absl::OkStatus());
    const uint64_t at = fs::file_size(s.weights()) - 5;
    {
      std::fstream(s.weights(), std::ios::in | std::ios::out).seekp(static_cast<long>(at)) << "zap";
    }
    s.Restart();
    CHECK(s.buffer->committed().empty());
    CHECK(s.buffer->last_whole() == BufferRig::At(*s.buffer, 1));
    CHECK_FALSE(fs::exists(s.weights()));
    CHECK(s.buffer->bases().known(0));
    CHECK_FALSE(s.buffer->bases().known(2));
    REQUIRE(s.Update(1) == absl::OkStatus());
  }
}

TEST_CASE("a receiver's own directory without its state file is taken over and no other") {
  BufferRig s({.buffers = 1, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  s.buffer.reset();
  fs::remove(s.dir.path() / ".deltawire.state");
  CHECK(RecoverBuffer(s.dir.path(), s.Lock(), s.options).status().code() == StatusCode::kNotFound);
  auto again = CreateBuffer(s.dir.path(), s.Lock(), MakeLayout(), kSeed, s.options);
  REQUIRE(again.status() == absl::OkStatus());
  CHECK((*again)->committed().empty());
  CHECK_FALSE(fs::exists(s.weights()));

  const TempDir foreign;
  auto lock = std::make_shared<DirLock>(*DirLock::Acquire(foreign.path()));
  std::ofstream(foreign.path() / "model.safetensors") << "somebody's model";
  for (int i = 0; i < 2; ++i) {
    CHECK(CreateBuffer(foreign.path(), lock, MakeLayout(), kSeed, s.options).status().code() ==
          StatusCode::kFailedPrecondition);
    CHECK(ReadFile(foreign.path() / "model.safetensors") == "somebody's model");
  }
}

TEST_CASE("a sender's directory is no receiver's, though their state files have one name") {
  const TempDir dir;
  for (const char* name : {".deltawire.state", ".deltawire.lock", "half-1.safetensors"}) {
    std::ofstream(dir.path() / name) << "a sender's";
  }
  const Status refused = CheckDirectory(dir.path());
  CHECK(refused.code() == StatusCode::kFailedPrecondition);
  CHECK(refused.message().find("a sender's directory") != std::string::npos);
}

TEST_CASE("the file that has the name is taken up though the state file has not followed yet") {
  BufferRig s({.buffers = 2, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  REQUIRE(s.Update(2, {{"config.json", "two"}}) == absl::OkStatus());
  s.buffer.reset();
  {  // as a SIGKILL leaves it between the two
    auto state = StateFile::Open(s.dir.path() / ".deltawire.state");
    REQUIRE(state.ok());
    state->set_active(1 - state->active());
  }
  s.Restart();
  CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 2));
  CHECK(ReadFile(s.dir.path() / "config.json") == "two");
  CHECK(StateFile::Open(s.dir.path() / ".deltawire.state")->identity(0).id.version == 1);
  REQUIRE(s.Update(3) == absl::OkStatus());
}

TEST_CASE("weights that cannot be checked at the start have no name from then on") {
  const uint32_t buffers = GENERATE(1u, 2u);
  BufferRig s({.buffers = buffers, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  REQUIRE(s.Update(2) == absl::OkStatus());
  s.buffer.reset();
  const fs::path state = s.dir.path() / ".deltawire.state";
  StatusCode code = StatusCode::kDataLoss;
  SECTION("the state file is damaged") {
    std::fstream(state, std::ios::in | std::ios::out).seekp(72) << "zap";
  }
  SECTION("it is gone") {
    fs::remove(state);
    code = StatusCode::kNotFound;
  }
  SECTION("it is of other weight files") {
    fs::copy_file(s.weights(), s.dir.path() / "copy");
    fs::rename(s.dir.path() / "copy", s.weights());
    if (buffers == 2) {
      fs::remove(s.dir.path() / ".model.safetensors.partial");
      fs::remove(s.dir.path() / ".model.safetensors.partial2");
    }
  }
  CHECK(RecoverBuffer(s.dir.path(), s.Lock(), s.options).status().code() == code);
  CHECK_FALSE(fs::exists(s.weights()));
  s.buffer = *CreateBuffer(s.dir.path(), s.Lock(), MakeLayout(), kSeed, s.options);
  REQUIRE(s.Update(3) == absl::OkStatus());
}

TEST_CASE("a buffer goes on in the other mode") {
  BufferRig s({.buffers = 1, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  for (const uint32_t buffers : {2, 1, 2}) {
    s.options.buffers = buffers;
    s.Restart();
    const uint64_t v = s.buffer->committed().id.version;
    for (uint64_t n = 1; n < 4; ++n) REQUIRE(s.Update(v + n) == absl::OkStatus());
    CHECK(fs::exists(s.dir.path() / ".model.safetensors.partial") +
              fs::exists(s.dir.path() / ".model.safetensors.partial2") ==
          static_cast<int>(buffers) - 1);
  }
}

/// Writes versions without end, in a child process that is killed.
void WriteVersions(const fs::path& dir, const Buffer::Options& options, uint64_t seed,
                   std::atomic<uint64_t>* committed) {
  auto lock = DirLock::Acquire(dir);
  if (!lock.ok()) ::_exit(3);
  auto shared = std::make_shared<DirLock>(std::move(*lock));
  auto buffer = RecoverBuffer(dir, shared, options);
  if (!buffer.ok()) ::_exit(4);
  std::mt19937_64 rng(seed);
  uint64_t v = committed->load();
  for (;;) {
    v += 1 + rng() % 2;
    const std::vector<SideFile> side = {{"config.json", fmt::format("{}", v / 3)},
                                        {fmt::format("f{}.json", v / 5 % 2), "x"}};
    const Status done = BufferRig::Update(**buffer, v, side);
    if (!done.ok()) ::_exit(5);
    committed->store(v);
    if (rng() % 2 == 0 && !CatchUpSecondFile(*(*buffer), {}, [] { return false; }).ok()) ::_exit(6);
  }
}

TEST_CASE("a SIGKILL at a random moment leaves one whole version, or none by its name") {
  for (const uint32_t buffers : {1, 2}) {
    const uint64_t seed0 = 1000 * buffers;
    BufferRig s({.buffers = buffers, .huge_pages = false});
    REQUIRE(s.Update(1) == absl::OkStatus());
    void* map = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto* committed = new (map) std::atomic<uint64_t>(1);
    uint32_t unnamed = 0;
    for (uint64_t seed = seed0; seed < seed0 + 60; ++seed) {
      CAPTURE(buffers, seed);
      std::mt19937_64 rng(seed);
      s.buffer.reset();
      s.lock.reset();
      const uint64_t begin = *committed, versions = 1 + rng() % 8;
      const uint64_t nanos = rng() % 300'000;
      testing::Forked child([&] { WriteVersions(s.dir.path(), s.options, seed, committed); });
      while (*committed < begin + versions) {
        if (const auto status = child.Ended()) {
          CAPTURE(WEXITSTATUS(*status));
          FAIL("the writer ended by itself");
        }
      }
      const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(nanos);
      while (std::chrono::steady_clock::now() < until) {
      }
      child.Kill();
      const uint64_t last = *committed;
      uint64_t version = 0;
      const std::string torn =
          Torn(s.weights(), MakeLayout(), *ChunkTable::Create(MakeLayout()), &version);
      if (buffers == 2) CHECK(torn == "");
      if (buffers == 1) CHECK((torn == "" || torn == "no file"));
      unnamed += torn != "";
      s.Restart();
      const Identity now = s.buffer->committed();
      if (!now.empty()) {
        CHECK(now.id.version >= last);
        CHECK(now == BufferRig::At(*s.buffer, now.id.version));
        CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
        CHECK(BufferRig::At(*s.buffer, version).root == now.root);
        CHECK(ReadFile(s.dir.path() / "config.json") == fmt::format("{}", now.id.version / 3));
        *committed = now.id.version;
      } else {
        CHECK(buffers == 1);
        CHECK_FALSE(fs::exists(s.weights()));
      }
      for (uint32_t i = 0; i < kChunks; ++i) {
        if (!s.buffer->bases().known(i)) continue;
        CHECK(kernels::Best().digest(s.buffer->key(), s.buffer->bases().bytes(i)) ==
              s.buffer->bases().digest(i));
      }
      if (now.empty()) {
        *committed = last + 3;
        REQUIRE(s.Update(*committed, {{"config.json", fmt::format("{}", *committed / 3)}}) ==
                absl::OkStatus());
      }
    }
    CHECK((buffers == 2 || unnamed > 3));
    ::munmap(map, 4096);
  }
}

}  // namespace
}  // namespace deltawire::receiver::buffer_recover_test
