#include "proto/client/diagnosis.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "common/config/endpoint.h"
#include "proto/client/tcp.h"
#include "proto/deltawire/v1/receiver.grpc.pb.h"
#include "proto/deltawire/v1/sender.grpc.pb.h"
#include "proto/dial.h"

namespace deltawire {
namespace {

using std::chrono::milliseconds;

// Returns an HTTP/2 client's first bytes: the preface, empty settings and two pings. They are
// longer than a header of the bulk protocol, so a bulk port answers, too.
std::string HelloOfHttp2() {
  using std::string_literals::operator""s;
  const std::string settings("\0\0\0\4\0\0\0\0\0"s);
  const std::string ping("\0\0\10\6\0\0\0\0\0deltawir"s);
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + ping + ping;
}

// Reads up to the buffer's size, until the peer closes or is silent for the socket's timeout.
template <size_t kSize>
std::string_view ReadHead(int fd, std::array<char, kSize>& buffer) {
  size_t got = 0;
  while (got < kSize) {
    const ssize_t n = ::recv(fd, buffer.data() + got, kSize - got, 0);
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  return {buffer.data(), got};
}

PortKind KindByHead(std::string_view head) {
  constexpr std::string_view kBulkMagic = "DWF1";  // common/wire/frame.h
  constexpr char kSettings = 4;
  if (head.starts_with(kBulkMagic)) return PortKind::kBulk;
  if (head.starts_with("HTTP/1")) return PortKind::kHttp;
  // A frame's header has three bytes of length, the type, flags, and stream 0.
  if (head.size() >= 9 && head[3] == kSettings &&
      head.substr(5, 4) == std::string_view("\0\0\0\0", 4)) {
    return PortKind::kGrpc;
  }
  if (head.starts_with("\x15\x03")) return PortKind::kTls;  // an alert
  return head.empty() ? PortKind::kUnknown : PortKind::kOther;
}

// Returns the protocol that the port answers a plaintext HTTP/2 client with.
PortKind AskInPlaintext(const std::string& address, milliseconds limit) {
  const auto fd = ConnectTcp(address, limit);
  if (!fd.ok()) return PortKind::kUnknown;
  SetTimeout(fd->get(), limit);
  const std::string hello = HelloOfHttp2();
  if (::send(fd->get(), hello.data(), hello.size(), MSG_NOSIGNAL) < 0) return PortKind::kUnknown;
  std::array<char, 9> head;
  return KindByHead(ReadHead(fd->get(), head));
}

// Tries TLS at the port. Returns false if the port does not speak it.
bool AskByTls(int fd, const DialedPeer& peer, milliseconds limit, PortFacts& facts) {
  const auto endpoint = ParseEndpoint(peer.address);
  SetTimeout(fd, limit);
  auto tls = security::ProbeTls(fd, endpoint.ok() ? endpoint->host : "", *peer.credentials.Now());
  if (!tls.ok()) return false;
  facts.tls = *std::move(tls);
  facts.kind = facts.tls->http2 ? PortKind::kGrpcTls : PortKind::kTls;
  return true;
}

// Returns "start deltawire-sender there, or pass ...".
std::string StartIt(const DialedPeer& peer) {
  return fmt::format("start deltawire-{} there, or {}", peer.who, peer.words.pass_address);
}

Diagnosis OfCertificates(const security::PeerTls& tls, const DialedPeer& peer) {
  if (!peer.credentials.dials_tls()) {
    if (peer.credentials.file().empty()) {
      return {"its port speaks TLS, and this side has no keys",
              std::string(peer.words.pass_credentials)};
    }
    return {fmt::format("its port speaks TLS, and {} has no `ca`", peer.credentials.file()),
            "add the `ca` that the daemon's certificate comes from"};
  }
  if (!tls.disbelieved.empty()) {
    return {fmt::format("its certificate {} is not believed: {} (issued by {} for {})",
                        tls.certificate.subject, tls.disbelieved, tls.issuer,
                        fmt::join(tls.names, ", ")),
            tls.remedy};
  }
  if (!tls.refused.empty()) {
    return {fmt::format("it does not believe our certificate: {}", tls.refused),
            "if ours has ended, renew it: deltawire certs DIR NAME... with the authority's "
            "directory; else both ends need certificates of one authority, and clocks that agree"};
  }
  return {"the connection failed, although its port answers now", "try again, or look at its log"};
}

// Calls GetStatus of the service, and returns the code of its answer.
template <typename Service, typename Request, typename Response>
grpc::StatusCode AskForStatus(const std::shared_ptr<grpc::Channel>& channel, milliseconds limit) {
  const auto stub = Service::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + limit);
  Response response;
  return stub->GetStatus(&context, Request(), &response).error_code();
}

bool IsAnswer(grpc::StatusCode code) {
  return code != grpc::StatusCode::UNIMPLEMENTED && code != grpc::StatusCode::UNAVAILABLE &&
         code != grpc::StatusCode::DEADLINE_EXCEEDED;
}

}  // namespace

PortFacts LookAtPort(const DialedPeer& peer, milliseconds limit) {
  PortFacts facts;
  const auto fd = ConnectTcp(peer.address, limit);
  facts.connected = fd.status();
  if (!fd.ok()) return facts;
  const bool tls_first = peer.credentials.dials_tls();
  if (tls_first && AskByTls(fd->get(), peer, limit, facts) && facts.kind == PortKind::kGrpcTls) {
    return facts;
  }
  // A bulk port answers plaintext in plaintext even if it serves TLS.
  const PortKind plain = AskInPlaintext(peer.address, limit);
  if (plain == PortKind::kBulk || plain == PortKind::kHttp || plain == PortKind::kGrpc) {
    facts.kind = plain;
    return facts;
  }
  if (!tls_first && AskByTls(fd->get(), peer, limit, facts)) return facts;
  if (facts.kind == PortKind::kUnknown) facts.kind = plain;
  return facts;
}

Diagnosis WhyNotReached(const PortFacts& facts, const DialedPeer& peer) {
  const DialWords& words = peer.words;
  const std::string control_port =
      fmt::format("{} (the {}'s --control-listen)", words.pass_address, peer.who);
  switch (facts.connected.code()) {
    case StatusCode::kOk:
      break;
    case StatusCode::kNotFound:
      return {std::string(MessageOf(facts.connected)),
              fmt::format("check the spelling, or {}", words.pass_address)};
    case StatusCode::kFailedPrecondition:
      return {"nothing listens there (connection refused)", StartIt(peer), true};
    case StatusCode::kDeadlineExceeded:
      return {"no answer",
              fmt::format("check that the machine is up and that its firewall lets the "
                          "port through; {}",
                          words.more_time)};
    default:
      return {std::string(MessageOf(facts.connected)), StartIt(peer)};
  }
  switch (facts.kind) {
    case PortKind::kGrpcTls:
      return OfCertificates(*facts.tls, peer);
    case PortKind::kGrpc:
      if (!peer.credentials.dials_tls()) {
        return {"the connection failed, although its port answers now",
                "try again, or look at its log"};
      }
      return {fmt::format("its port speaks no TLS, and {} asks for it", peer.credentials.file()),
              fmt::format("give that daemon --credentials with a certificate, or leave {} out here",
                          words.credentials)};
    case PortKind::kBulk:
      return {"that is a bulk port, which carries weights only", control_port};
    case PortKind::kHttp:
      return {"that port speaks HTTP/1 and no gRPC, as a port for metrics does", control_port};
    case PortKind::kTls:
    case PortKind::kOther:
      return {"another program listens there, which speaks no gRPC", control_port};
    case PortKind::kUnknown:
      break;
  }
  return {"its port takes connections, and nothing answers",
          fmt::format("see whether deltawire-{} hangs there or another program has that port; {}",
                      peer.who, words.more_time)};
}

Diagnosis WhyUnimplemented(const DialedPeer& peer, milliseconds limit) {
  const bool sender = peer.who == "sender";
  const std::string_view other = sender ? "receiver" : "sender";
  const auto channel = DialControl(peer.address, peer.credentials, {});
  if (channel.ok()) {
    const auto of_sender =
        AskForStatus<v1::SenderService, v1::SenderStatusRequest, v1::SenderStatusResponse>(*channel,
                                                                                           limit);
    const auto of_receiver =
        AskForStatus<v1::ReceiverService, v1::ReceiverStatusRequest, v1::ReceiverStatusResponse>(
            *channel, limit);
    if (IsAnswer(sender ? of_sender : of_receiver)) {
      return {
          fmt::format("that {} is of an older release, which does not have this call", peer.who),
          "update it"};
    }
    if (IsAnswer(sender ? of_receiver : of_sender)) {
      return {fmt::format("a {} listens there, and no {}", other, peer.who),
              peer.words.pass_address};
    }
  }
  return {fmt::format("another gRPC server listens there, and no {}", peer.who),
          peer.words.pass_address};
}

std::string ToString(const Diagnosis& diagnosis, const DialedPeer& peer) {
  return fmt::format("{} {}: {}{}{}", peer.who, peer.address, diagnosis.why,
                     diagnosis.remedy.empty() ? "" : "; ", diagnosis.remedy);
}

}  // namespace deltawire
