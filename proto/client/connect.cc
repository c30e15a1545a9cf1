#include "proto/client/connect.h"

#include <algorithm>

#include "common/config/endpoint.h"
#include "proto/convert.h"
#include "proto/dial.h"

namespace deltawire {
namespace {

using std::chrono::milliseconds;

constexpr const char* kAbsentTag = "deltawire.dev/absent";
// The limit of each step of a diagnosis. A daemon that answers at all answers sooner.
constexpr milliseconds kDiagnosisLimit{1000};
// The limit after a dial that used up its timeout, because the user has waited enough.
constexpr milliseconds kLateDiagnosisLimit{200};

Status Unreachable(const Diagnosis& diagnosis, const DialedPeer& peer) {
  Status status(StatusCode::kUnavailable, ToString(diagnosis, peer));
  if (diagnosis.absent) status.SetPayload(kAbsentTag, absl::Cord());
  return status;
}

Status NotInTime(const DialedPeer& peer, milliseconds timeout) {
  // Only a numeric address is examined, because a lookup of the host's name has no deadline.
  PortFacts facts;
  facts.connected = absl::DeadlineExceededError("");
  const auto endpoint = ParseEndpoint(peer.address);
  if (endpoint.ok() && IsAddress(*endpoint)) facts = LookAtPort(peer, kLateDiagnosisLimit);
  Diagnosis diagnosis = WhyNotReached(facts, peer);
  const bool silent = facts.connected.ok() ? facts.kind == PortKind::kUnknown
                                           : absl::IsDeadlineExceeded(facts.connected);
  if (silent) {
    diagnosis.why =
        fmt::format("no answer in {} ms{}", timeout.count(),
                    facts.connected.ok() ? ", although its port takes connections" : "");
  }
  return Unreachable(diagnosis, peer);
}

}  // namespace

StatusOr<std::shared_ptr<grpc::Channel>> ConnectControl(const DialedPeer& peer,
                                                        milliseconds timeout) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // the second channel must connect by itself
  DW_ASSIGN_OR_RETURN(auto channel, DialControl(peer.address, peer.credentials, args));
  if (timeout.count() == 0) timeout = std::chrono::seconds(10);
  const auto deadline = std::chrono::system_clock::now() + timeout;
  auto state = channel->GetState(true);
  for (int failures = 0; state != GRPC_CHANNEL_READY;) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) {
      // gRPC reads errno some calls after connect (1.51, tcp_client_posix.cc). Sometimes it
      // therefore reports a connection in progress as refused.
      if (++failures == 2) {
        const milliseconds limit = std::min(timeout, kDiagnosisLimit);
        return Unreachable(WhyNotReached(LookAtPort(peer, limit), peer), peer);
      }
      DW_ASSIGN_OR_RETURN(channel, DialControl(peer.address, peer.credentials, args));
      state = channel->GetState(true);
      continue;
    }
    if (!channel->WaitForStateChange(state, deadline)) return NotInTime(peer, timeout);
    state = channel->GetState(true);
  }
  return channel;
}

bool IsAbsent(const Status& s) { return s.GetPayload(kAbsentTag).has_value(); }

Status CheckAnswer(const grpc::Status& s, const DialedPeer& peer) {
  const std::string who = fmt::format("{} {}", peer.who, peer.address);
  switch (s.error_code()) {
    case grpc::StatusCode::OK:
      return absl::OkStatus();
    case grpc::StatusCode::UNAVAILABLE:
      return Errorf(StatusCode::kUnavailable, "{}: {}", who, s.error_message());
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return Errorf(StatusCode::kDeadlineExceeded, "{}: not done in time ({})", who,
                    peer.words.more_time);
    case grpc::StatusCode::UNIMPLEMENTED:
      return Status(StatusCode::kFailedPrecondition,
                    ToString(WhyUnimplemented(peer, kDiagnosisLimit), peer));
    case grpc::StatusCode::PERMISSION_DENIED:
      if (!peer.credentials.file().empty()) break;
      return Errorf(StatusCode::kPermissionDenied, "{}: {}; {}", who, s.error_message(),
                    peer.words.pass_credentials);
    default:
      break;
  }
  return FromGrpc(s, who);
}

}  // namespace deltawire
