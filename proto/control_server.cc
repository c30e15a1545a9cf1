#include "proto/control_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <mutex>
#include <string_view>

#include "common/base/status.h"
#include "proto/convert.h"

namespace deltawire {
namespace {

constexpr std::string_view kUnix = "unix:";

// Removes a socket file that a killed daemon left; refuses one that somebody listens on.
Status ClearStaleSocket(const std::string& path) {
  sockaddr_un address{};
  if (path.size() >= sizeof address.sun_path) {
    return Errorf(StatusCode::kInvalidArgument,
                  "socket path {} is longer than {} bytes; choose a shorter one", path,
                  sizeof address.sun_path - 1);
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return ErrnoError("socket");
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  const bool alive = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  if (alive) {
    return Errorf(StatusCode::kAlreadyExists,
                  "listening on {}: another process does already; stop it or choose another socket",
                  path);
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoError("remove " + path);
  return absl::OkStatus();
}

sigset_t TerminationSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(
    const std::string& address, std::vector<grpc::Service*> services) {
  // Both are process-wide in gRPC and must come before the first builder.
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  const bool is_unix = address.starts_with(kUnix);
  const std::string path = is_unix ? address.substr(kUnix.size()) : "";
  if (is_unix) DW_RETURN_IF_ERROR(ClearStaleSocket(path));

  auto control = std::make_unique<ControlServer>();
  grpc::ServerBuilder builder;
  // Without this a second daemon would silently share the port.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(kMaxControlMessage);
  builder.SetMaxSendMessageSize(kMaxControlMessage);
  // Receivers stay attached through quiet hours; their keepalives must not look like abuse.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &control->port_);
  for (grpc::Service* s : services) builder.RegisterService(s);
  // The socket file is the door: only its owner may open it, from the moment that it is there.
  const mode_t old_mask = is_unix ? umask(0177) : 0;
  control->server_ = builder.BuildAndStart();
  if (is_unix) umask(old_mask);
  if (control->server_ == nullptr || (!is_unix && control->port_ == 0)) {
    return Errorf(StatusCode::kAlreadyExists,
                  "listening on {} for gRPC failed: the address is taken or not this machine's; "
                  "choose another",
                  address);
  }
  return control;
}

ControlServer::~ControlServer() {
  if (server_ != nullptr) Shutdown(std::chrono::milliseconds(0));
}

void ControlServer::Shutdown(std::chrono::milliseconds grace) {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + grace);
  server_->Wait();
  server_.reset();
}

void BlockTerminationSignals() {
  const sigset_t set = TerminationSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

const char* WaitForTermination() {
  const sigset_t set = TerminationSignals();
  int received = 0;
  sigwait(&set, &received);
  return received == SIGINT ? "SIGINT" : "SIGTERM";
}

}  // namespace deltawire
