#include "sender/export/client/trainer_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "common/base/unique_fd.h"

namespace deltawire {

std::string TrainerSocketOf(std::string endpoint) {
  std::error_code ignored;
  const std::filesystem::path path(endpoint);
  const auto type = std::filesystem::status(path, ignored).type();
  const bool directory =
      type == std::filesystem::file_type::directory ||
      (type == std::filesystem::file_type::not_found && path.extension() != ".sock");
  return directory ? (path / "trainer.sock").string() : endpoint;
}

Status ProbeTrainerSocket(const std::string& path, std::string_view pass) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Errorf(StatusCode::kInvalidArgument, "the socket's path {} is longer than {} bytes",
                  path, sizeof address.sun_path - 1);
  }
  path.copy(address.sun_path, path.size());
  // Non-blocking, because a stopped sender with a full backlog still counts as present.
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return ErrnoError("socket");
  const int rc = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int err = errno;
  if (rc == 0 || err == EAGAIN) return absl::OkStatus();
  if (err == EACCES || err == EPERM) {
    struct stat owner {};
    const bool known = ::stat(path.c_str(), &owner) == 0;
    return Errorf(StatusCode::kUnavailable,
                  "the sender's socket {} is closed to user {} ({}); run this as the sender's "
                  "user{}, or {}",
                  path, ::geteuid(), std::strerror(err),
                  known ? fmt::format(" ({})", owner.st_uid) : "", pass);
  }
  return Errorf(StatusCode::kUnavailable,
                "no sender listens at {} ({}); start deltawire-sender on this machine, or {}", path,
                std::strerror(err), pass);
}

}  // namespace deltawire
