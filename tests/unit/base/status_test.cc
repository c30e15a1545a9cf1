#include "common/base/status.h"

#include <catch2/catch.hpp>
#include <memory>

#include "common/base/state_id.h"
#include "common/base/write_error.h"

namespace deltawire::status_test {
namespace {

TEST_CASE("Errorf carries its code and the formatted message") {
  const Status s = Errorf(StatusCode::kDataLoss, "chunk {} of {}", 7, "w");
  CHECK(s.code() == StatusCode::kDataLoss);
  CHECK(MessageOf(s) == "chunk 7 of w");
}

TEST_CASE("Annotate keeps the code and leaves success alone") {
  const Status s = Annotate(Errorf(StatusCode::kNotFound, "no tensor"), "file f");
  CHECK(s.code() == StatusCode::kNotFound);
  CHECK(MessageOf(s) == "file f: no tensor");
  CHECK(Annotate(absl::OkStatus(), "file f").ok());
}

TEST_CASE("system errors keep their meaning") {
  const auto [err, code] = GENERATE(table<int, StatusCode>({
      {ENOENT, StatusCode::kNotFound},
      {EACCES, StatusCode::kPermissionDenied},
      {EPERM, StatusCode::kPermissionDenied},
      {EEXIST, StatusCode::kAlreadyExists},
      {EADDRINUSE, StatusCode::kAlreadyExists},
      {ENOSPC, StatusCode::kResourceExhausted},
      {ENOMEM, StatusCode::kResourceExhausted},
      {EIO, StatusCode::kInternal},
  }));
  CAPTURE(err);
  const Status s = ErrnoError("open /x", err);
  CHECK(s.code() == code);
  CHECK(MessageOf(s) == std::string("open /x: ") + std::strerror(err));
}

TEST_CASE("ErrnoError takes errno by default") {
  errno = ENOSPC;
  CHECK(ErrnoError("write").code() == StatusCode::kResourceExhausted);
}

StatusOr<std::unique_ptr<int>> Make(bool ok) {
  if (!ok) return Errorf(StatusCode::kUnavailable, "not now");
  return std::make_unique<int>(41);
}

StatusOr<int> Next(bool first_ok, bool second_ok) {
  DW_ASSIGN_OR_RETURN(const auto value, Make(first_ok));
  DW_RETURN_IF_ERROR(second_ok ? absl::OkStatus() : Errorf(StatusCode::kAborted, "second"));
  return *value + 1;
}

TEST_CASE("the macros pass values through and errors out") {
  CHECK(Next(true, true).value() == 42);
  CHECK(Next(false, true).status().code() == StatusCode::kUnavailable);
  CHECK(Next(true, false).status().code() == StatusCode::kAborted);
}

TEST_CASE("states order by epoch before version") {
  CHECK(StateId{1, 9} < StateId{2, 3});
  CHECK(StateId{2, 3} < StateId{2, 4});
  CHECK(ToString(StateId{}) == "nothing");
  CHECK(ToString(StateId{1, 7}) == "version 7");
  CHECK(ToString(StateId{2, 7}) == "version 7 (epoch 2)");
}

TEST_CASE("a file that its filesystem has no room for is an error with what to do about it") {
  const Status full = WriteError("/dev/shm/m/side", ENOSPC);
  CHECK(full.code() == StatusCode::kResourceExhausted);
  CHECK(MessageOf(full) ==
        "write /dev/shm/m/side: No space left on device; remove files there, or give a tmpfs more "
        "room (mount -o remount,size=...)");
  CHECK(MessageOf(WriteError("/a", EACCES)) == "write /a: Permission denied");
}

}  // namespace
}  // namespace deltawire::status_test
