// The sender's gRPC services over an Agent, one source file each; the service for receivers is in
// proto/serving. Only these files and service_convert.h use proto types. Owner: main; the agent
// outlives them. Threads: gRPC's. Cost: each open stream holds a thread. Errors: the agent's,
// translated by ToGrpc.
#pragma once

#include <chrono>

#include "proto/access.h"
#include "proto/deltawire/v1/sender.grpc.pb.h"
#include "proto/deltawire/v1/trainer.grpc.pb.h"
#include "sender/agent/agent.h"

namespace deltawire::sender {

class TrainerServiceImpl final : public v1::TrainerService::Service {
 public:
  explicit TrainerServiceImpl(Agent& agent) : agent_(agent) {}
  grpc::Status RegisterModel(grpc::ServerContext*, const v1::RegisterModelRequest*,
                             v1::RegisterModelResponse*) override;
  grpc::Status BeginOffload(grpc::ServerContext*, const v1::BeginOffloadRequest*,
                            v1::BeginOffloadResponse*) override;
  grpc::Status AttendOffload(grpc::ServerContext*, const v1::AttendOffloadRequest*,
                             grpc::ServerWriter<v1::AttendOffloadEvent>*) override;
  grpc::Status AbandonOffload(grpc::ServerContext*, const v1::AbandonOffloadRequest*,
                              v1::AbandonOffloadResponse*) override;
  grpc::Status MarkWritten(grpc::ServerContext*, const v1::MarkWrittenRequest*,
                           v1::MarkWrittenResponse*) override;
  grpc::Status NotifyBufferReady(grpc::ServerContext*, const v1::NotifyBufferReadyRequest*,
                                 v1::NotifyBufferReadyResponse*) override;
  grpc::Status WaitPublished(grpc::ServerContext*, const v1::WaitPublishedRequest*,
                             v1::WaitPublishedResponse*) override;

 private:
  Agent& agent_;
};

class SenderServiceImpl final : public v1::SenderService::Service {
 public:
  SenderServiceImpl(Agent& agent, std::shared_ptr<const Access> access, uint16_t bulk_port,
                    size_t pool_threads);
  grpc::Status GetStatus(grpc::ServerContext*, const v1::SenderStatusRequest*,
                         v1::SenderStatusResponse*) override;
  grpc::Status ListReceivers(grpc::ServerContext*, const v1::ListReceiversRequest*,
                             v1::ListReceiversResponse*) override;
  grpc::Status WatchVersions(grpc::ServerContext*, const v1::WatchSenderVersionsRequest*,
                             grpc::ServerWriter<v1::VersionInfo>*) override;
  grpc::Status TriggerSync(grpc::ServerContext*, const v1::TriggerSyncRequest*,
                           grpc::ServerWriter<v1::SyncProgress>*) override;
  grpc::Status WaitCommitted(grpc::ServerContext*, const v1::WaitCommittedRequest*,
                             grpc::ServerWriter<v1::WaitCommittedUpdate>*) override;
  grpc::Status Rollback(grpc::ServerContext*, const v1::RollbackRequest*,
                        v1::RollbackResponse*) override;

 private:
  grpc::Status SyncGroup(grpc::ServerContext*, const v1::TriggerSyncRequest&,
                         grpc::ServerWriter<v1::SyncProgress>*);

  Agent& agent_;
  const std::shared_ptr<const Access> access_;
  const uint16_t bulk_port_;
  const size_t pool_threads_;
  const std::chrono::steady_clock::time_point started_;
};

}  // namespace deltawire::sender
