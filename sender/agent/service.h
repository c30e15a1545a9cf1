// The sender's gRPC services over an Agent, one source file each; the service for receivers is in
// proto/serving. Only these files and service_convert.h use proto types. A watch or a sync holds no
// thread, any other call does. The agent outlives them.
#pragma once

#include <chrono>

#include "proto/access.h"
#include "proto/deltawire/v1/sender.grpc.pb.h"
#include "proto/deltawire/v1/trainer.grpc.pb.h"
#include "proto/watch_reactor.h"
#include "sender/agent/agent.h"

namespace deltawire::sender {

class TrainerServiceImpl final
    : public v1::TrainerService::WithCallbackMethod_AttendModel<
          v1::TrainerService::WithCallbackMethod_AttendOffload<
              v1::TrainerService::WithCallbackMethod_WaitPublished<v1::TrainerService::Service>>> {
 public:
  explicit TrainerServiceImpl(Agent& agent) : agent_(agent) {}
  grpc::Status RegisterModel(grpc::ServerContext*, const v1::RegisterModelRequest*,
                             v1::RegisterModelResponse*) override;
  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                          v1::ListModelsResponse*) override;
  grpc::ServerWriteReactor<v1::AttendModelEvent>* AttendModel(
      grpc::CallbackServerContext*, const v1::AttendModelRequest*) override;
  grpc::Status BeginOffload(grpc::ServerContext*, const v1::BeginOffloadRequest*,
                            v1::BeginOffloadResponse*) override;
  grpc::ServerWriteReactor<v1::AttendOffloadEvent>* AttendOffload(
      grpc::CallbackServerContext*, const v1::AttendOffloadRequest*) override;
  grpc::Status AbandonOffload(grpc::ServerContext*, const v1::AbandonOffloadRequest*,
                              v1::AbandonOffloadResponse*) override;
  grpc::Status MarkWritten(grpc::ServerContext*, const v1::MarkWrittenRequest*,
                           v1::MarkWrittenResponse*) override;
  grpc::Status NotifyBufferReady(grpc::ServerContext*, const v1::NotifyBufferReadyRequest*,
                                 v1::NotifyBufferReadyResponse*) override;
  grpc::ServerUnaryReactor* WaitPublished(grpc::CallbackServerContext*,
                                          const v1::WaitPublishedRequest*,
                                          v1::WaitPublishedResponse*) override;

 private:
  Agent& agent_;
};

class SenderServiceImpl final
    : public v1::SenderService::WithCallbackMethod_WatchVersions<
          v1::SenderService::WithCallbackMethod_TriggerSync<
              v1::SenderService::WithCallbackMethod_WaitCommitted<v1::SenderService::Service>>> {
 public:
  SenderServiceImpl(Agent& agent, std::shared_ptr<const Access> access, uint16_t bulk_port,
                    size_t pool_threads);
  grpc::Status GetStatus(grpc::ServerContext*, const v1::SenderStatusRequest*,
                         v1::SenderStatusResponse*) override;
  grpc::Status ListReceivers(grpc::ServerContext*, const v1::ListReceiversRequest*,
                             v1::ListReceiversResponse*) override;
  grpc::ServerWriteReactor<v1::VersionInfo>* WatchVersions(
      grpc::CallbackServerContext*, const v1::WatchSenderVersionsRequest*) override;
  grpc::ServerWriteReactor<v1::SyncProgress>* TriggerSync(grpc::CallbackServerContext*,
                                                          const v1::TriggerSyncRequest*) override;
  grpc::ServerWriteReactor<v1::WaitCommittedUpdate>* WaitCommitted(
      grpc::CallbackServerContext*, const v1::WaitCommittedRequest*) override;
  grpc::Status Rollback(grpc::ServerContext*, const v1::RollbackRequest*,
                        v1::RollbackResponse*) override;
  grpc::Status UnregisterModel(grpc::ServerContext*, const v1::UnregisterModelRequest*,
                               v1::UnregisterModelResponse*) override;

 private:
  /// The model, if this call may name it. A watch must not hold the result, or it would delay a
  /// replacement.
  StatusOr<std::shared_ptr<Model>> Find(const grpc::ServerContextBase& context,
                                        const std::string& name) const;
  /// Has receivers, or a group of them, sync. The result is their progress.
  StatusOr<std::unique_ptr<WatchSource<v1::SyncProgress>>> AskSync(
      const grpc::ServerContextBase& context, const v1::TriggerSyncRequest& request,
      std::function<void()> news);

  Agent& agent_;
  const std::shared_ptr<const Access> access_;
  const uint16_t bulk_port_;
  const size_t pool_threads_;
  const std::chrono::steady_clock::time_point started_;
};

}  // namespace deltawire::sender
