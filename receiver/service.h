// The receiver's gRPC service over a Daemon. Owner: main; the daemon outlives it.
// Threads: gRPC's. Cost: Sync, Verify and Pause hold a thread each while they run, watches none.
// Errors: those of the Replica, as gRPC codes, and those of Access::Hold.
#pragma once

#include <chrono>

#include "proto/access.h"
#include "proto/deltawire/v1/receiver.grpc.pb.h"
#include "receiver/daemon.h"

namespace deltawire::receiver {

class ReceiverServiceImpl final
    : public v1::ReceiverService::WithCallbackMethod_WatchVersions<
          v1::ReceiverService::WithCallbackMethod_WatchServed<v1::ReceiverService::Service>> {
 public:
  ReceiverServiceImpl(Daemon& daemon, std::shared_ptr<const Access> access)
      : daemon_(daemon), access_(std::move(access)), started_(std::chrono::steady_clock::now()) {}

  grpc::Status GetStatus(grpc::ServerContext*, const v1::ReceiverStatusRequest*,
                         v1::ReceiverStatusResponse*) override;
  grpc::Status Sync(grpc::ServerContext*, const v1::SyncRequest*,
                    grpc::ServerWriter<v1::SyncUpdate>*) override;
  grpc::Status Verify(grpc::ServerContext*, const v1::VerifyRequest*, v1::VerifyResponse*) override;
  grpc::Status Pause(grpc::ServerContext*, const v1::PauseRequest*, v1::PauseResponse*) override;
  grpc::Status Resume(grpc::ServerContext*, const v1::ResumeRequest*, v1::ResumeResponse*) override;
  grpc::ServerWriteReactor<v1::CommitInfo>* WatchVersions(
      grpc::CallbackServerContext*, const v1::WatchReceiverVersionsRequest*) override;
  grpc::ServerWriteReactor<v1::ServedInfo>* WatchServed(grpc::CallbackServerContext*,
                                                        const v1::WatchServedRequest*) override;

 private:
  /// The replica, if this call may name its model.
  StatusOr<Replica*> Find(const grpc::ServerContextBase& context, const std::string& model) const;
  /// The same for a call that holds a thread, and counts it until `held` is dropped.
  StatusOr<Replica*> Find(const grpc::ServerContextBase& context, const std::string& model,
                          std::shared_ptr<const void>* held) const;

  Daemon& daemon_;
  const std::shared_ptr<const Access> access_;
  const std::chrono::steady_clock::time_point started_;
};

}  // namespace deltawire::receiver
