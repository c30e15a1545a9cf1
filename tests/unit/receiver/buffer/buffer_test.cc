// Updates of one file and of two, with real leases and real readers that know nothing of updates.
#include "receiver/buffer/buffer.h"

#include <sched.h>

#include <catch2/catch.hpp>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "receiver/buffer/buffer_names.h"
#include "receiver/buffer/catch_up.h"
#include "receiver/buffer/check.h"
#include "receiver/buffer/recovery.h"
#include "tests/support/denied_leases.h"
#include "tests/support/file_user.h"
#include "tests/unit/receiver/buffer/buffer_rig.h"

namespace deltawire::receiver::buffer_test {
namespace {

TEST_CASE("one file: a reader keeps its bytes and the update waits, by name") {
  for (const bool close_it : {false, true}) {
    CAPTURE(close_it);
    BufferRig s({.buffers = 1, .huge_pages = false});
    CHECK(s.buffer->lease_problem() == "");
    CHECK_FALSE(fs::exists(s.weights()));
    REQUIRE(s.Update(1) == absl::OkStatus());
    CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 1));
    const uint64_t inode = InodeOf(s.weights());
    {
      const testing::FileUser reader(s.weights(), Maps(close_it));
      const auto begun = s.buffer->update().Begin();
      REQUIRE(begun.ok());
      CHECK_FALSE(*begun);
      CHECK(s.buffer->update().Readers().find(fmt::format("process {} (", reader.pid())) !=
            std::string::npos);
      CHECK(InodeOf(s.weights()) == inode);
      CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 1));
    }
    REQUIRE(s.Update(2) == absl::OkStatus());
    CHECK(InodeOf(s.weights()) == inode);
    CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 2));
    s.Restart();
    CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 2));
  }
}

TEST_CASE("one file: a fresh copy leaves the old one to its reader, and the model is there once") {
  BufferRig s({.buffers = 1, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  const int fd = ::open(s.weights().c_str(), O_RDONLY);
  const std::string before = ReadFile(s.weights());
  CHECK_FALSE(*s.buffer->update().Begin());
  REQUIRE(s.buffer->update().BeginInFreshFile() == absl::OkStatus());
  uint64_t version = 0;
  CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
  CHECK(version == 1);  // the file keeps its name until the commit
  REQUIRE(s.Update(2) == absl::OkStatus());
  CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
  CHECK(version == 2);
  std::string after(before.size(), '\0');
  REQUIRE(::pread(fd, after.data(), after.size(), 0) == static_cast<ssize_t>(after.size()));
  CHECK((after == before));
  struct stat old;
  REQUIRE(::fstat(fd, &old) == 0);
  CHECK(old.st_nlink == 0);
  ::close(fd);
  s.Restart();
  CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 2));
  REQUIRE(s.Update(3) == absl::OkStatus());
}

TEST_CASE("two files: the name is always there, readers keep what they opened, one is reused") {
  BufferRig s({.buffers = 2, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  std::set<uint64_t> inodes;
  for (uint64_t v = 2; v < 12; ++v) {
    REQUIRE(s.buffer->update().Begin().value());
    CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, v - 1));
    uint64_t version = 0;
    CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
    CHECK(version == v - 1);
    REQUIRE(s.Update(v) == absl::OkStatus());
    CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
    CHECK(version == v);
    inodes.insert(InodeOf(s.weights()));
    if (v % 2 == 0) CHECK(CatchUpSecondFile(*s.buffer, {}, [] { return false; })->whole);
  }
  CHECK(inodes.size() == 2);
  const int fd = ::open(s.weights().c_str(), O_RDONLY);
  const std::string before = ReadFile(s.weights());
  for (uint64_t v = 12; v < 15; ++v) REQUIRE(s.Update(v) == absl::OkStatus());
  std::string after(before.size(), '\0');
  REQUIRE(::pread(fd, after.data(), after.size(), 0) == static_cast<ssize_t>(after.size()));
  CHECK((after == before));
  ::close(fd);
  s.Restart();
  CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 14));
  REQUIRE(s.Update(15) == absl::OkStatus());
}

TEST_CASE("a file that somebody gave another name is never changed: a fresh one takes its place") {
  const uint32_t buffers = GENERATE(1, 2);
  CAPTURE(buffers);
  BufferRig s({.buffers = buffers, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  const fs::path kept = s.weights().parent_path() / "kept", moved = kept.native() + ".moved";
  fs::create_hard_link(s.weights(), kept);
  const std::string first = ReadFile(kept);
  for (uint64_t v = 2; v < 5; ++v) {
    REQUIRE(s.Update(v) == absl::OkStatus());
    CHECK((ReadFile(kept) == first));
    CHECK(CatchUpSecondFile(*s.buffer, {}, [] { return false; })->whole == (buffers == 2));
    CHECK((ReadFile(kept) == first));
  }
  // A file that was moved away gets its name back, and has two then.
  const std::string fourth = ReadFile(s.weights());
  fs::rename(s.weights(), moved);
  REQUIRE(CheckFiles(*s.buffer)->put_back.size() == 1);
  CHECK((ReadFile(s.weights()) == fourth));
  s.Restart();
  for (uint64_t v = 5; v < 8; ++v) {
    REQUIRE(s.Update(v) == absl::OkStatus());
    CHECK((ReadFile(moved) == fourth));
    if (buffers == 2) CHECK(CatchUpSecondFile(*s.buffer, {}, [] { return false; })->whole);
    CHECK((ReadFile(moved) == fourth));
  }
  CHECK((ReadFile(kept) == first));
  struct stat file;
  REQUIRE(::stat(moved.c_str(), &file) == 0);
  CHECK(file.st_nlink == 1);  // the receiver has let it go, and its memory is its keeper's
}

/// True while somebody waits to open the file because of another's lease.
bool SomebodyWaits(const fs::path& path) {
  struct stat file;
  REQUIRE(::stat(path.c_str(), &file) == 0);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    const bool it = line.find(fmt::format(":{} ", file.st_ino)) != std::string::npos;
    if (it && line.find("BREAKING") != std::string::npos) return true;
  }
  return false;
}

TEST_CASE("two files: catching up does not stop while somebody waits to open the hidden file") {
  BufferRig s({.buffers = 2, .huge_pages = false});
  for (const uint64_t version : {2, 3}) {
    REQUIRE(s.Update(version) == absl::OkStatus());
    REQUIRE(CatchUpSecondFile(*s.buffer, {}, [] { return false; })->whole);
  }
  REQUIRE(s.Update(4) == absl::OkStatus());
  fs::path hidden = s.dir.path() / kHidden[0];
  if (!fs::exists(hidden)) hidden = s.dir.path() / kHidden[1];
  const fs::path copy = s.dir.path() / "seen";
  std::thread opener;
  std::once_flag once;
  const auto caught = CatchUpSecondFile(*s.buffer, {}, [&] {
    // The opener stands for a reader that looked the name up while this file still had it.
    std::call_once(once, [&] {
      opener = std::thread([&] {
        std::ofstream(copy, std::ios::binary) << std::ifstream(hidden, std::ios::binary).rdbuf();
      });
      while (!SomebodyWaits(hidden)) ::sched_yield();
    });
    return true;
  });
  opener.join();
  REQUIRE(caught.ok());
  CHECK(caught->whole);
  uint64_t version = 0;
  CHECK(Torn(copy, s.buffer->layout(), s.buffer->chunks(), &version) == "");
  CHECK(version == 4);
}

TEST_CASE("two files: the deltas of a version bring the other file to it, or a copy does") {
  BufferRig s({.buffers = 2, .huge_pages = false});
  REQUIRE(s.Update(2) == absl::OkStatus());
  REQUIRE(CatchUpSecondFile(*s.buffer, {}, [] { return false; })->whole);
  const uint64_t before = s.buffer->bases().digest(0);
  std::vector<std::byte> old(s.buffer->bases().bytes(0).begin(), s.buffer->bases().bytes(0).end()),
      now = old;
  Content(0, 3, now);
  std::vector<std::byte> payload(kernels::MaxEncodedBytes(old.size(), 1));
  const auto encoded = kernels::Best().diff_encode(s.buffer->key(), old, now, 1, before, payload);
  payload.resize(encoded.bytes);
  REQUIRE(s.Update(3) == absl::OkStatus());
  const AppliedDelta delta{0, before, encoded.digest_after, payload};
  CHECK(CatchUpSecondFile(*s.buffer, {&delta, 1}, [] { return false; })->whole);
  CHECK_FALSE(CatchUpSecondFile(*s.buffer, {}, [] { return true; })->whole);
  // The second call stopped at once, but the first left nothing to copy: both files are equal.
  const char* hidden[] = {".model.safetensors.partial", ".model.safetensors.partial2"};
  const bool second = fs::exists(s.dir.path() / hidden[1]);
  CHECK((ReadFile(s.weights()) == ReadFile(s.dir.path() / hidden[second])));
  REQUIRE(s.Update(4) == absl::OkStatus());
}

TEST_CASE("a delta's base is copied from the other file with a check") {
  BufferRig s({.buffers = 2, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  REQUIRE(*s.buffer->update().Begin());
  const uint64_t digest = s.buffer->bases().digest(1);
  CHECK(s.buffer->bases().Prepare(1, digest + 1).status().code() == StatusCode::kDataLoss);
  const auto bytes = s.buffer->bases().Prepare(1, digest);
  REQUIRE(bytes.ok());
  CHECK(kernels::Best().digest(s.buffer->key(), *bytes) == digest);
  CHECK_FALSE(
      s.buffer->bases().known(1));  // until SetChunk, nobody may take the old bytes for new ones
  CHECK(s.buffer->bases().have().chunks[1].version == kVersionUnknown);
  CHECK(s.buffer->update().Commit(BufferRig::At(*s.buffer, 2), {}).code() == StatusCode::kInternal);
  const_cast<std::byte&>(s.buffer->bases().bytes(0)[7]) ^= std::byte{1};
  const Status bad = s.buffer->bases().Prepare(0, s.buffer->bases().digest(0)).status();
  CHECK(bad.code() == StatusCode::kDataLoss);
  CHECK(std::string(bad.message()).find("tensor a") != std::string::npos);
}

TEST_CASE("two files: what came of a version that will not be is no base, also after a restart") {
  BufferRig s({.buffers = 2, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  s.buffer->update().Discard();  // nothing has come yet
  const wire::Have before = s.buffer->bases().have();
  REQUIRE(*s.buffer->update().Begin());
  BufferRig::Bring(*s.buffer, 0, 900);
  s.buffer->bases().MarkUnknown(1);
  CHECK(s.buffer->bases().have().chunks[0].version == 900);
  s.buffer->update().Discard();
  const bool restart = GENERATE(false, true);
  CAPTURE(restart);
  if (restart) s.Restart();
  CHECK_FALSE(s.buffer->update().begun());
  CHECK_FALSE(s.buffer->update().interrupted());
  CHECK(s.buffer->bases().have().chunks == before.chunks);
  CHECK(s.buffer->committed().id.version == 1);
  const auto caught = CatchUpSecondFile(*s.buffer, {}, [] { return false; });
  REQUIRE(caught.ok());
  CHECK(caught->whole);
  REQUIRE(s.Update(2) == absl::OkStatus());
  uint64_t version = 0;
  CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
}

TEST_CASE("a commit that fails for its side files is tried again, or goes on to a newer version") {
  BufferRig s({.buffers = 2, .huge_pages = false});
  REQUIRE(s.Update(1, {{"config.json", "1"}}) == absl::OkStatus());
  REQUIRE(s.Update(2, {{"config.json", "1"}}) == absl::OkStatus());
  // The hidden file is left with chunk 1 of version 1, which version 3 shares with version 2.
  int chunks = 0;
  if (GENERATE(true, false)) {
    REQUIRE(CatchUpSecondFile(*s.buffer, {}, [&] { return ++chunks > 1; }).ok());
  }
  // A directory that blocks staging them, or putting them in place.
  const fs::path in_the_way =
      s.dir.path() / (GENERATE(true, false) ? ".deltawire.receiver/next" : "config.json");
  CAPTURE(in_the_way.string(), chunks);
  fs::remove(in_the_way);
  fs::create_directories(in_the_way / "x");
  REQUIRE_FALSE(s.Update(3, {{"config.json", "3"}}).ok());
  CHECK(s.buffer->committed().id.version == 2);
  uint64_t version = 0;
  CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
  CHECK(version == 2);
  fs::remove_all(in_the_way);
  // A reader of the hidden file has the commit begin in a fresh one.
  const UniqueFd reader(
      GENERATE(true, false) ? ::open((s.dir.path() / kHidden[0]).c_str(), O_RDONLY) : -1);
  CAPTURE(reader.get());
  const uint64_t next = GENERATE(3u, 4u);
  const Status again = s.Update(next, {{"config.json", "3"}});
  INFO(again);
  REQUIRE(again.ok());
  CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
  CHECK(version == next);
}

TEST_CASE("two files are chosen where two and a half models fit, what is there included") {
  BufferRig s({.buffers = 1, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  const fs::path dir = s.weights().parent_path();
  const uint64_t room = RoomFor(dir);  // other processes may take or free some meanwhile
  CHECK(ChooseBuffers(dir, room / 3) == 2);
  CHECK(ChooseBuffers(dir, room / 2) == 1);
  // A sparse file that takes nothing is no room.
  fs::resize_file(s.weights(), fs::file_size(s.weights()) + room);
  CHECK(ChooseBuffers(dir, room / 2) == 1);
}

TEST_CASE("without leases every update goes to a fresh file, whoever reads and whoever does not") {
  const uint32_t buffers = GENERATE(1u, 2u);
  const bool from_the_start = GENERATE(true, false);  // false: they stop working later
  const bool under_way = GENERATE(false, true);
  CAPTURE(buffers, from_the_start, under_way);
  std::optional<testing::DeniedLeases> denied;
  if (from_the_start) denied.emplace(EINVAL);
  BufferRig s({.buffers = buffers, .huge_pages = false});
  CHECK(s.buffer->lease_problem().empty() != from_the_start);
  REQUIRE(s.Update(1) == absl::OkStatus());
  if (under_way) {
    // An update is under way when its process ends.
    REQUIRE(*s.buffer->update().Begin());
    BufferRig::Bring(*s.buffer, 0, 2);
    s.Restart();
  }
  if (!from_the_start) denied.emplace(EINVAL);
  const bool named = fs::exists(s.weights());
  CHECK(named == (buffers == 2 || from_the_start || !under_way));
  std::vector<std::unique_ptr<Opened>> readers;
  std::set<uint64_t> inodes;
  for (uint64_t v = 2; v < 6; ++v) {
    CAPTURE(v);
    uint64_t version = 0;
    REQUIRE(*s.buffer->update().Begin());
    if (named || v > 2) {
      // An update in a fresh file waits for no reader, so the committed file keeps its name.
      CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
      CHECK(version == v - 1);
    }
    REQUIRE(s.Update(v) == absl::OkStatus());
    CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
    CHECK(version == v);
    CHECK(CatchUpSecondFile(*s.buffer, {}, [] { return false; }).ok());
    readers.push_back(std::make_unique<Opened>(s.weights()));
    inodes.insert(InodeOf(s.weights()));
    for (const auto& reader : readers) CHECK_FALSE(reader->changed());
  }
  CHECK(inodes.size() == 4);
  denied.reset();
  s.Restart();
  CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 5));
  CHECK(s.buffer->lease_problem() == "");
}

TEST_CASE("in place by option: one file is changed under its reader and has no name meanwhile") {
  const bool leases = GENERATE(true, false);
  CAPTURE(leases);
  std::optional<testing::DeniedLeases> denied;
  if (!leases) denied.emplace(EINVAL);
  BufferRig s({.buffers = 1, .huge_pages = false, .unsafe_in_place = true});
  REQUIRE(s.Update(1) == absl::OkStatus());
  const uint64_t inode = InodeOf(s.weights());
  const Opened reader(s.weights());
  const testing::FileUser other(s.weights(), Maps(true));
  REQUIRE(*s.buffer->update().Begin());
  CHECK(s.buffer->committed().empty());
  CHECK_FALSE(fs::exists(s.weights()));
  REQUIRE(s.Update(2) == absl::OkStatus());
  CHECK(InodeOf(s.weights()) == inode);
  CHECK(reader.changed());
  CHECK((reader.bytes() == ReadFile(s.weights())));
  CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 2));
  s.Restart();
  REQUIRE(s.Update(3) == absl::OkStatus());
  CHECK(InodeOf(s.weights()) == inode);
}

TEST_CASE("in place by option: of two files the named one stays and the hidden one is changed") {
  const bool leases = GENERATE(true, false);
  CAPTURE(leases);
  std::optional<testing::DeniedLeases> denied;
  if (!leases) denied.emplace(EINVAL);
  BufferRig s({.buffers = 2, .huge_pages = false, .unsafe_in_place = true});
  std::vector<std::unique_ptr<Opened>> readers;
  std::set<uint64_t> inodes;
  for (uint64_t v = 1; v < 7; ++v) {
    CAPTURE(v);
    REQUIRE(*s.buffer->update().Begin());
    for (uint32_t i = 0; i < kChunks; ++i) BufferRig::Bring(*s.buffer, i, v);
    if (v > 1) CHECK_FALSE(readers.back()->changed());
    if (v > 2) CHECK(readers[v - 3]->changed());
    REQUIRE(s.Update(v) == absl::OkStatus());
    uint64_t version = 0;
    CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
    CHECK(version == v);
    readers.push_back(std::make_unique<Opened>(s.weights()));
    inodes.insert(InodeOf(s.weights()));
  }
  CHECK(inodes.size() == 2);
  CHECK(CatchUpSecondFile(*s.buffer, {}, [] { return false; })->whole);
  CHECK((readers[4]->bytes() == ReadFile(s.weights())));
}

}  // namespace
}  // namespace deltawire::receiver::buffer_test
