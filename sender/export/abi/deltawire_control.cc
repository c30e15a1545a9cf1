// The part of deltawire_export.h for programs that direct the daemons.
#include <chrono>
#include <memory>
#include <string>

#include "common/base/c_abi.h"
#include "proto/client/control_client.h"
#include "sender/export/abi/deltawire_export.h"

using deltawire::ControlCall;
using deltawire::ControlClient;
using deltawire::Errorf;
using deltawire::Status;
using deltawire::StatusCode;
using std::chrono::milliseconds;

using namespace deltawire::c_abi;  // NOLINT(google-build-using-namespace): its other half

struct dw_control {
  std::unique_ptr<ControlClient> client;
};

struct dw_control_call {
  std::unique_ptr<ControlCall> call;
  std::string answer;
};

namespace {

static_assert(DW_UNAUTHENTICATED == static_cast<int>(StatusCode::kUnauthenticated));

constexpr size_t kControlOptionsSize = DW_SIZE_UP_TO(dw_control_options, timeout_ms);

}  // namespace

extern "C" {

int dw_control_open(const dw_control_options* options, dw_control** control) {
  return Guard([&]() -> Status {
    DW_ASSIGN_OR_RETURN(const dw_control_options o,
                        Read(options, kControlOptionsSize, "dw_control_options"));
    if (control == nullptr || o.address == nullptr) {
      return Invalid("the control or the address is NULL");
    }
    if (o.daemon != DW_DAEMON_SENDER && o.daemon != DW_DAEMON_RECEIVER) {
      return Errorf(StatusCode::kInvalidArgument, "daemon {} is none of dw_daemon's", o.daemon);
    }
    ControlClient::Options to{.daemon = o.daemon == DW_DAEMON_SENDER
                                            ? ControlClient::Daemon::kSender
                                            : ControlClient::Daemon::kReceiver,
                              .address = o.address};
    if (o.credentials != nullptr) to.credentials = o.credentials;
    if (o.timeout_ms != 0) to.timeout = milliseconds(o.timeout_ms);
    auto made = std::make_unique<dw_control>();
    DW_ASSIGN_OR_RETURN(made->client, ControlClient::Create(to));
    *control = made.release();
    return {};
  });
}

void dw_control_close(dw_control* control) { delete control; }

int dw_control_start(dw_control* control, const char* method, const char* request,
                     uint32_t timeout_ms, dw_control_call** call) {
  return Guard([&]() -> Status {
    if (control == nullptr || method == nullptr || call == nullptr) {
      return Invalid("an argument is NULL");
    }
    auto made = std::make_unique<dw_control_call>();
    DW_ASSIGN_OR_RETURN(made->call,
                        control->client->Start(method, request == nullptr ? "{}" : request,
                                               milliseconds(timeout_ms)));
    *call = made.release();
    return {};
  });
}

int dw_control_next(dw_control_call* call, uint32_t wait_ms, const char** answer) {
  return Guard([&]() -> Status {
    if (call == nullptr || answer == nullptr) return Invalid("an argument is NULL");
    const milliseconds patience(wait_ms == DW_WAIT_FOREVER ? -1 : static_cast<int64_t>(wait_ms));
    DW_ASSIGN_OR_RETURN(const ControlCall::Turn turn, call->call->Next(patience, &call->answer));
    *answer = turn == ControlCall::Turn::kAnswer ? call->answer.c_str()
              : turn == ControlCall::Turn::kEnd  ? nullptr
                                                 : "";
    return {};
  });
}

void dw_control_cancel(dw_control_call* call) {
  if (call != nullptr) call->call->Cancel();
}

void dw_control_call_destroy(dw_control_call* call) { delete call; }

}  // extern "C"
