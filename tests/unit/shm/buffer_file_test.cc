#include "common/shm/buffer_file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include "common/base/machine.h"
#include "common/layout/safetensors.h"
#include "tests/support/temp_dir.h"

namespace deltawire::buffer_file_test {
namespace {

namespace fs = std::filesystem;

Layout SmallLayout() {
  return *Layout::Create(
      {{"embed", DType::kBF16, {100, 64}}, {"scale", DType::kF32, {3}}, {"bits", DType::kU8, {7}}});
}

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

size_t FilesIn(const fs::path& dir) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(dir), fs::directory_iterator()));
}

ThreadPool populators(2);
const BufferOptions kChoices[] = {
    {true, true}, {false, true}, {true, false}, {false, false}, {true, true, &populators}};

/// The system's temporary directory, and a directory in tmpfs if this machine has /dev/shm.
std::vector<fs::path> Places(const TempDir& temp) {
  std::vector<fs::path> places = {temp.path()};
  std::error_code ec;
  const fs::path memory = fs::path("/dev/shm") / temp.path().filename();
  if (fs::create_directory(memory, ec)) places.push_back(memory);
  return places;
}

TEST_CASE("a created buffer is a safetensors file of zeroes with its blocks taken") {
  const TempDir temp;
  const Layout layout = SmallLayout();
  for (const fs::path& place : Places(temp)) {
    for (const BufferOptions& options : kChoices) {
      CAPTURE(place, options.huge_pages, options.populate);
      const fs::path path = place / "model.safetensors";
      auto buffer = BufferFile::Create(path, layout, options);
      REQUIRE(buffer.ok());
      CHECK(buffer->path() == path);
      CHECK(buffer->data_offset() % kDataAlignment == 0);
      CHECK(buffer->data().size() == layout.total_bytes());
      CHECK(std::all_of(buffer->data().begin(), buffer->data().end(),
                        [](std::byte b) { return b == std::byte{0}; }));
      const std::string header = BuildSafetensorsHeader(layout);
      const std::string file = ReadFile(path);
      CHECK(file.size() == header.size() + layout.total_bytes());
      CHECK(file.starts_with(header));
      struct stat info;
      REQUIRE(::stat(path.c_str(), &info) == 0);
      CHECK(static_cast<uint64_t>(info.st_blocks) * 512 >= file.size());
      CHECK((info.st_mode & 0777) == 0600);
      CHECK(FilesIn(place) == 1);
    }
    fs::remove_all(place);
  }
}

TEST_CASE("what one mapping writes, a second Open and the file show, and Create starts afresh") {
  const TempDir temp;
  const Layout layout = SmallLayout();
  const fs::path path = temp.path() / "a";
  auto first = BufferFile::Create(path, layout, {});
  REQUIRE(first.ok());
  std::memset(first->data().data(), 0x5a, first->data().size());
  for (const BufferOptions& options : kChoices) {
    auto second = BufferFile::Open(path, layout, options);
    REQUIRE(second.ok());
    CHECK(second->data_offset() == first->data_offset());
    CHECK(std::ranges::equal(second->data(), first->data()));
  }
  CHECK(ReadFile(path).ends_with(std::string(layout.total_bytes(), '\x5a')));

  auto fresh = BufferFile::Create(path, layout, {});
  REQUIRE(fresh.ok());
  CHECK(fresh->data()[0] == std::byte{0});
  CHECK(first->data()[0] == std::byte{0x5a});  // the old file lives on in its mapping
}

/// The page faults that this thread takes while it writes to every page of the buffer.
long FaultsOfWriting(BufferFile& buffer) {
  constexpr size_t kPage = 4096;
  struct rusage before, after;
  REQUIRE(::getrusage(RUSAGE_THREAD, &before) == 0);
  for (size_t at = 0; at < buffer.data().size(); at += kPage) buffer.data()[at] = std::byte{1};
  REQUIRE(::getrusage(RUSAGE_THREAD, &after) == 0);
  return after.ru_minflt - before.ru_minflt;
}

TEST_CASE("populating leaves no page to fault in, on the caller, on a pool, on two nodes") {
#ifdef __SANITIZE_THREAD__
  std::puts("SKIPPED: the thread sanitizer's own pages fault, too");
  return;
#endif
  const TempDir temp;
  // There are several chunks, tensors and chunks that end within a page, and a page that several
  // tensors share.
  const Layout layout = *Layout::Create({{"a", DType::kU8, {5'000'001}},
                                         {"b", DType::kU8, {3}},
                                         {"c", DType::kU8, {100}},
                                         {"d", DType::kU8, {4'300'000}}});
  ThreadPool one(1), three(3), nodes(4, {{0}, {1}});
  for (const fs::path& place : Places(temp)) {
    CAPTURE(place);
    auto bare = BufferFile::Create(place / "bare", layout, {false, false});
    REQUIRE(bare.ok());
    const long unpopulated = FaultsOfWriting(*bare);
    CHECK(unpopulated > 100);
    for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &one, &three, &nodes}) {
      const size_t threads = pool == nullptr ? 0 : pool->size();
      CAPTURE(threads);
      auto made = BufferFile::Create(place / "a", layout, {false, true, pool});
      REQUIRE(made.ok());
      // Some faults remain. On a disk, writing pages back makes them read-only again; under asan,
      // the sanitizer's shadow memory of the buffer, an eighth of its size, faults in.
      CHECK(FaultsOfWriting(*made) < unpopulated / 5);
      auto opened = BufferFile::Open(place / "a", layout, {false, true, pool});
      REQUIRE(opened.ok());
      CHECK(FaultsOfWriting(*opened) < unpopulated / 5);
    }
    fs::remove_all(place);
  }
}

TEST_CASE("a mapping survives a rename and a move of its owner") {
  const TempDir temp;
  const Layout layout = SmallLayout();
  auto made = BufferFile::Create(temp.path() / ".model.safetensors.partial", layout, {});
  REQUIRE(made.ok());
  BufferFile buffer = std::move(*made);
  buffer.data()[5] = std::byte{7};
  REQUIRE(buffer.Rename(temp.path() / "model.safetensors").ok());
  CHECK(buffer.path() == temp.path() / "model.safetensors");
  CHECK_FALSE(fs::exists(temp.path() / ".model.safetensors.partial"));
  buffer.data()[6] = std::byte{8};
  const std::string file = ReadFile(buffer.path());
  CHECK(file[buffer.data_offset() + 5] == 7);
  CHECK(file[buffer.data_offset() + 6] == 8);

  fs::create_directory(temp.path() / "other");
  CHECK(buffer.Rename(temp.path() / "other" / "x").code() == StatusCode::kInvalidArgument);
  fs::remove(buffer.path());
  CHECK(buffer.Rename(temp.path() / "x").code() == StatusCode::kNotFound);
}

TEST_CASE("a layout without bytes has a buffer of its header alone") {
  const TempDir temp;
  const auto layout = Layout::Create({{"none", DType::kF32, {0, 4}}});
  REQUIRE(layout.ok());
  auto buffer = BufferFile::Create(temp.path() / "a", *layout, {});
  REQUIRE(buffer.ok());
  CHECK(buffer->data().empty());
  CHECK(BufferFile::Open(temp.path() / "a", *layout, {}).ok());
}

TEST_CASE("Open refuses what is not exactly the layout") {
  const TempDir temp;
  const Layout layout = SmallLayout();
  const fs::path path = temp.path() / "a";
  REQUIRE(BufferFile::Create(path, layout, {}).ok());
  const std::string good = ReadFile(path);
  const auto code_of = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    return BufferFile::Open(path, layout, {}).status();
  };
  REQUIRE(code_of(good).ok());
  for (const size_t keep : {size_t{0}, size_t{7}, size_t{100}, good.size() - 1}) {
    CAPTURE(keep);
    const Status status = code_of(good.substr(0, keep));
    CHECK(status.code() == StatusCode::kFailedPrecondition);
    CHECK(std::string(MessageOf(status)).find(path.native()) != std::string::npos);
  }
  CHECK(code_of(good + '\0').code() == StatusCode::kFailedPrecondition);
  std::string torn = good;
  torn[9] = '\xff';
  CHECK(code_of(torn).code() == StatusCode::kFailedPrecondition);
  // A file of the same tensors by another producer: its data does not start on a page.
  const std::string header = BuildSafetensorsHeader(layout);
  const std::string json = header.substr(8, header.find_last_not_of(' ') - 7);
  std::string foreign(8, '\0');
  StoreLe<uint64_t>(reinterpret_cast<std::byte*>(foreign.data()), json.size());
  const Status status = code_of(foreign + json + good.substr(header.size()));
  CHECK(status.code() == StatusCode::kFailedPrecondition);
  CHECK(std::string(MessageOf(status)).find("not written by deltawire") != std::string::npos);

  REQUIRE(code_of(good).ok());
  const auto other = Layout::Create(
      {{"embed", DType::kF16, {100, 64}}, {"scale", DType::kF32, {3}}, {"bits", DType::kU8, {7}}});
  const Status another = BufferFile::Open(path, *other, {}).status();
  CHECK(another.code() == StatusCode::kFailedPrecondition);
  CHECK(std::string(MessageOf(another)).find("embed") != std::string::npos);
  CHECK(BufferFile::Open(temp.path() / "absent", layout, {}).status().code() ==
        StatusCode::kNotFound);
}

TEST_CASE("Open takes the blocks of a file with holes") {
  const TempDir temp;
  const auto layout = Layout::Create({{"t", DType::kU8, {1 << 20}}});
  const fs::path path = temp.path() / "a";
  const std::string header = BuildSafetensorsHeader(*layout);
  std::ofstream(path, std::ios::binary) << header;
  fs::resize_file(path, header.size() + layout->total_bytes());
  struct stat info;
  REQUIRE(::stat(path.c_str(), &info) == 0);
  REQUIRE(info.st_blocks * 512 < (1 << 20));
  REQUIRE(BufferFile::Open(path, *layout, {true, false}).ok());
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK(info.st_blocks * 512 >= (1 << 20));
}

TEST_CASE("a buffer beyond the free space is refused and leaves nothing behind") {
  const TempDir temp;
  for (const fs::path& place : Places(temp)) {
    CAPTURE(place);
    struct statvfs space;
    REQUIRE(::statvfs(place.c_str(), &space) == 0);
    const uint64_t free = static_cast<uint64_t>(space.f_bavail) * space.f_frsize;
    const auto layout = Layout::Create({{"t", DType::kU8, {free + (uint64_t{1} << 30)}}});
    REQUIRE(layout.ok());
    const Status status = BufferFile::Create(place / "model.safetensors", *layout, {}).status();
    CHECK(status.code() == StatusCode::kResourceExhausted);
    const std::string message(MessageOf(status));
    CAPTURE(message);
    CHECK(message.find((place / "model.safetensors").native()) != std::string::npos);
    const uint64_t need = BuildSafetensorsHeader(*layout).size() + layout->total_bytes();
    CHECK(message.find(std::to_string(need)) != std::string::npos);
    CHECK(message.find("choose another directory") != std::string::npos);
    CHECK(fs::is_empty(place));
    fs::remove_all(place);
  }
}

TEST_CASE("in memory, a buffer beyond the machine's memory is refused though tmpfs promises it") {
  const std::optional<uint64_t> available = AvailableMemory();
  REQUIRE(available.has_value());
  struct statvfs space;
  const uint64_t bytes = *available + (uint64_t{2} << 30);
  // Without a mount of our own, this can be tried only where tmpfs has room for more than the
  // memory.
  if (::statvfs("/dev/shm", &space) != 0 ||
      static_cast<uint64_t>(space.f_bavail) * space.f_frsize < bytes + (1 << 20)) {
    WARN(
        "SKIPPED: /dev/shm is not larger than the memory; only the refusal by its size is checked");
    return;
  }
  const TempDir temp;
  const fs::path place = Places(temp).back();
  const auto layout = Layout::Create({{"t", DType::kU8, {bytes}}});
  const Status status = BufferFile::Create(place / "a", *layout, {}).status();
  CHECK(status.code() == StatusCode::kResourceExhausted);
  CHECK(std::string(MessageOf(status)).find("available") != std::string::npos);
  CHECK(fs::is_empty(place));
  fs::remove_all(place);
}

TEST_CASE("a buffer that is given up while it is made leaves no file") {
  const TempDir temp;
  const auto layout = Layout::Create({{"w", DType::kU8, {64 << 20}}});
  ThreadPool pool(2);
  for (const fs::path& place : Places(temp)) {
    for (ThreadPool* threads : {static_cast<ThreadPool*>(nullptr), &pool}) {
      std::atomic<int> asked{0};
      const BufferOptions options{.pool = threads, .stop = [&] { return ++asked > 0; }};
      CHECK(absl::IsCancelled(BufferFile::Create(place / "a", *layout, options).status()));
      CHECK(fs::is_empty(place));
    }
    if (place != temp.path()) fs::remove_all(place);
  }
}

TEST_CASE("a buffer of parts takes memory for these alone, and so does opening it again") {
  const TempDir temp;
  constexpr uint64_t kMiB = 1 << 20;
  const auto layout = Layout::Create({{"w", DType::kU8, {64 * kMiB}}});
  REQUIRE(layout.ok());
  for (const fs::path& place : Places(temp)) {
    const fs::path path = place / "half";
    const std::vector<ByteRange> only = {
        {6 * kMiB, 8 * kMiB}, {8 * kMiB, 9 * kMiB + 17}, {60 * kMiB, 64 * kMiB}};
    for (const bool populate : {true, false}) {
      CAPTURE(place, populate);
      const BufferOptions options{.huge_pages = false, .populate = populate, .only = only};
      const auto taken = [&] {
        struct stat info;
        REQUIRE(::stat(path.c_str(), &info) == 0);
        return static_cast<uint64_t>(info.st_blocks) * 512;
      };
      auto made = BufferFile::Create(path, *layout, options);
      REQUIRE(made.status() == absl::OkStatus());
      CHECK(taken() >= 7 * kMiB + 17);
      CHECK(taken() < 7 * kMiB + 17 + 5 * 4096);
      std::memset(made->data().data() + 6 * kMiB, 1, 3 * kMiB + 17);
      std::memset(made->data().data() + 60 * kMiB, 2, 4 * kMiB);
      auto opened = BufferFile::Open(path, *layout, options);
      REQUIRE(opened.status() == absl::OkStatus());
      CHECK(taken() < 7 * kMiB + 17 + 5 * 4096);
      CHECK(opened->data()[9 * kMiB + 16] == std::byte{1});
      CHECK(opened->data().back() == std::byte{2});
      CHECK(fs::file_size(path) == made->data_offset() + 64 * kMiB);
    }
    fs::remove_all(place);
  }
}

TEST_CASE("what an earlier crash left under the hidden name is replaced") {
  const TempDir temp;
  std::ofstream(temp.path() / ".model.safetensors.new") << "half made";
  REQUIRE(BufferFile::Create(temp.path() / "model.safetensors", SmallLayout(), {}).ok());
  CHECK(FilesIn(temp.path()) == 1);
}

TEST_CASE("a directory that is not there is named") {
  const TempDir temp;
  const fs::path path = temp.path() / "no" / "model.safetensors";
  const Status status = BufferFile::Create(path, SmallLayout(), {}).status();
  CHECK(status.code() == StatusCode::kNotFound);
  CHECK(std::string(MessageOf(status)).find((temp.path() / "no").native()) != std::string::npos);
}

}  // namespace
}  // namespace deltawire::buffer_file_test
