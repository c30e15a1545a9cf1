// The receiver's gRPC service over a Daemon, which outlives it. No call holds a thread while it
// waits.
#pragma once

#include <chrono>

#include "proto/access.h"
#include "proto/deltawire/v1/receiver.grpc.pb.h"
#include "receiver/daemon.h"

namespace deltawire::receiver {

class ReceiverServiceImpl final
    : public v1::ReceiverService::WithCallbackMethod_Sync<
          v1::ReceiverService::WithCallbackMethod_Verify<
              v1::ReceiverService::WithCallbackMethod_Pause<
                  v1::ReceiverService::WithCallbackMethod_WatchVersions<
                      v1::ReceiverService::WithCallbackMethod_WatchServed<
                          v1::ReceiverService::Service>>>>> {
 public:
  ReceiverServiceImpl(Daemon& daemon, std::shared_ptr<const Access> access)
      : daemon_(daemon), access_(std::move(access)), started_(std::chrono::steady_clock::now()) {}

  grpc::Status GetStatus(grpc::ServerContext*, const v1::ReceiverStatusRequest*,
                         v1::ReceiverStatusResponse*) override;
  grpc::ServerWriteReactor<v1::SyncUpdate>* Sync(grpc::CallbackServerContext*,
                                                 const v1::SyncRequest*) override;
  grpc::ServerUnaryReactor* Verify(grpc::CallbackServerContext*, const v1::VerifyRequest*,
                                   v1::VerifyResponse*) override;
  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext*, const v1::PauseRequest*,
                                  v1::PauseResponse*) override;
  grpc::Status Resume(grpc::ServerContext*, const v1::ResumeRequest*, v1::ResumeResponse*) override;
  grpc::ServerWriteReactor<v1::CommitInfo>* WatchVersions(
      grpc::CallbackServerContext*, const v1::WatchReceiverVersionsRequest*) override;
  grpc::ServerWriteReactor<v1::ServedInfo>* WatchServed(grpc::CallbackServerContext*,
                                                        const v1::WatchServedRequest*) override;

 private:
  /// Returns the replica, if this call may name its model.
  StatusOr<Replica*> Find(const grpc::ServerContextBase& context, const std::string& model) const;
  /// Does the same for a call that waits, and counts it and its request until `held` is released.
  template <typename Request>
  StatusOr<Replica*> Hold(const grpc::ServerContextBase& context, const Request& request,
                          std::shared_ptr<const void>* held) const;

  Daemon& daemon_;
  const std::shared_ptr<const Access> access_;
  const std::chrono::steady_clock::time_point started_;
};

}  // namespace deltawire::receiver
