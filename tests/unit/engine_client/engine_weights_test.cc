// An engine's memory beside a real receiver's directory. The memory is adopted, updated by deltas,
// by whole chunks and from far behind, rolled back, and checked.
#include "receiver/engine_client/engine_weights.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "tests/unit/engine_client/engine_pair.h"

namespace deltawire::engine::engine_weights_test {
namespace {

using receiver::FakeAgent;

TEST_CASE("engine weights: memory that holds the committed bytes is adopted, other memory named") {
  Pair p;
  CHECK(p.weights->held() == p.rig.buffer->committed());
  p.engine.memory[2][104] ^= std::byte{1};  // one of the engine's columns of t3
  const auto other = p.weights->Adopt();
  REQUIRE(other.ok());
  CHECK(other->different == std::vector<std::string>{"t3"});
  CHECK(other->bytes == 1000 + 1000 + 1000 + 400 + 1000 + 100);
}

TEST_CASE("engine weights: the version is that of the file that has the name") {
  Pair p;
  p.rig.Publish({1, 2}, receiver::FakeAgent::Step(p.now, 2));
  REQUIRE(p.rig.Pull() == absl::OkStatus());
  REQUIRE(p.weights->committed().id.version == 2);
  // A commit gives the name first, and another process may look before the state file follows.
  auto state = StateFile::Open(p.rig.dir.path() / ".deltawire.state");
  REQUIRE(state.ok());
  state->set_active(1 - state->active());
  CHECK(p.weights->committed() == p.rig.buffer->committed());
}

TEST_CASE("engine weights: a version whose commit failed behind its last byte is not committed") {
  Pair p;
  std::filesystem::remove(p.rig.dir.path() / "config.json");
  std::filesystem::create_directories(p.rig.dir.path() / "config.json" / "full");
  const auto before = p.rig.buffer->committed();
  p.rig.Publish({1, 2}, receiver::FakeAgent::Step(p.now, 2), 200);
  const auto round = p.rig.Round(p.rig.Newest());
  REQUIRE(p.rig.Run(*round) != absl::OkStatus());
  CHECK(p.weights->committed() == before);
}

TEST_CASE("engine weights: the changes of each delta reach every place that the engine has") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  Pair p(buffers);
  FollowDeltas(p, 29);
}

TEST_CASE("engine weights: one that fell behind takes all deltas at once, and back again") {
  Pair p;
  const auto first = p.now;
  for (uint64_t v = 2; v < 12; ++v) p.Publish(FakeAgent::Step(p.now, v));
  const UpdateInfo info = p.Update();
  CHECK(info.deltas == 10);
  REQUIRE(p.engine.Holds(p.now));
  REQUIRE(p.weights->Rollback() == absl::OkStatus());
  CHECK(p.engine.Holds(first));
}

TEST_CASE("engine weights: without a chain of deltas the changed chunks come from the buffer") {
  Pair p;
  const auto first = p.now;
  for (uint64_t v = 2; v < 5; ++v) p.Publish(FakeAgent::Step(p.now, v));
  std::filesystem::remove(*std::filesystem::directory_iterator(p.rig.dir.path() / kDeltaFolder));
  uint64_t changed = 0;
  for (size_t i = 0; i < first.size(); ++i) changed += first[i] != p.now[i];
  const UpdateInfo info = p.Update();
  CHECK(info.deltas == 0);
  CHECK(info.chunks_whole == changed);
  REQUIRE(p.engine.Holds(p.now));
  REQUIRE(p.weights->Rollback() == absl::OkStatus());
  CHECK(p.engine.Holds(first));
}

TEST_CASE("engine weights: chunks that came whole are read from the buffer, the others by delta") {
  Pair p;
  p.rig.at().agent.Set([](FakeAgent::Faults&) {});
  p.Publish(FakeAgent::Make(p.rig.layout, 77), true);
  const UpdateInfo info = p.Update();
  CHECK(info.chunks_whole == 6);
  CHECK(info.chunks_by_delta == 0);
  REQUIRE(p.engine.Holds(p.now));
}

TEST_CASE("engine weights: what is prepared holds up no commit, and is what it was prepared for") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  Pair p(buffers);
  const auto first = p.now;
  p.Publish(FakeAgent::Make(p.rig.layout, 77), true);  // all of it comes from the buffer
  const auto second = p.now;
  REQUIRE(p.weights->Prepare().ok());
  // Nobody applies it, and the receiver goes on all the same.
  for (uint64_t v = 3; v < 6; ++v) p.Publish(FakeAgent::Make(p.rig.layout, v), true);
  CHECK(p.rig.buffer->committed().id.version == 5);
  REQUIRE(p.weights->Apply() == absl::OkStatus());
  CHECK(p.weights->held().id.version == 2);
  REQUIRE(p.engine.Holds(second));
  REQUIRE(p.weights->Rollback() == absl::OkStatus());
  REQUIRE(p.engine.Holds(first));
  CHECK(p.Update().to.id.version == 5);
  REQUIRE(p.engine.Holds(p.now));
  // What was applied can be taken back also when nothing is prepared any more.
  p.weights->Discard();
  CHECK(p.weights->Apply().code() == StatusCode::kFailedPrecondition);
  REQUIRE(p.weights->Rollback() == absl::OkStatus());
  REQUIRE(p.engine.Holds(first));
  REQUIRE(p.weights->Prepare().ok());
  p.weights->Discard();
  CHECK(p.weights->ChangedTensors().empty());
  CHECK(p.weights->Apply().code() == StatusCode::kFailedPrecondition);
  CHECK(p.engine.Holds(first));
}

TEST_CASE("engine weights: one memory by two storages is refused where a byte has two boxes") {
  Pair p;
  Binding twice = p.engine.binding();
  // The memory of "qkv" once more, from its byte 100 on, as of one array that torch has twice.
  twice.storages.push_back({"tied", 2300});
  twice.memory.push_back(twice.memory[0] + 100);
  SECTION("t1 lies there already") {
    twice.boxes.push_back(MakeBox(5, 3, {}, 0, {}, 1200, {}, 1000));
    const Status refused = p.weights->Bind(twice);
    CHECK(refused.code() == StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(refused.message()), Catch::Contains("qkv and tied"));
    CHECK(p.weights->held().id.version == 1);  // what was bound before stays
  }
  SECTION("in between there is room") {
    // Bytes 1000 to 1199 of "qkv" are padding.
    twice.boxes.push_back(MakeBox(5, 3, {}, 0, {}, 900, {}, 200));
    CHECK(p.weights->Bind(twice) == absl::OkStatus());
  }
  SECTION("nothing of it has a box") { CHECK(p.weights->Bind(twice) == absl::OkStatus()); }
}

TEST_CASE("engine weights: the greatest differences of elements are added and subtracted again") {
  Pair p;
  auto chunks = p.now;
  for (const size_t t : {0, 2, 4}) {
    std::fill(chunks[t].begin(), chunks[t].end(), std::byte{0});
    std::fill_n(chunks[t].begin() + 100, 200, std::byte{0xff});
  }
  p.Publish(chunks);
  p.Update();
  REQUIRE(p.engine.Holds(chunks));
  auto next = chunks;
  for (const size_t t : {0, 2, 4}) {
    for (size_t i = 0; i < 600; i += 2) next[t][i] ^= std::byte{0xff};  // by up to 65535
    std::fill_n(next[t].begin() + 100, 20, std::byte{0});
  }
  p.Publish(next);
  CHECK(p.Update().chunks_by_delta > 0);
  REQUIRE(p.engine.Holds(next));
  REQUIRE(p.weights->Rollback() == absl::OkStatus());
  CHECK(p.engine.Holds(chunks));
}

TEST_CASE("engine weights: a delta file that is torn, or of another past, is passed over") {
  Pair p;
  p.Publish(FakeAgent::Step(p.now, 2));
  const std::filesystem::path file =
      *std::filesystem::directory_iterator(p.rig.dir.path() / kDeltaFolder);
  SECTION("a byte of it is another") {
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(-1, std::ios::end);
    f.put('x');
  }
  SECTION("it was cut") { std::filesystem::resize_file(file, 200); }
  SECTION("it is no file") {
    std::filesystem::remove(file);
    std::filesystem::create_directory(file);
  }
  const UpdateInfo info = p.Update();
  CHECK(info.deltas == 0);
  CHECK(p.engine.Holds(p.now));
}

/// The only delta file, as it is just before its checksum is written and it gets its name.
class Unfinished {
 public:
  explicit Unfinished(const std::filesystem::path& folder)
      : whole_(*std::filesystem::directory_iterator(folder)),
        hidden_(folder / ("." + whole_.filename().native() + ".new")) {
    std::filesystem::rename(whole_, hidden_);
    std::fstream f(hidden_, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(kChecksumAt).read(checksum_, sizeof checksum_);
    f.seekp(kChecksumAt).write("\0\0\0\0\0\0\0", sizeof checksum_);
  }
  void Finish() const {
    std::fstream f(hidden_, std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(kChecksumAt).write(checksum_, sizeof checksum_);
    f.close();
    std::error_code failed;
    std::filesystem::rename(hidden_, whole_, failed);
  }

 private:
  static constexpr std::streamoff kChecksumAt = 184;  // docs/delta_file.md
  const std::filesystem::path whole_, hidden_;
  char checksum_[8];
};

TEST_CASE("engine weights: a delta file that is still being written is waited for") {
  Pair p;
  p.Publish(FakeAgent::Step(p.now, 2));
  const Unfinished file(p.rig.dir.path() / kDeltaFolder);
  std::thread receiver([&] {
    // Several times what a file is waited for that nobody has begun to write.
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    file.Finish();
  });
  const auto info = p.weights->Prepare();
  receiver.join();
  REQUIRE(info.ok());
  CHECK(info->deltas == 1);
  CHECK(info->chunks_whole == 0);
}

TEST_CASE("engine weights: a delta file that a killed receiver left unfinished is given up") {
  Pair p;
  p.Publish(FakeAgent::Step(p.now, 2));
  const Unfinished file(p.rig.dir.path() / kDeltaFolder);
  const UpdateInfo info = p.Update();
  CHECK(info.deltas == 0);
  CHECK(p.engine.Holds(p.now));
}

TEST_CASE("engine weights: nothing is prepared for memory whose state is not known") {
  Pair p;
  REQUIRE(p.weights->Bind(p.engine.binding()) == absl::OkStatus());
  CHECK(p.weights->Prepare().status().code() == StatusCode::kFailedPrecondition);
  CHECK(p.weights->Apply().code() == StatusCode::kFailedPrecondition);
  p.engine.memory[0][0] ^= std::byte{1};
  REQUIRE(p.weights->Adopt().ok());
  CHECK(p.weights->held().empty());
}

TEST_CASE("engine weights: drift in the engine's memory is found and named") {
  Pair p;
  p.Publish(FakeAgent::Step(p.now, 2));
  p.Update();
  auto checked = p.weights->Check();
  REQUIRE(checked.ok());
  CHECK(checked->different.empty());
  const std::vector<Share>& parts = checked->shares;
  // This rank has only some columns of t3, so it gives a part of the digest; the other ranks'
  // columns give the rest.
  REQUIRE(parts.size() == 1);
  CHECK(parts[0].chunk == 3);
  CHECK(parts[0].bytes == 400);
  auto others = p.now[3];
  testing::ForEachRunOf(p.engine.boxes[3].copy, [&](uint64_t src, uint64_t) {
    std::fill_n(others.begin() + static_cast<ptrdiff_t>(src), 20, std::byte{0});
  });
  const kernels::DigestKey key(p.rig.layout.fingerprint().lo);
  CHECK(parts[0].digest + kernels::Best().digest(key, others) == *p.weights->DigestOf(3));

  SECTION("in a transposed tensor") { p.engine.memory[1][40] ^= std::byte{4}; }
  SECTION("in the second copy of a tensor") { p.engine.memory[0][2210] ^= std::byte{4}; }
  checked = p.weights->Check();
  REQUIRE(checked.ok());
  CHECK(checked->different.size() == 1);
}

TEST_CASE(
    "engine weights: what has drifted is taken from the receiver's buffer by the next update") {
  Pair p;
  p.Publish(FakeAgent::Step(p.now, 2));
  p.Update();
  p.engine.memory[1][40] ^= std::byte{4};    // t2, transposed
  p.engine.memory[0][2210] ^= std::byte{4};  // t4's second place
  const auto drifted = p.engine.memory;
  REQUIRE(p.weights->Check()->different == std::vector<std::string>{"t2", "t4"});
  const auto before = p.now;
  const bool news = GENERATE(false, true);
  if (news) p.Publish(FakeAgent::Step(p.now, 3));
  const UpdateInfo info = p.Update();
  CHECK(info.chunks_healed == 2);
  CHECK(info.chunks_whole == 2);
  CHECK((info.chunks_by_delta > 0) == news);
  CHECK(p.engine.Holds(p.now));
  CHECK(p.weights->Check()->different.empty());

  // A rollback makes the memory what it was, and what was wrong in it is not forgotten.
  REQUIRE(p.weights->Rollback() == absl::OkStatus());
  CHECK(p.engine.memory == drifted);
  CHECK(p.Update().chunks_healed == 2);
  CHECK(p.engine.Holds(p.now));
  CHECK(p.Update().chunks_healed == 0);
  CHECK(p.engine.Holds(p.now));
}

TEST_CASE("engine weights: a range of chunks is checked alone, and none beyond the last") {
  Pair p;
  p.engine.memory[1][40] ^= std::byte{4};  // t2
  CHECK(p.weights->Check(0, 2)->different.empty());
  CHECK(p.weights->Check(3, 3)->different.empty());
  CHECK(p.weights->Check(2, 1)->different == std::vector<std::string>{"t2"});
  CHECK(p.weights->Check(6, 0)->bytes == 0);
  CHECK_FALSE(p.weights->Check(6, 1).ok());
  CHECK_FALSE(p.weights->Check(7, 0).ok());
}

TEST_CASE("engine weights: a chunk of which ranks have parts is judged by their sum") {
  Pair p;
  // The columns of t3 that the first rank does not have, in memory of another rank.
  const auto second = [&](std::vector<std::byte>& memory) {
    Binding binding{{{"down", 600}}, {memory.data()}, {}};
    binding.boxes.push_back(MakeBox(3, 0, {20}, 0, {50}, 0, {30}, 10));
    binding.boxes.push_back(MakeBox(3, 0, {20}, 30, {50}, 10, {30}, 20));
    for (const Box& box : binding.boxes) {
      testing::ForEachRunOf(box.copy, [&](uint64_t src, uint64_t dst) {
        std::memcpy(memory.data() + dst, p.now[3].data() + src, box.copy.run_bytes);
      });
    }
    auto weights = *EngineWeights::Open(p.rig.dir.path(), 1);
    REQUIRE(weights->Bind(binding) == absl::OkStatus());
    REQUIRE(weights->Adopt()->different.empty());
    return weights;
  };
  std::vector<std::byte> memory(600), again(600);
  const auto other = second(memory), replica = second(again);
  const auto share = [](EngineWeights& weights) {
    const auto found = weights.Check(3, 1);
    REQUIRE(found->shares.size() == 1);
    CHECK(found->different.empty());
    return found->shares[0];
  };
  const auto judged = [&](std::vector<Share> shares) {
    auto found = p.weights->Judge(shares);
    REQUIRE(found.ok());
    return *std::move(found);
  };
  const Share mine = share(*p.weights), theirs = share(*other);
  for (const auto& all : {std::vector{mine, theirs}, {mine, theirs, mine, share(*replica)}}) {
    CHECK(judged(all).different.empty());
    CHECK(judged(all).bytes == 1000);
  }
  // What is not on equally many ranks says nothing.
  CHECK(judged({mine}).bytes == 0);
  CHECK(judged({mine, theirs, mine}).bytes == 0);
  CHECK(judged({mine, mine, {3, 200, 0, 0}}).bytes == 0);
  CHECK_FALSE(p.weights->Judge(std::vector<Share>{{6, 1, 1, 1}}).ok());

  // Drift of the other rank is this one's to heal, too: nobody knows whose it is.
  memory[50] ^= std::byte{1};
  const std::vector<Share> shares{mine, share(*other)};
  CHECK(judged(shares).different == std::vector<std::string>{"t3"});
  CHECK(other->Judge(shares)->different == std::vector<std::string>{"t3"});
  for (EngineWeights* weights : {p.weights.get(), other.get()}) {
    CHECK(weights->Prepare()->chunks_healed == 1);
    CHECK(weights->Apply() == absl::OkStatus());
  }
  CHECK(judged({share(*p.weights), share(*other)}).different.empty());
  CHECK(p.engine.Holds(p.now));
}

TEST_CASE("engine weights: the tensors that an update changes can be read whole, old and new") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  Pair p(buffers);
  using State = EngineWeights::State;
  std::vector<std::byte> read(1000);
  CHECK(p.weights->ChangedTensors().empty());
  CHECK(p.weights->ReadTensor(State::kPrepared, 2, read).code() == StatusCode::kFailedPrecondition);
  REQUIRE(p.weights->ReadTensor(State::kHeld, 2, read) == absl::OkStatus());
  CHECK(read == p.now[2]);

  auto next = p.now;
  next[2][10] ^= std::byte{1};
  next[5][0] ^= std::byte{1};  // another rank's, and changed all the same
  p.Publish(next, GENERATE(false, true));
  CHECK(p.weights->ReadTensor(State::kHeld, 2, read).code() == StatusCode::kUnavailable);
  REQUIRE(p.weights->Prepare().ok());
  const auto changed = p.weights->ChangedTensors();
  CHECK(changed == std::vector<uint32_t>{2, 5});
  for (const uint32_t t : changed) {
    REQUIRE(p.weights->ReadTensor(State::kPrepared, t, read) == absl::OkStatus());
    CHECK(read == next[t]);
  }
  CHECK(p.weights->ReadTensor(State::kPrepared, 6, read).code() == StatusCode::kInvalidArgument);
  CHECK(p.weights->ReadTensor(State::kPrepared, 2, std::span(read).first(998)).code() ==
        StatusCode::kInvalidArgument);
  REQUIRE(p.weights->Apply() == absl::OkStatus());
  CHECK(p.weights->ChangedTensors().empty());
  REQUIRE(p.weights->ReadTensor(State::kHeld, 5, read) == absl::OkStatus());
  CHECK(read == next[5]);
}

TEST_CASE("engine weights: a tensor that has rotted in the receiver's buffer is not handed out") {
  Pair p;
  {
    std::fstream f(p.rig.dir.path() / "model.safetensors",
                   std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(-1500, std::ios::end);  // in t4 of t0 to t5
    f.put('x');
  }
  std::vector<std::byte> read(1000);
  const auto lost = p.weights->ReadTensor(EngineWeights::State::kHeld, 4, read);
  CHECK(lost.code() == StatusCode::kDataLoss);
  CHECK_THAT(std::string(lost.message()), Catch::Contains("tensor t4"));
  CHECK(p.weights->ReadTensor(EngineWeights::State::kHeld, 5, read) == absl::OkStatus());
}

TEST_CASE("engine weights: a wait ends with a commit, a time limit, or its caller") {
  using std::chrono::milliseconds;
  Pair p;
  const Identity one = p.weights->held();
  CHECK(p.weights->WaitForOther(one, milliseconds(5), nullptr).status().code() ==
        StatusCode::kDeadlineExceeded);
  CHECK(p.weights->WaitForOther(one, milliseconds(60000), [] { return true; }).status().code() ==
        StatusCode::kCancelled);
  p.Publish(FakeAgent::Step(p.now, 2));
  const auto two = p.weights->WaitForOther(one, milliseconds(60000), nullptr);
  REQUIRE(two.ok());
  CHECK(two->id.version == 2);
}

}  // namespace
}  // namespace deltawire::engine::engine_weights_test
