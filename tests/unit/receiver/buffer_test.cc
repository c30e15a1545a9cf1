// The receiver's buffer with real files, real leases and real readers, which know nothing of it.
#include "receiver/buffer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "common/layout/root.h"
#include "receiver/buffer_names.h"
#include "tests/support/denied_leases.h"
#include "tests/support/file_user.h"
#include "tests/support/temp_dir.h"

namespace deltawire::receiver {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSeed = 5;
constexpr uint32_t kChunks = 3;
const Hash128 kLineage{11, 22};

Layout MakeLayout() {
  return *Layout::Create(
      {{"a", DType::kU8, {5000}}, {"b", DType::kBF16, {3000}}, {"c", DType::kF32, {2}}});
}

/// What chunk `i` is in a version: some chunks stay as they are for several versions.
void Content(uint32_t i, uint64_t version, MutableBytes to) {
  std::mt19937_64 rng(version / (i + 1) * 1000 + i);
  for (std::byte& b : to) b = static_cast<std::byte>(rng());
}

/// A directory, and whoever writes versions into its buffer.
struct Setup {
  explicit Setup(Buffer::Options o) : options(o) {
    buffer = *Buffer::Create(dir.path(), Lock(), MakeLayout(), kSeed, options);
  }
  std::shared_ptr<DirLock> Lock() {
    if (lock == nullptr) lock = std::make_shared<DirLock>(*DirLock::Acquire(dir.path()));
    return lock;
  }
  void Restart() {
    buffer.reset();
    auto taken = Buffer::Recover(dir.path(), Lock(), options);
    REQUIRE(taken.status() == absl::OkStatus());
    buffer = std::move(*taken);
  }
  static Identity At(const Buffer& b, uint64_t version) {
    Identity id{.lineage = kLineage, .id = {1, version}};
    for (uint32_t i = 0; i < kChunks; ++i) id.root += RootTerm(i, DigestOf(b, i, version));
    return id;
  }
  static uint64_t DigestOf(const Buffer& b, uint32_t i, uint64_t version) {
    std::vector<std::byte> bytes(b.chunks()[i].bytes);
    Content(i, version, bytes);
    return kernels::Best().digest(b.key(), bytes);
  }
  /// Chunks that differ come whole.
  static void Bring(Buffer& b, uint32_t i, uint64_t version) {
    if (b.known(i) && b.digest(i) == DigestOf(b, i, version)) return;
    b.MarkUnknown(i);
    Content(i, version, b.chunk(i));
    b.SetChunk(i, version, DigestOf(b, i, version));
  }
  static Status Update(Buffer& b, uint64_t version, const std::vector<SideFile>& side = {}) {
    DW_ASSIGN_OR_RETURN(const bool begun, b.BeginUpdate());
    if (!begun) return absl::UnavailableError(b.Readers());
    for (uint32_t i = 0; i < kChunks; ++i) Bring(b, i, version);
    return b.Commit(At(b, version), side);
  }
  Status Update(uint64_t version, const std::vector<SideFile>& side = {}) {
    return Update(*buffer, version, side);
  }
  fs::path weights() const { return dir.path() / "model.safetensors"; }

  TempDir dir;
  Buffer::Options options;
  std::shared_ptr<DirLock> lock;
  std::unique_ptr<Buffer> buffer;
};

/// Empty when the file is wholly one version; which: `*version`.
std::string Torn(const fs::path& path, const Layout& layout, const ChunkTable& chunks,
                 uint64_t* version) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return "no file";
  const std::string file(std::istreambuf_iterator<char>(in), {});
  if (file.size() < layout.total_bytes()) return "short";
  const std::string data = file.substr(file.size() - layout.total_bytes());
  for (*version = 1; *version < 5000; ++*version) {
    bool all = true;
    for (uint32_t i = kChunks; all && i-- > 0;) {
      std::string want(chunks[i].bytes, '\0');
      Content(i, *version, {reinterpret_cast<std::byte*>(want.data()), want.size()});
      all = data.compare(chunks[i].offset, chunks[i].bytes, want) == 0;
    }
    if (all) return "";
  }
  return "no version";
}

/// Maps the weights, and keeps them open or not.
std::function<bool(int)> Maps(bool close_it) {
  return [close_it](int fd) {
    const void* map = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (close_it) ::close(fd);
    return map != MAP_FAILED;
  };
}

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

uint64_t InodeOf(const fs::path& path) {
  struct stat file;
  return ::stat(path.c_str(), &file) == 0 ? file.st_ino : 0;
}

TEST_CASE("one file: a reader keeps its bytes and the update waits, by name") {
  for (const bool close_it : {false, true}) {
    CAPTURE(close_it);
    Setup s({.buffers = 1, .huge_pages = false});
    CHECK(s.buffer->lease_problem() == "");
    CHECK_FALSE(fs::exists(s.weights()));
    REQUIRE(s.Update(1) == absl::OkStatus());
    CHECK(s.buffer->committed() == Setup::At(*s.buffer, 1));
    const uint64_t inode = InodeOf(s.weights());
    {
      const testing::FileUser reader(s.weights(), Maps(close_it));
      const auto begun = s.buffer->BeginUpdate();
      REQUIRE(begun.ok());
      CHECK_FALSE(*begun);
      CHECK(s.buffer->Readers().find(fmt::format("process {} (", reader.pid())) !=
            std::string::npos);
      CHECK(InodeOf(s.weights()) == inode);
      CHECK(s.buffer->committed() == Setup::At(*s.buffer, 1));
    }
    REQUIRE(s.Update(2) == absl::OkStatus());
    CHECK(InodeOf(s.weights()) == inode);
    CHECK(s.buffer->committed() == Setup::At(*s.buffer, 2));
    s.Restart();
    CHECK(s.buffer->committed() == Setup::At(*s.buffer, 2));
  }
}

TEST_CASE("one file: a fresh copy leaves the old one to its reader, and the model is there once") {
  Setup s({.buffers = 1, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  const int fd = ::open(s.weights().c_str(), O_RDONLY);
  const std::string before = ReadFile(s.weights());
  CHECK_FALSE(*s.buffer->BeginUpdate());
  REQUIRE(s.buffer->BeginUpdateInFreshFile() == absl::OkStatus());
  uint64_t version = 0;
  CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
  CHECK(version == 1);  // the name stays until the commit
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
  CHECK(s.buffer->committed() == Setup::At(*s.buffer, 2));
  REQUIRE(s.Update(3) == absl::OkStatus());
}

TEST_CASE("two files: the name is always there, readers keep what they opened, one is reused") {
  Setup s({.buffers = 2, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  std::set<uint64_t> inodes;
  for (uint64_t v = 2; v < 12; ++v) {
    REQUIRE(s.buffer->BeginUpdate().value());
    CHECK(s.buffer->committed() == Setup::At(*s.buffer, v - 1));
    uint64_t version = 0;
    CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
    CHECK(version == v - 1);
    REQUIRE(s.Update(v) == absl::OkStatus());
    CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
    CHECK(version == v);
    inodes.insert(InodeOf(s.weights()));
    if (v % 2 == 0) CHECK(s.buffer->CatchUp({}, [] { return false; })->whole);
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
  CHECK(s.buffer->committed() == Setup::At(*s.buffer, 14));
  REQUIRE(s.Update(15) == absl::OkStatus());
}

/// Whether somebody waits to open a file that another has a lease of.
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

TEST_CASE("two files: the other one is brought up to its end when somebody waits to open it") {
  Setup s({.buffers = 2, .huge_pages = false});
  for (const uint64_t version : {2, 3}) {
    REQUIRE(s.Update(version) == absl::OkStatus());
    REQUIRE(s.buffer->CatchUp({}, [] { return false; })->whole);
  }
  REQUIRE(s.Update(4) == absl::OkStatus());
  fs::path hidden = s.dir.path() / kHidden[0];
  if (!fs::exists(hidden)) hidden = s.dir.path() / kHidden[1];
  const fs::path copy = s.dir.path() / "seen";
  std::thread opener;
  std::once_flag once;
  const auto caught = s.buffer->CatchUp({}, [&] {
    // As one does who looked the name up before this file lost it.
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
  Setup s({.buffers = 2, .huge_pages = false});
  REQUIRE(s.Update(2) == absl::OkStatus());
  REQUIRE(s.buffer->CatchUp({}, [] { return false; })->whole);
  const uint64_t before = s.buffer->digest(0);
  std::vector<std::byte> old(s.buffer->base(0).begin(), s.buffer->base(0).end()), now = old;
  Content(0, 3, now);
  std::vector<std::byte> payload(kernels::MaxEncodedBytes(old.size(), 1));
  const auto encoded = kernels::Best().diff_encode(s.buffer->key(), old, now, 1, before, payload);
  payload.resize(encoded.bytes);
  REQUIRE(s.Update(3) == absl::OkStatus());
  const Buffer::AppliedDelta delta{0, before, encoded.digest_after, payload};
  CHECK(s.buffer->CatchUp({&delta, 1}, [] { return false; })->whole);
  CHECK_FALSE(s.buffer->CatchUp({}, [] { return true; })->whole);
  // Nothing is left to copy, and so the other file is the same, byte for byte.
  const char* hidden[] = {".model.safetensors.partial", ".model.safetensors.partial2"};
  const bool second = fs::exists(s.dir.path() / hidden[1]);
  CHECK((ReadFile(s.weights()) == ReadFile(s.dir.path() / hidden[second])));
  REQUIRE(s.Update(4) == absl::OkStatus());
}

TEST_CASE("a delta's base is copied from the other file with a check") {
  Setup s({.buffers = 2, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  REQUIRE(*s.buffer->BeginUpdate());
  const uint64_t digest = s.buffer->digest(1);
  CHECK(s.buffer->PrepareChunk(1, digest + 1).status().code() == StatusCode::kDataLoss);
  const auto bytes = s.buffer->PrepareChunk(1, digest);
  REQUIRE(bytes.ok());
  CHECK(kernels::Best().digest(s.buffer->key(), *bytes) == digest);
  CHECK_FALSE(s.buffer->known(1));  // until it is set, nobody takes the older one for it
  CHECK(s.buffer->have().chunks[1].version == kVersionUnknown);
  CHECK(s.buffer->Commit(Setup::At(*s.buffer, 2), {}).code() == StatusCode::kInternal);
  const_cast<std::byte&>(s.buffer->base(0)[7]) ^= std::byte{1};
  const Status bad = s.buffer->PrepareChunk(0, s.buffer->digest(0)).status();
  CHECK(bad.code() == StatusCode::kDataLoss);
  CHECK(std::string(bad.message()).find("tensor a") != std::string::npos);
}

TEST_CASE("a chunk that lost its digest is unknown where it lost it, and only there") {
  Setup s({.buffers = 2, .huge_pages = false});
  REQUIRE(s.Update(7) == absl::OkStatus());
  const auto flip = [&](Bytes bytes) { const_cast<std::byte&>(bytes[3]) ^= std::byte{4}; };
  SECTION("in what an update has brought") {
    REQUIRE(*s.buffer->BeginUpdate());
    Setup::Bring(*s.buffer, 0, 8);
    CHECK(s.buffer->Intact(0));
    flip(s.buffer->base(0));
    CHECK_FALSE(s.buffer->Intact(0));
    REQUIRE(s.buffer->Distrust({{0, 1}}) == absl::OkStatus());
    CHECK(s.buffer->committed() == Setup::At(*s.buffer, 7));
    CHECK(s.buffer->digest(0) == Setup::DigestOf(*s.buffer, 0, 7));
    CHECK(s.buffer->Intact(0));
  }
  SECTION("in what readers open, while an update has brought a newer one") {
    const Bytes front = s.buffer->base(0);
    REQUIRE(*s.buffer->BeginUpdate());
    Setup::Bring(*s.buffer, 0, 8);
    flip(front);
    CHECK_FALSE(s.buffer->Intact(0));
    REQUIRE(s.buffer->Distrust({{0}}) == absl::OkStatus());
    CHECK(s.buffer->committed().empty());
    CHECK_FALSE(fs::exists(s.weights()));
    CHECK(s.buffer->digest(0) == Setup::DigestOf(*s.buffer, 0, 8));
    CHECK(s.buffer->known(1));
  }
  for (uint32_t i = 0; i < kChunks; ++i) Setup::Bring(*s.buffer, i, 8);
  REQUIRE(s.buffer->Commit(Setup::At(*s.buffer, 8), {}) == absl::OkStatus());
  uint64_t version = 0;
  CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
  CHECK(version == 8);
}

TEST_CASE("a commit that meets a chunk which lost its digest fails once") {
  Setup s({.buffers = 2, .huge_pages = false});
  REQUIRE(s.Update(2) == absl::OkStatus());
  const_cast<std::byte&>(s.buffer->base(0)[9]) ^= std::byte{1};
  // Not to be copied on, either, when nothing has come yet.
  const auto caught = s.buffer->CatchUp({}, [] { return false; });
  REQUIRE(caught.ok());
  CHECK_FALSE(caught->whole);
  CHECK(caught->lost_chunks == std::vector<uint32_t>{0});
  REQUIRE(*s.buffer->BeginUpdate());
  Setup::Bring(*s.buffer, 1, 3);
  Identity same = Setup::At(*s.buffer, 2);
  for (uint32_t i = 0; i < kChunks; ++i) Setup::Bring(*s.buffer, i, 2);
  const Status failed = s.buffer->Commit(same, {});
  CHECK(failed.code() == StatusCode::kDataLoss);
  CHECK_FALSE(s.buffer->known(0));
  CHECK(s.Update(4) == absl::OkStatus());
  CHECK(s.buffer->committed() == Setup::At(*s.buffer, 4));
}

TEST_CASE("a commit that fails behind its last byte leaves a state that can be taken up") {
  for (const uint32_t buffers : {1, 2}) {
    CAPTURE(buffers);
    Setup s({.buffers = buffers, .huge_pages = false});
    REQUIRE(s.Update(1) == absl::OkStatus());
    // A directory of that name cannot be replaced by a file.
    fs::create_directories(s.dir.path() / "config.json" / "full");
    REQUIRE(s.Update(2, {{"config.json", "two"}}) != absl::OkStatus());
    const bool restart = GENERATE(false, true);
    CAPTURE(restart);
    if (restart) {
      s.Restart();
    } else {
      REQUIRE(*s.buffer->BeginUpdate());
      s.buffer->MarkUnknown(0);
    }
    fs::remove_all(s.dir.path() / "config.json");
    REQUIRE(s.Update(3, {{"config.json", "three"}}) == absl::OkStatus());
    s.Restart();
    CHECK(s.buffer->committed() == Setup::At(*s.buffer, 3));
    CHECK(ReadFile(s.dir.path() / "config.json") == "three");
  }
}

TEST_CASE("names that somebody else took or removed are never renamed for ours") {
  Setup s({.buffers = 1, .huge_pages = false});
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

TEST_CASE("two files: the hidden one may be removed at any time") {
  Setup s({.buffers = 2, .huge_pages = false});
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
  REQUIRE(*s.buffer->BeginUpdate());
  Setup::Bring(*s.buffer, 0, 3);
  if (begun) remove();
  for (uint32_t i = 0; i < kChunks; ++i) Setup::Bring(*s.buffer, i, 3);
  // What was changed cannot get a name again: the next try has a file that can.
  CHECK(s.buffer->Commit(Setup::At(*s.buffer, 3), {}).ok() == !begun);
  REQUIRE(s.Update(4) == absl::OkStatus());
  uint64_t version = 0;
  CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
  CHECK(version == 4);
}

TEST_CASE("what does not add up to the root is not committed") {
  for (const uint32_t buffers : {1, 2}) {
    Setup s({.buffers = buffers, .huge_pages = false});
    REQUIRE(s.Update(1) == absl::OkStatus());
    REQUIRE(*s.buffer->BeginUpdate());
    Setup::Bring(*s.buffer, 0, 6);
    const Status status = s.buffer->Commit(Setup::At(*s.buffer, 6), {});
    CHECK(status.code() == StatusCode::kDataLoss);
    CHECK(std::string(status.message()).find("root") != std::string::npos);
    Setup::Bring(*s.buffer, 1, 6);
    Setup::Bring(*s.buffer, 2, 6);
    CHECK(s.buffer->Commit(Setup::At(*s.buffer, 6), {}) == absl::OkStatus());
  }
}

TEST_CASE("side files come and go with their version, and are put back") {
  for (const uint32_t buffers : {1, 2}) {
    Setup s({.buffers = buffers, .huge_pages = false});
    std::ofstream(s.dir.path() / "notes.txt") << "the user's own";
    REQUIRE(s.Update(1, {{"config.json", "one"}, {"old.json", "x"}}) == absl::OkStatus());
    REQUIRE(s.Update(2, {{"config.json", "two"}, {"new.json", "y"}}) == absl::OkStatus());
    CHECK(ReadFile(s.dir.path() / "config.json") == "two");
    CHECK(ReadFile(s.dir.path() / "new.json") == "y");
    CHECK_FALSE(fs::exists(s.dir.path() / "old.json"));
    CHECK(fs::exists(s.dir.path() / "notes.txt"));
    CHECK(s.buffer->Check()->put_back.empty());
    fs::remove(s.dir.path() / "new.json");
    std::ofstream(s.dir.path() / "config.json") << "six";
    const auto health = s.buffer->Check();
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
    // What is in its way may go: it is not forgotten meanwhile.
    fs::remove(s.dir.path() / "config.json");
    fs::create_directories(s.dir.path() / "config.json" / "in the way");
    CHECK_FALSE(s.buffer->Check().ok());
    fs::remove_all(s.dir.path() / "config.json");
    CHECK(s.buffer->Check()->put_back == std::vector<std::string>{"config.json"});
    CHECK(ReadFile(s.dir.path() / "config.json") == "three");
  }
}

TEST_CASE("weights that somebody removes, replaces, cuts or writes to are put right") {
  for (const uint32_t buffers : {1, 2}) {
    CAPTURE(buffers);
    Setup s({.buffers = buffers, .huge_pages = false});
    REQUIRE(s.Update(1) == absl::OkStatus());
    REQUIRE(s.Update(2) == absl::OkStatus());
    uint64_t version = 0;
    const auto whole = [&] {
      return Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version);
    };
    CHECK(s.buffer->Check()->put_back.empty());
    fs::remove(s.weights());
    CHECK(s.buffer->Check()->put_back == std::vector<std::string>{"model.safetensors"});
    CHECK(whole() == "");
    fs::rename(s.weights(), s.dir.path() / "elsewhere");
    CHECK(s.buffer->Check()->put_back.size() == 1);
    CHECK(whole() == "");
    fs::remove(s.dir.path() / "elsewhere");
    std::ofstream(s.dir.path() / "other") << "not weights";
    fs::rename(s.dir.path() / "other", s.weights());
    CHECK(s.buffer->Check()->put_back.size() == 1);
    CHECK(whole() == "");
    CHECK(s.buffer->committed() == Setup::At(*s.buffer, 2));

    const uint64_t at = fs::file_size(s.weights()) - 5;
    {
      std::fstream(s.weights(), std::ios::in | std::ios::out).seekp(static_cast<long>(at)) << "zap";
    }
    const auto health = s.buffer->Check();
    REQUIRE(health.ok());
    CHECK(health->bad_chunks == std::vector<uint32_t>{2});
    CHECK(s.buffer->committed().empty());
    CHECK_FALSE(fs::exists(s.weights()));
    REQUIRE(s.Update(2) == absl::OkStatus());
    CHECK(whole() == "");
    fs::resize_file(s.weights(), 100);
    CHECK(s.buffer->Check()->bad_chunks.size() == kChunks);
    REQUIRE(s.Update(2) == absl::OkStatus());
    CHECK(whole() == "");
    CHECK(version == 2);
  }
}

TEST_CASE("bytes that changed while it was down are not given the name") {
  for (const uint32_t buffers : {1, 2}) {
    Setup s({.buffers = buffers, .huge_pages = false});
    REQUIRE(s.Update(1) == absl::OkStatus());
    const uint64_t at = fs::file_size(s.weights()) - 5;
    {
      std::fstream(s.weights(), std::ios::in | std::ios::out).seekp(static_cast<long>(at)) << "zap";
    }
    s.Restart();
    CHECK(s.buffer->committed().empty());
    CHECK(s.buffer->last_whole() == Setup::At(*s.buffer, 1));
    CHECK_FALSE(fs::exists(s.weights()));
    CHECK(s.buffer->known(0));
    CHECK_FALSE(s.buffer->known(2));
    REQUIRE(s.Update(1) == absl::OkStatus());
  }
}

TEST_CASE("a receiver's own directory without its state file is taken over and no other") {
  Setup s({.buffers = 1, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  s.buffer.reset();
  fs::remove(s.dir.path() / ".deltawire.state");
  CHECK(Buffer::Recover(s.dir.path(), s.Lock(), s.options).status().code() ==
        StatusCode::kNotFound);
  auto again = Buffer::Create(s.dir.path(), s.Lock(), MakeLayout(), kSeed, s.options);
  REQUIRE(again.status() == absl::OkStatus());
  CHECK((*again)->committed().empty());
  CHECK_FALSE(fs::exists(s.weights()));

  const TempDir foreign;
  std::ofstream(foreign.path() / "model.safetensors") << "somebody's model";
  auto lock = std::make_shared<DirLock>(*DirLock::Acquire(foreign.path()));
  for (int i = 0; i < 2; ++i) {
    CHECK(Buffer::Create(foreign.path(), lock, MakeLayout(), kSeed, s.options).status().code() ==
          StatusCode::kFailedPrecondition);
    CHECK(ReadFile(foreign.path() / "model.safetensors") == "somebody's model");
  }
}

TEST_CASE("a buffer goes on in the other mode") {
  Setup s({.buffers = 1, .huge_pages = false});
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

/// What the child that is killed does, on and on.
void WriteVersions(const fs::path& dir, const Buffer::Options& options, uint64_t seed,
                   std::atomic<uint64_t>* committed) {
  auto lock = DirLock::Acquire(dir);
  if (!lock.ok()) ::_exit(3);
  auto shared = std::make_shared<DirLock>(std::move(*lock));
  auto buffer = Buffer::Recover(dir, shared, options);
  if (!buffer.ok()) ::_exit(4);
  std::mt19937_64 rng(seed);
  uint64_t v = committed->load();
  for (;;) {
    v += 1 + rng() % 2;
    const std::vector<SideFile> side = {{"config.json", fmt::format("{}", v / 3)},
                                        {fmt::format("f{}.json", v / 5 % 2), "x"}};
    const Status done = Setup::Update(**buffer, v, side);
    if (!done.ok()) ::_exit(5);
    committed->store(v);
    if (rng() % 2 == 0 && !(*buffer)->CatchUp({}, [] { return false; }).ok()) ::_exit(6);
  }
}

/// A process's own look at a file, which no renaming takes away. The kernel sees it as a reader.
class Opened {
 public:
  explicit Opened(const fs::path& path) : fd_(::open(path.c_str(), O_RDONLY)) {
    REQUIRE(fd_ >= 0);
    first_ = bytes();
  }
  ~Opened() { ::close(fd_); }
  std::string bytes() const {
    struct stat file;
    REQUIRE(::fstat(fd_, &file) == 0);
    std::string text(static_cast<size_t>(file.st_size), '\0');
    REQUIRE(::pread(fd_, text.data(), text.size(), 0) == file.st_size);
    return text;
  }
  bool changed() const { return bytes() != first_; }

 private:
  const int fd_;
  std::string first_;
};

TEST_CASE("without leases every update goes to a fresh file, whoever reads and whoever does not") {
  const uint32_t buffers = GENERATE(1u, 2u);
  const bool from_the_start = GENERATE(true, false);  // or switched off meanwhile
  const bool under_way = GENERATE(false, true);
  CAPTURE(buffers, from_the_start, under_way);
  std::optional<testing::DeniedLeases> denied;
  if (from_the_start) denied.emplace(EINVAL);
  Setup s({.buffers = buffers, .huge_pages = false});
  CHECK(s.buffer->lease_problem().empty() != from_the_start);
  REQUIRE(s.Update(1) == absl::OkStatus());
  if (under_way) {
    // An update that was broken off by the end of its process.
    REQUIRE(*s.buffer->BeginUpdate());
    Setup::Bring(*s.buffer, 0, 2);
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
    REQUIRE(*s.buffer->BeginUpdate());
    if (named || v > 2) {
      // Nobody has to wait for a reader, so nobody needs the name away.
      CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
      CHECK(version == v - 1);
    }
    REQUIRE(s.Update(v) == absl::OkStatus());
    CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
    CHECK(version == v);
    CHECK(s.buffer->CatchUp({}, [] { return false; }).ok());
    readers.push_back(std::make_unique<Opened>(s.weights()));
    inodes.insert(InodeOf(s.weights()));
    for (const auto& reader : readers) CHECK_FALSE(reader->changed());
  }
  CHECK(inodes.size() == 4);
  denied.reset();
  s.Restart();
  CHECK(s.buffer->committed() == Setup::At(*s.buffer, 5));
  CHECK(s.buffer->lease_problem() == "");
}

TEST_CASE("in place by option: one file is changed under its reader and has no name meanwhile") {
  const bool leases = GENERATE(true, false);
  CAPTURE(leases);
  std::optional<testing::DeniedLeases> denied;
  if (!leases) denied.emplace(EINVAL);
  Setup s({.buffers = 1, .huge_pages = false, .unsafe_in_place = true});
  REQUIRE(s.Update(1) == absl::OkStatus());
  const uint64_t inode = InodeOf(s.weights());
  const Opened reader(s.weights());
  const testing::FileUser other(s.weights(), Maps(true));
  REQUIRE(*s.buffer->BeginUpdate());
  CHECK(s.buffer->committed().empty());
  CHECK_FALSE(fs::exists(s.weights()));
  REQUIRE(s.Update(2) == absl::OkStatus());
  CHECK(InodeOf(s.weights()) == inode);
  CHECK(reader.changed());
  CHECK((reader.bytes() == ReadFile(s.weights())));
  CHECK(s.buffer->committed() == Setup::At(*s.buffer, 2));
  s.Restart();
  REQUIRE(s.Update(3) == absl::OkStatus());
  CHECK(InodeOf(s.weights()) == inode);
}

TEST_CASE("in place by option: of two files the named one stays and the hidden one is changed") {
  const bool leases = GENERATE(true, false);
  CAPTURE(leases);
  std::optional<testing::DeniedLeases> denied;
  if (!leases) denied.emplace(EINVAL);
  Setup s({.buffers = 2, .huge_pages = false, .unsafe_in_place = true});
  std::vector<std::unique_ptr<Opened>> readers;
  std::set<uint64_t> inodes;
  for (uint64_t v = 1; v < 7; ++v) {
    CAPTURE(v);
    REQUIRE(*s.buffer->BeginUpdate());
    for (uint32_t i = 0; i < kChunks; ++i) Setup::Bring(*s.buffer, i, v);
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
  CHECK(s.buffer->CatchUp({}, [] { return false; })->whole);
  CHECK((readers[4]->bytes() == ReadFile(s.weights())));
}

TEST_CASE("a SIGKILL at a random moment leaves one whole version, or none by its name") {
  for (const uint32_t buffers : {1, 2}) {
    const uint64_t seed0 = 1000 * buffers;
    Setup s({.buffers = buffers, .huge_pages = false});
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
      const pid_t child = ::fork();
      REQUIRE(child >= 0);
      if (child == 0) WriteVersions(s.dir.path(), s.options, seed, committed);
      while (*committed < begin + versions) {
        int status = 0;
        if (::waitpid(child, &status, WNOHANG) != 0) {
          CAPTURE(WEXITSTATUS(status));
          FAIL("the writer ended by itself");
        }
      }
      const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(nanos);
      while (std::chrono::steady_clock::now() < until) {
      }
      REQUIRE(::kill(child, SIGKILL) == 0);
      REQUIRE(::waitpid(child, nullptr, 0) == child);
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
        CHECK(now == Setup::At(*s.buffer, now.id.version));
        CHECK(Torn(s.weights(), s.buffer->layout(), s.buffer->chunks(), &version) == "");
        CHECK(Setup::At(*s.buffer, version).root == now.root);
        CHECK(ReadFile(s.dir.path() / "config.json") == fmt::format("{}", now.id.version / 3));
        *committed = now.id.version;
      } else {
        CHECK(buffers == 1);
        CHECK_FALSE(fs::exists(s.weights()));
      }
      for (uint32_t i = 0; i < kChunks; ++i) {
        if (!s.buffer->known(i)) continue;
        CHECK(kernels::Best().digest(s.buffer->key(), s.buffer->base(i)) == s.buffer->digest(i));
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
}  // namespace deltawire::receiver
