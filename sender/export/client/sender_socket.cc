#include "sender/export/client/sender_socket.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "common/base/trusted_place.h"
#include "common/base/unique_fd.h"

namespace deltawire {
namespace {

// Accounts with lower numbers belong to services, such as the packages' "deltawire".
constexpr uid_t kFirstPerson = 1000;

// In a user namespace all outside users share one number, so none of them can be trusted.
bool IsTrustedPeer(uid_t uid) {
  return uid == ::geteuid() || uid == 0 || (::geteuid() == 0 && uid < kFirstPerson);
}

// Outside directories usually belong to root there.
bool IsTrustedOwner(uid_t uid) { return IsTrustedPeer(uid) || IsOwnOrRoot(uid); }

// The paths whose connections forked children close. Never destroyed: a fork may come any time.
struct Closed {
  std::mutex mu;
  std::vector<std::string> paths;
};
Closed& ClosedPaths() {
  static auto* const closed = new Closed;
  return *closed;
}

// Returns the path, in `peer`, of the socket to which `fd` is connected, or "" for other
// descriptors. A path of full length has no NUL.
std::string_view PeerPath(int fd, sockaddr_un& peer) {
  peer = {};
  socklen_t size = sizeof peer;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return {};
  if (peer.sun_family != AF_UNIX) return {};
  return {peer.sun_path, ::strnlen(peer.sun_path, sizeof peer.sun_path)};
}

bool IsConnectedTo(int fd, const std::vector<std::string>& paths) {
  sockaddr_un peer;
  return std::ranges::find(paths, PeerPath(fd, peer)) != paths.end();
}

// Runs in the child as its only thread. gRPC's objects there still use the numbers, so each number
// stays taken.
void CloseConnections() {
  Closed& closed = ClosedPaths();
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (DIR* const all = ::opendir("/proc/self/fd"); all != nullptr) {
    while (const dirent* const entry = ::readdir(all)) {
      const int fd = std::atoi(entry->d_name);
      if (fd == ::dirfd(all) || !IsConnectedTo(fd, closed.paths)) continue;
      if (nothing.get() < 0 || ::dup3(nothing.get(), fd, O_CLOEXEC) < 0) ::close(fd);
    }
    ::closedir(all);
  }
  closed.mu.unlock();
}

}  // namespace

StatusOr<std::optional<SenderPeer>> LookAtSender(const std::string& socket) {
  sockaddr_un address{};
  if (socket.size() >= sizeof address.sun_path) {
    return Errorf(StatusCode::kInvalidArgument,
                  "socket path {} is longer than {} bytes; give the sender a --data-dir with a "
                  "shorter path",
                  socket, sizeof address.sun_path - 1);
  }
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return ErrnoError("socket");
  address.sun_family = AF_UNIX;
  socket.copy(address.sun_path, socket.size());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return std::nullopt;
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return ErrnoError("ask who listens at " + socket);
  }
  if (!IsTrustedPeer(peer.uid)) {
    return Errorf(StatusCode::kPermissionDenied,
                  "the process {} that listens at {} runs as user {}, and this one as user {}: it "
                  "would get the weights; run the trainer as the sender's user, or name the "
                  "sender's socket",
                  peer.pid, socket, peer.uid, ::geteuid());
  }
  DW_RETURN_IF_ERROR(CheckTrustedPlace(socket, IsTrustedOwner));
  sockaddr_un bound;
  return SenderPeer{.uid = peer.uid, .bound = std::string(PeerPath(fd.get(), bound))};
}

Status CheckHalfOwner(int fd, const std::string& path, uid_t sender) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return ErrnoError("stat " + path);
  if (S_ISREG(info.st_mode) &&
      (info.st_uid == sender || info.st_uid == 0 || info.st_uid == ::geteuid())) {
    return absl::OkStatus();
  }
  return Errorf(StatusCode::kPermissionDenied,
                "{} is not a regular file of the sender's user ({}), but of user {}; restart the "
                "sender",
                path, sender, info.st_uid);
}

void CloseInForkedChildren(const std::string& bound) {
  if (bound.empty()) return;
  static std::once_flag once;
  std::call_once(once, [] {
    ::pthread_atfork([] { ClosedPaths().mu.lock(); }, [] { ClosedPaths().mu.unlock(); },
                     CloseConnections);
  });
  Closed& closed = ClosedPaths();
  const std::lock_guard lock(closed.mu);
  if (std::ranges::find(closed.paths, bound) == closed.paths.end()) closed.paths.push_back(bound);
}

}  // namespace deltawire
