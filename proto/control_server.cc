#include "proto/control_server.h"

#include <google/protobuf/message_lite.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/support/server_interceptor.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <mutex>
#include <string_view>

#include "common/base/log.h"
#include "common/base/log_throttle.h"
#include "common/base/status.h"
#include "proto/convert.h"

namespace deltawire {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr int kHandshakeMillis = 5000;
// A blocking call holds a thread until it is answered; gRPC refuses further ones with
// RESOURCE_EXHAUSTED. Longer calls have lower limits (Access::Hold), and watches hold no thread.
constexpr int kMostThreads = 512;
// The limit of one connection. gRPC's clients queue further streams.
constexpr int kMostStreams = 1024;
// The bytes that gRPC reads ahead in a stream. By default that grows with the link to 16 MiB and
// more; our messages are small.
constexpr int kReadAhead = 64 << 10;
// The prefix of methods whose requests are our messages, and not bytes.
constexpr std::string_view kOurs = "/deltawire.";

// Removes a socket file that a killed daemon left. Fails if a process listens on it.
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
                  "listening on {}: address already in use; stop the sender that has it, or choose "
                  "another socket",
                  path);
  }
  struct stat found;
  if (lstat(path.c_str(), &found) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoError("stat " + path);
  }
  if (!S_ISSOCK(found.st_mode) || found.st_uid != geteuid()) {
    return Errorf(StatusCode::kAlreadyExists,
                  "{} is not a socket of this user's; remove it or choose another path", path);
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoError("remove " + path);
  return absl::OkStatus();
}

/// `address` is "host:port" or "[v6]:port".
StatusOr<UniqueFd> ListenHostPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  uint16_t port = 0;
  const char* end = address.data() + address.size();
  if (colon == std::string::npos ||
      std::from_chars(address.data() + colon + 1, end, port).ptr != end) {
    return Errorf(StatusCode::kInvalidArgument, "listening on {} for gRPC: want host:port",
                  address);
  }
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  auto listening = ListenTcp(host, port);
  if (listening.ok()) return listening;
  return Annotate(listening.status(), "gRPC");
}

// Logs gRPC's own complaints at a limited rate: strangers can cause failed TLS handshakes.
void LogGrpc(gpr_log_func_args* line) {
  static LogThrottle throttle;
  if (line->severity != GPR_LOG_SEVERITY_ERROR) return;
  if (throttle.Allow(fmt::format("{}:{}", line->file, line->line))) {
    LogWarn("gRPC: {}", line->message);
  }
}

namespace exp = grpc::experimental;

// Reports each whole message of one call to the ControlConnections.
class WholeMessages final : public exp::Interceptor {
 public:
  WholeMessages(std::shared_ptr<ControlConnections> connections, exp::ServerRpcInfo& call)
      : connections_(std::move(connections)), call_(call) {}
  void Intercept(exp::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(exp::InterceptionHookPoints::POST_RECV_MESSAGE)) {
      if (const void* message = methods->GetRecvMessage()) Tell(message);
    }
    methods->Proceed();
  }

 private:
  void Tell(const void* message) {
    size_t bytes = 0;
    if (peer_.empty()) {  // at construction the call has neither peer nor metadata
      peer_ = Unescaped(call_.server_context()->peer());
      for (const auto& [key, value] : call_.server_context()->client_metadata()) {
        bytes += key.size() + value.size();
      }
    }
    if (std::string_view(call_.method()).starts_with(kOurs)) {
      bytes += static_cast<const google::protobuf::MessageLite*>(message)->ByteSizeLong();
    }
    connections_->Whole(peer_, bytes);
  }

  const std::shared_ptr<ControlConnections> connections_;
  exp::ServerRpcInfo& call_;
  std::string peer_;
};

class WholeMessagesOfCalls final : public exp::ServerInterceptorFactoryInterface {
 public:
  explicit WholeMessagesOfCalls(std::shared_ptr<ControlConnections> connections)
      : connections_(std::move(connections)) {}
  exp::Interceptor* CreateServerInterceptor(exp::ServerRpcInfo* call) override {
    return new WholeMessages(connections_, *call);  // gRPC owns it
  }

 private:
  const std::shared_ptr<ControlConnections> connections_;
};

// Limits the memory that a peer of a TCP port can occupy.
void SetLimits(grpc::ServerBuilder& builder, const std::shared_ptr<ControlConnections>& limited) {
  builder.SetMaxReceiveMessageSize(kMaxTcpRequest);
  builder.SetResourceQuota(grpc::ResourceQuota("control").SetMaxThreads(kMostThreads));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostStreams);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kReadAhead);
  // gRPC checks only a compressed message's length, although it may grow by a factor of 1,000.
  for (const auto compressed : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(compressed, false);
  }
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  std::vector<std::unique_ptr<exp::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(std::make_unique<WholeMessagesOfCalls>(limited));
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
}

}  // namespace

StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(const std::string& address,
                                                              std::vector<grpc::Service*> services,
                                                              const Access& access,
                                                              const ControlLimits& limits) {
  // In gRPC both settings are process-wide and must precede the first builder.
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    gpr_set_log_function(LogGrpc);
  });
  const bool is_unix = address.starts_with(kUnix);
  const std::string path = is_unix ? address.substr(kUnix.size()) : "";
  if (is_unix) DW_RETURN_IF_ERROR(ClearStaleSocket(path));

  auto control = std::make_unique<ControlServer>();
  DW_ASSIGN_OR_RETURN(UniqueFd listener, is_unix ? ListenUnix(path) : ListenHostPort(address));
  if (!is_unix) control->port_ = PortOf(listener);
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  if (!is_unix) {
    DW_ASSIGN_OR_RETURN(credentials, access.ForServer(IsLoopbackAddress(address)));
  }
  const auto may_come = [is_unix, name = "control " + address](int fd) {
    if (!is_unix) return true;
    // The socket file's mode restricts it as well, but a file can be given away.
    ucred peer{};
    socklen_t size = sizeof peer;
    const bool known = ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
    if (known && (peer.uid == ::geteuid() || peer.uid == 0)) return true;
    static LogThrottle throttle;
    if (throttle.Allow(name)) {
      LogWarn("{}: refused process {} of user {}: this daemon serves user {} and root", name,
              peer.pid, peer.uid, ::geteuid());
    }
    return false;
  };
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxControlMessage);
  builder.SetMaxSendMessageSize(kMaxControlMessage);
  // Receivers stay attached through quiet hours. gRPC must not treat their keepalives as abuse.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // If a peer's machine or network fails silently, its calls end after the sum of these two times,
  // even a call that only waits for an answer.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A connection that never speaks would hold a descriptor.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMillis);
  if (!is_unix) {
    DW_ASSIGN_OR_RETURN(control->limited_, ControlConnections::Start("control " + address, limits));
    SetLimits(builder, control->limited_);
  }
  using Experimental = grpc::ServerBuilder::experimental_type;
  control->connections_ = builder.experimental().AddExternalConnectionAcceptor(
      Experimental::ExternalConnectionType::FROM_FD, credentials);
  for (grpc::Service* s : services) builder.RegisterService(s);
  control->server_ = builder.BuildAndStart();
  if (control->server_ == nullptr) {
    return Errorf(StatusCode::kInternal, "gRPC at {} cannot be started", address);
  }
  const int listening = listener.get();
  control->acceptor_.emplace(
      std::move(listener), "control " + address, Acceptor::kReserve,
      [handler = control->connections_.get(), limited = control->limited_, may_come,
       listening](int fd) {
        if (!may_come(fd) || (limited != nullptr && !limited->Take(fd))) {
          close(fd);
          return;
        }
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
        connection.listener_fd = listening;
        connection.fd = fd;
        handler->HandleNewConnection(&connection);
      });
  return control;
}

ControlServer::~ControlServer() {
  if (server_ != nullptr) Shutdown(std::chrono::milliseconds(0));
}

void ControlServer::Shutdown(std::chrono::milliseconds grace) {
  if (server_ == nullptr) return;
  acceptor_.reset();
  server_->Shutdown(std::chrono::system_clock::now() + grace);
  server_->Wait();
  server_.reset();
}

}  // namespace deltawire
