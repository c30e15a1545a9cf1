// A committed file that is served to other receivers, and the updates that want to change it.
#include "receiver/buffer/served_file.h"

#include <catch2/catch.hpp>
#include <thread>

#include "receiver/buffer/catch_up.h"
#include "tests/support/denied_leases.h"
#include "tests/support/file_user.h"
#include "tests/unit/receiver/buffer/buffer_rig.h"

namespace deltawire::receiver::served_file_test {
namespace {

using std::chrono::milliseconds;

std::string TextOf(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("a file that is served is closed only when nobody reads it") {
  BufferRig s({.buffers = 1, .huge_pages = false});
  CHECK(s.buffer->Serve() == nullptr);
  REQUIRE(s.Update(1) == absl::OkStatus());
  const auto file = s.buffer->Serve();
  REQUIRE(file != nullptr);
  CHECK(s.buffer->Serve() == file);
  auto lease = file->Lease();
  REQUIRE(lease != nullptr);
  CHECK_FALSE(file->Close());
  CHECK_FALSE(file->Drain(milliseconds(1)));
  CHECK(file->Lease() == nullptr);  // who drains lets nobody begin
  file->EndDrain();
  CHECK(file->Lease() != nullptr);
  std::thread leaves([&] { lease = nullptr; });
  CHECK(file->Drain(std::chrono::minutes(1)));
  leaves.join();
  CHECK(file->Close());
  CHECK(file->Lease() == nullptr);
}

TEST_CASE("one file: an update waits for those who are served, and then closes the file") {
  BufferRig s({.buffers = 1, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  const auto file = s.buffer->Serve();
  auto lease = file->Lease();
  const std::string before = TextOf(file->data());
  CHECK(absl::IsUnavailable(s.Update(2)));
  CHECK(s.buffer->update().Readers() == "receivers that this one serves");
  CHECK(s.buffer->update().BlockingFile() == file);
  CHECK((TextOf(file->data()) == before));
  CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 1));
  lease = nullptr;
  CHECK(s.buffer->update().BlockingFile() == nullptr);
  REQUIRE(s.Update(2) == absl::OkStatus());
  CHECK(file->Lease() == nullptr);
  const auto next = s.buffer->Serve();
  CHECK(next != file);
  CHECK(next->Lease() != nullptr);
}

TEST_CASE("one file: those who are served are in the way only while nobody else has it open") {
  BufferRig s({.buffers = 1, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  const auto file = s.buffer->Serve();
  const auto lease = file->Lease();
  CHECK(s.buffer->update().BlockingFile() == file);
  {
    const testing::FileUser loader(s.weights(), [](int) { return true; });
    CHECK(s.buffer->update().BlockingFile() == nullptr);
    CHECK(s.buffer->update().Readers() != "receivers that this one serves");
    CHECK_FALSE(*s.buffer->update().Begin());
  }
  CHECK(s.buffer->update().BlockingFile() == file);
  CHECK(InodeOf(s.weights()) != 0);
}

TEST_CASE("a file that an update changes is not opened to those who are served") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  BufferRig s({.buffers = buffers, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  const auto file = s.buffer->Serve();
  REQUIRE(file->Drain(milliseconds(1)));
  file->EndDrain();
  CHECK(file->Lease() != nullptr);  // nothing has changed it
  if (buffers == 2) REQUIRE(s.Update(2) == absl::OkStatus());
  // One thread made way and found the file in use; another one has begun the update since.
  REQUIRE(file->Drain(milliseconds(1)));
  REQUIRE(*s.buffer->update().Begin());
  file->EndDrain();
  CHECK(file->Lease() == nullptr);
}

TEST_CASE("one file without leases: an update goes to a fresh file and nobody is in the way") {
  const testing::DeniedLeases denied(EINVAL);
  BufferRig s({.buffers = 1, .huge_pages = false});
  REQUIRE_FALSE(s.buffer->lease_problem().empty());
  REQUIRE(s.Update(1) == absl::OkStatus());
  const auto file = s.buffer->Serve();
  const auto lease = file->Lease();
  const std::string before = TextOf(file->data());
  CHECK(s.buffer->update().BlockingFile() == nullptr);
  REQUIRE(s.Update(2) == absl::OkStatus());
  CHECK((TextOf(file->data()) == before));
}

TEST_CASE("two files: bytes that are served stay while updates go on, in a fresh file if need be") {
  BufferRig s({.buffers = 2, .huge_pages = false});
  REQUIRE(s.Update(1) == absl::OkStatus());
  const auto first = s.buffer->Serve();
  const auto lease = first->Lease();
  const std::string before = TextOf(first->data());
  REQUIRE(s.Update(2) == absl::OkStatus());
  // The file of version 1 is the hidden one now; neither the catch-up nor an update may change it.
  CHECK(s.buffer->update().BlockingFile() == first);
  const auto caught = CatchUpSecondFile(*s.buffer, {}, [] { return false; });
  REQUIRE(caught.ok());
  CHECK_FALSE(caught->whole);
  for (uint64_t v = 3; v <= 5; ++v) REQUIRE(s.Update(v) == absl::OkStatus());
  CHECK((TextOf(first->data()) == before));
  CHECK(first->Lease() != nullptr);  // its file is nobody else's by now
  s.Restart();
  CHECK(s.buffer->committed() == BufferRig::At(*s.buffer, 5));
  CHECK((TextOf(first->data()) == before));
}

}  // namespace deltawire::receiver::served_file_test
