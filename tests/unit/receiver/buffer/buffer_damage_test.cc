// What a commit refuses, and that the buffer notices and repairs what others do to its files.
#include "receiver/buffer/buffer.h"
#include "receiver/buffer/buffer_names.h"
#include "receiver/buffer/catch_up.h"
#include "receiver/buffer/check.h"
#include "tests/support/snapshot.h"
#include "tests/unit/receiver/buffer/buffer_rig.h"

namespace deltawire::receiver::buffer_damage_test {
namespace {

TEST_CASE("a chunk that lost its digest is unknown where it lost it, and only there") {
  BufferRig s({.buffers = 2, .huge_pages = false});
  REQUIRE(s.Update(7) == absl::OkStatus());
  const auto flip = [&](Bytes bytes) { const_cast<std::byte&>(bytes[3]) ^= std::byte{4}; };
  SECTION("in what an update has brought") {
    REQUIRE(*s.buffer->update().Begin());
    BufferRig::Bring(*s.buffer, 0, 8);
    CHECK(IsIntact(*s.buffer, 0));
    flip(s.buffer->bases().bytes(0));
    CHECK_FALSE(IsIntact(*s.buffer, 0));
    REQUIRE(s.buffer->bases().Withdraw({{0, 1}}) == absl::OkStatus());
    CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 7));
    CHECK(s.buffer->bases().digest(0) == BufferRig::DigestOf(*s.buffer, 0, 7));
    CHECK(IsIntact(*s.buffer, 0));
  }
  SECTION("in what readers open, while an update has brought a newer one") {
    const Bytes front = s.buffer->bases().bytes(0);
    REQUIRE(*s.buffer->update().Begin());
    BufferRig::Bring(*s.buffer, 0, 8);
    flip(front);
    CHECK_FALSE(IsIntact(*s.buffer, 0));
    REQUIRE(s.buffer->bases().Withdraw({{0}}) == absl::OkStatus());
    CHECK(s.buffer->committed().empty());
    CHECK_FALSE(fs::exists(s.weights()));
    CHECK(s.buffer->bases().digest(0) == BufferRig::DigestOf(*s.buffer, 0, 8));
    CHECK(s.buffer->bases().known(1));
  }
  for (uint32_t i = 0; i < kChunks; ++i) BufferRig::Bring(*s.buffer, i, 8);
  REQUIRE(s.buffer->update().Commit(BufferRig::At(*s.buffer, 8), {}) == absl::OkStatus());
  uint64_t version = 0;
  CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
  CHECK(version == 8);
}

TEST_CASE("a commit that meets a chunk which lost its digest fails once") {
  BufferRig s({.buffers = 2, .huge_pages = false});
  REQUIRE(s.Update(2) == absl::OkStatus());
  const_cast<std::byte&>(s.buffer->bases().bytes(0)[9]) ^= std::byte{1};
  // Before any chunk of an update has come, the bad chunk must not be copied to the other file
  // either.
  const auto caught = CatchUpSecondFile(*s.buffer, {}, [] { return false; });
  REQUIRE(caught.ok());
  CHECK_FALSE(caught->whole);
  CHECK(caught->corrupt_chunks == std::vector<uint32_t>{0});
  REQUIRE(*s.buffer->update().Begin());
  BufferRig::Bring(*s.buffer, 1, 3);
  Identity same = BufferRig::At(*s.buffer, 2);
  for (uint32_t i = 0; i < kChunks; ++i) BufferRig::Bring(*s.buffer, i, 2);
  const Status failed = s.buffer->update().Commit(same, {});
  CHECK(failed.code() == StatusCode::kDataLoss);
  CHECK_FALSE(s.buffer->bases().known(0));
  CHECK(s.Update(4) == absl::OkStatus());
  CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 4));
}

TEST_CASE("a commit that fails behind its last byte leaves a state that can be taken up") {
  for (const uint32_t buffers : {1, 2}) {
    CAPTURE(buffers);
    BufferRig s({.buffers = buffers, .huge_pages = false});
    REQUIRE(s.Update(1) == absl::OkStatus());
    // The side file cannot be put in place: a directory of its name is in the way.
    fs::create_directories(s.dir.path() / "config.json" / "full");
    REQUIRE(s.Update(2, {{"config.json", "two"}}) != absl::OkStatus());
    const bool restart = GENERATE(false, true);
    CAPTURE(restart);
    if (restart) {
      s.Restart();
    } else {
      REQUIRE(*s.buffer->update().Begin());
      s.buffer->bases().MarkUnknown(0);
    }
    fs::remove_all(s.dir.path() / "config.json");
    REQUIRE(s.Update(3, {{"config.json", "three"}}) == absl::OkStatus());
    s.Restart();
    CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 3));
    CHECK(ReadFile(s.dir.path() / "config.json") == "three");
  }
}

TEST_CASE("what lies where the directory was is left alone") {
  const uint32_t buffers = GENERATE(1u, 2u);
  BufferRig s({.buffers = buffers, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  const fs::path away = s.dir.path().native() + "-away";
  fs::rename(s.dir.path(), away);
  fs::create_directory(s.dir.path());
  for (const char* name : {"model.safetensors", ".model.safetensors.partial",
                           ".model.safetensors.partial2", "config.json"}) {
    std::ofstream(s.dir.path() / name) << "another's";
  }
  const auto before = testing::SnapshotOf(s.dir.path());
  CHECK(CheckFiles(*s.buffer).status().code() == StatusCode::kFailedPrecondition);
  CHECK_FALSE(s.Update(2, {{"config.json", "two"}}).ok());
  CHECK((buffers == 1 || !CatchUpSecondFile(*s.buffer, {}, [] { return false; }).ok()));
  s.buffer->files().Remove();
  s.buffer.reset();
  CHECK(testing::SnapshotOf(s.dir.path()) == before);
  fs::remove_all(s.dir.path());
  fs::rename(away, s.dir.path());
  s.Restart();
  CHECK(s.buffer->last_whole() == BufferRig::At(*s.buffer, 1));
}

TEST_CASE("two files: after a commit that failed the named version is the one that is whole") {
  BufferRig s({.buffers = 2, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  fs::create_directories(s.dir.path() / "config.json" / "full");
  REQUIRE(s.Update(2, {{"config.json", "two"}}) != absl::OkStatus());
  SECTION("the failure has just been reported") {}
  SECTION("the version is given up") { s.buffer->update().Discard(); }
  SECTION("another one comes") { REQUIRE(*s.buffer->update().Begin()); }
  const auto state = StateReader::Open(s.dir.path() / kState);
  REQUIRE(state.ok());
  const StateReader::Slot active = state->slot(state->active());
  CHECK(active.phase == SlotPhase::kWhole);
  CHECK(active.identity == BufferRig::At(*s.buffer, 1));
  CHECK(active.inode == InodeOf(s.weights()));
  fs::remove_all(s.dir.path() / "config.json");
  s.Restart();  // as after a SIGKILL
  CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 1));
  REQUIRE(s.Update(3) == absl::OkStatus());
  CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 3));
}

TEST_CASE("new weights never have their name beside old side files") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  BufferRig s({.buffers = buffers, .huge_pages = false});
  REQUIRE(s.Update(1, {{"config.json", "one"}, {"vocab.json", "one"}}) == absl::OkStatus());
  // The first side file of version 2 can be put in place, and the second cannot.
  fs::remove(s.dir.path() / "vocab.json");
  fs::create_directories(s.dir.path() / "vocab.json" / "full");
  REQUIRE(s.Update(2, {{"config.json", "two"}, {"vocab.json", "two"}}) != absl::OkStatus());
  CHECK(ReadFile(s.dir.path() / "config.json") == "two");
  uint64_t named = 0;
  if (buffers == 1) {
    CHECK_FALSE(fs::exists(s.weights()));
  } else {
    CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &named).empty());
    CHECK(named == 1);
  }
  fs::remove_all(s.dir.path() / "vocab.json");
  REQUIRE(s.Update(2, {{"config.json", "two"}, {"vocab.json", "two"}}) == absl::OkStatus());
  CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &named).empty());
  CHECK(named == 2);
}

TEST_CASE("side files of a commit that failed do not stay beside the next weights") {
  const uint32_t buffers = GENERATE(1u, 2u);
  const bool killed = GENERATE(false, true);
  CAPTURE(buffers, killed);
  BufferRig s({.buffers = buffers, .huge_pages = false});
  const std::vector<SideFile> seven{{"config.json", "seven"}, {"generation_config.json", "of 7"}};
  REQUIRE(s.Update(7, seven) == absl::OkStatus());
  std::ofstream(s.dir.path() / "merges.txt") << "of the user";
  // The last of them cannot be put in place, since a directory of its name is in the way.
  fs::create_directories(s.dir.path() / "vocab.json" / "full");
  REQUIRE(s.Update(8, {{"added_tokens.json", "of 8"},
                       {"config.json", "eight"},
                       {"vocab.json", "of 8"}}) != absl::OkStatus());
  CHECK(ReadFile(s.dir.path() / "config.json") == "eight");
  const auto is_sevens = [&] {
    CHECK(ReadFile(s.dir.path() / "config.json") == "seven");
    CHECK(ReadFile(s.dir.path() / "generation_config.json") == "of 7");
    CHECK_FALSE(fs::exists(s.dir.path() / "added_tokens.json"));
    CHECK(ReadFile(s.dir.path() / "merges.txt") == "of the user");
    CHECK(fs::is_directory(s.dir.path() / "vocab.json"));
  };
  if (killed) {
    // In the next update, which is to be rolled back to the files of version 7.
    REQUIRE(*s.buffer->update().Begin());
    s.buffer->bases().MarkUnknown(0);
    s.Restart();
    is_sevens();
  }
  REQUIRE(s.Update(9, seven) == absl::OkStatus());
  is_sevens();
  fs::remove_all(s.dir.path() / "vocab.json");
  REQUIRE(s.Update(10, {{"vocab.json", "of 10"}}) == absl::OkStatus());
  CHECK_FALSE(fs::exists(s.dir.path() / "config.json"));
  CHECK(ReadFile(s.dir.path() / "vocab.json") == "of 10");
}

TEST_CASE("a commit that fails when the weights have their name is one, and is finished later") {
  const uint32_t buffers = GENERATE(1u, 2u);
  const bool restart = GENERATE(false, true);
  CAPTURE(buffers, restart);
  BufferRig s({.buffers = buffers, .huge_pages = false});
  REQUIRE(s.Update(1, {{"config.json", "one"}}) == absl::OkStatus());
  const fs::path list = s.dir.path() / ".deltawire.receiver" / "installed";
  fs::remove(list);
  fs::create_directories(list / "in the way");
  REQUIRE(s.Update(2, {{"config.json", "two"}}) == absl::OkStatus());
  CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 2));
  CHECK(ReadFile(s.dir.path() / "config.json") == "two");
  CHECK_FALSE(CheckFiles(*s.buffer).ok());
  // The list of what is to be installed next is still needed.
  CHECK_FALSE(s.Update(3, {{"config.json", "three"}}).ok());
  fs::remove_all(list);
  if (restart) {
    s.Restart();
  } else {
    REQUIRE(s.Update(3, {{"config.json", "three"}}) == absl::OkStatus());
    CHECK(CheckFiles(*s.buffer)->put_back.empty());
    s.Restart();
    CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 3));
    CHECK(ReadFile(s.dir.path() / "config.json") == "three");
    return;
  }
  REQUIRE(s.Update(3, {{"config.json", "three"}}) == absl::OkStatus());
  CHECK(ReadFile(s.dir.path() / "config.json") == "three");
}

TEST_CASE("names that somebody else took or removed are never renamed for ours") {
  BufferRig s({.buffers = 1, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  SECTION("another file lies under the name") {
    std::ofstream(s.dir.path() / "theirs") << "not weights";
    fs::rename(s.dir.path() / "theirs", s.weights());
  }
  SECTION("the name is gone") { fs::remove(s.weights()); }
  REQUIRE(s.Update(2) == absl::OkStatus());
  uint64_t version = 0;
  CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
  CHECK(version == 2);
}

TEST_CASE("a directory in the place of the weights fails commits, and nothing else") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  BufferRig s({.buffers = buffers, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  REQUIRE(s.Update(2) == absl::OkStatus());
  fs::remove(s.weights());
  fs::create_directories(s.weights() / "full");
  for (const uint64_t version : {3, 4}) {
    CHECK(s.Update(version) != absl::OkStatus());
    // The file of version 2 has no name, but its bytes are still the base of the next update.
    CHECK(s.buffer->last_whole() == BufferRig::At(*s.buffer, 2));
    for (uint32_t i = 0; i < kChunks; ++i) {
      REQUIRE(s.buffer->bases().known(i));
      CHECK(kernels::Best().digest(s.buffer->key(), s.buffer->bases().bytes(i)) ==
            s.buffer->bases().digest(i));
      CHECK(IsIntact(*s.buffer, i));
    }
  }
  fs::remove_all(s.weights());
  REQUIRE(s.Update(5) == absl::OkStatus());
  uint64_t version = 0;
  CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
  CHECK(version == 5);
}

TEST_CASE("two files: the hidden one may be removed at any time") {
  BufferRig s({.buffers = 2, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  REQUIRE(s.Update(2) == absl::OkStatus());
  const auto remove = [&] {
    for (const char* name : {".model.safetensors.partial", ".model.safetensors.partial2"}) {
      fs::remove(s.dir.path() / name);
    }
  };
  const bool begun = GENERATE(false, true);
  CAPTURE(begun);
  if (!begun) remove();
  REQUIRE(*s.buffer->update().Begin());
  BufferRig::Bring(*s.buffer, 0, 3);
  if (begun) remove();
  for (uint32_t i = 0; i < kChunks; ++i) BufferRig::Bring(*s.buffer, i, 3);
  // A file without any name cannot get one again, so the commit fails. The next update has a file
  // of its own.
  CHECK(s.buffer->update().Commit(BufferRig::At(*s.buffer, 3), {}).ok() == !begun);
  REQUIRE(s.Update(4) == absl::OkStatus());
  uint64_t version = 0;
  CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
  CHECK(version == 4);
}

TEST_CASE("what does not add up to the root is not committed") {
  for (const uint32_t buffers : {1, 2}) {
    BufferRig s({.buffers = buffers, .huge_pages = false});
    REQUIRE(s.Update(1) == absl::OkStatus());
    REQUIRE(*s.buffer->update().Begin());
    BufferRig::Bring(*s.buffer, 0, 6);
    const Status status = s.buffer->update().Commit(BufferRig::At(*s.buffer, 6), {});
    CHECK(status.code() == StatusCode::kDataLoss);
    CHECK(std::string(status.message()).find("root") != std::string::npos);
    BufferRig::Bring(*s.buffer, 1, 6);
    BufferRig::Bring(*s.buffer, 2, 6);
    CHECK(s.buffer->update().Commit(BufferRig::At(*s.buffer, 6), {}) == absl::OkStatus());
  }
}

TEST_CASE("side files come and go with their version, and are put back") {
  for (const uint32_t buffers : {1, 2}) {
    BufferRig s({.buffers = buffers, .huge_pages = false});
    std::ofstream(s.dir.path() / "notes.txt") << "the user's own";
    REQUIRE(s.Update(1, {{"config.json", "one"}, {"old.json", "x"}}) == absl::OkStatus());
    REQUIRE(s.Update(2, {{"config.json", "two"}, {"new.json", "y"}}) == absl::OkStatus());
    CHECK(ReadFile(s.dir.path() / "config.json") == "two");
    CHECK(ReadFile(s.dir.path() / "new.json") == "y");
    CHECK_FALSE(fs::exists(s.dir.path() / "old.json"));
    CHECK(fs::exists(s.dir.path() / "notes.txt"));
    CHECK(CheckFiles(*s.buffer)->put_back.empty());
    fs::remove(s.dir.path() / "new.json");
    std::ofstream(s.dir.path() / "config.json") << "six";
    const auto health = CheckFiles(*s.buffer);
    REQUIRE(health.ok());
    CHECK(health->put_back.size() == 2);
    CHECK(ReadFile(s.dir.path() / "config.json") == "two");
    CHECK(ReadFile(s.dir.path() / "new.json") == "y");
    fs::remove(s.dir.path() / "config.json");
    s.Restart();
    CHECK(ReadFile(s.dir.path() / "config.json") == "two");
    CHECK(s.Update(3, {{"../x", ""}}).code() == StatusCode::kInvalidArgument);
    CHECK(s.Update(3, {{"config.json", "three"}}) == absl::OkStatus());
    CHECK_FALSE(fs::exists(s.dir.path() / "new.json"));
    // While a directory is in the side file's way, Check fails. It puts the file back once the way
    // is free.
    fs::remove(s.dir.path() / "config.json");
    fs::create_directories(s.dir.path() / "config.json" / "in the way");
    CHECK_FALSE(CheckFiles(*s.buffer).ok());
    fs::remove_all(s.dir.path() / "config.json");
    CHECK(CheckFiles(*s.buffer)->put_back == std::vector<std::string>{"config.json"});
    CHECK(ReadFile(s.dir.path() / "config.json") == "three");
  }
}

TEST_CASE("weights that somebody removes, replaces, cuts or writes to are put right") {
  for (const uint32_t buffers : {1, 2}) {
    CAPTURE(buffers);
    BufferRig s({.buffers = buffers, .huge_pages = false});
    REQUIRE(s.Update(1) == absl::OkStatus());
    REQUIRE(s.Update(2) == absl::OkStatus());
    uint64_t version = 0;
    const auto whole = [&] {
      return Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version);
    };
    CHECK(CheckFiles(*s.buffer)->put_back.empty());
    fs::remove(s.weights());
    CHECK(CheckFiles(*s.buffer)->put_back == std::vector<std::string>{"model.safetensors"});
    CHECK(whole() == "");
    fs::rename(s.weights(), s.dir.path() / "elsewhere");
    CHECK(CheckFiles(*s.buffer)->put_back.size() == 1);
    CHECK(whole() == "");
    fs::remove(s.dir.path() / "elsewhere");
    std::ofstream(s.dir.path() / "other") << "not weights";
    fs::rename(s.dir.path() / "other", s.weights());
    CHECK(CheckFiles(*s.buffer)->put_back.size() == 1);
    CHECK(whole() == "");
    CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 2));

    const uint64_t at = fs::file_size(s.weights()) - 5;
    {
      std::fstream(s.weights(), std::ios::in | std::ios::out).seekp(static_cast<long>(at)) << "zap";
    }
    const auto health = CheckFiles(*s.buffer);
    REQUIRE(health.ok());
    CHECK(health->corrupt_chunks == std::vector<uint32_t>{2});
    CHECK(s.buffer->committed().empty());
    CHECK_FALSE(fs::exists(s.weights()));
    REQUIRE(s.Update(2) == absl::OkStatus());
    CHECK(whole() == "");
    fs::resize_file(s.weights(), 100);
    CHECK(CheckFiles(*s.buffer)->corrupt_chunks.size() == kChunks);
    REQUIRE(s.Update(2) == absl::OkStatus());
    CHECK(whole() == "");
    CHECK(version == 2);
  }
}

}  // namespace
}  // namespace deltawire::receiver::buffer_damage_test
