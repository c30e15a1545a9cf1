#include "proto/client/connect.h"

#include "proto/convert.h"
#include "proto/dial.h"

namespace deltawire {
namespace {

Status NobodyThere(std::string_view who, const std::string& address, std::string_view why,
                   const DialWords& words) {
  return Errorf(StatusCode::kUnavailable, "{0} {1}: {2}; is deltawire-{0} running there?{3}{4}",
                who, address, why, words.another.empty() ? "" : " ", words.another);
}

// gRPC says of a connection that failed no more than that; TLS is what a user may have forgotten.
std::string WhyNot(const security::Credentials& credentials, const DialWords& words) {
  return credentials.dials_tls()
             ? fmt::format("not reachable, or not by TLS with these {}", words.credentials)
             : fmt::format("not reachable (or it speaks TLS, which takes {})", words.credentials);
}

}  // namespace

StatusOr<std::shared_ptr<grpc::Channel>> ConnectControl(std::string_view who,
                                                        const std::string& address,
                                                        security::Credentials& credentials,
                                                        std::chrono::milliseconds timeout,
                                                        const DialWords& words) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // the second channel connects by itself
  DW_ASSIGN_OR_RETURN(auto channel, DialControl(address, credentials, args));
  if (timeout.count() == 0) timeout = std::chrono::seconds(10);
  const auto deadline = std::chrono::system_clock::now() + timeout;
  auto state = channel->GetState(true);
  for (int failures = 0; state != GRPC_CHANNEL_READY;) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) {
      // gRPC reads errno some calls after connect (1.51, tcp_client_posix.cc), so that at times it
      // takes a connection that is being made for one that was refused.
      if (++failures == 2) return NobodyThere(who, address, WhyNot(credentials, words), words);
      DW_ASSIGN_OR_RETURN(channel, DialControl(address, credentials, args));
      state = channel->GetState(true);
      continue;
    }
    if (!channel->WaitForStateChange(state, deadline)) {
      return NobodyThere(who, address, fmt::format("no answer in {} ms", timeout.count()), words);
    }
    state = channel->GetState(true);
  }
  return channel;
}

Status CheckAnswer(const grpc::Status& s, std::string_view who, const std::string& address,
                   const DialWords& words) {
  if (s.ok()) return absl::OkStatus();
  if (s.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return Errorf(StatusCode::kUnavailable, "{} {}: {}", who, address, s.error_message());
  }
  if (s.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return Errorf(StatusCode::kDeadlineExceeded, "{} {}: not done in time ({})", who, address,
                  words.more_time);
  }
  return FromGrpc(s, fmt::format("{} {}", who, address));
}

}  // namespace deltawire
