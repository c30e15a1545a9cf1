// The sender's gRPC services over an Agent, one source file each. No other part of the sender uses
// proto types, except service_convert.h. Owner: main; the agent outlives them. Threads: gRPC's.
// Cost: each open stream but Attach holds a thread. Errors: the agent's, translated by ToGrpc.
#pragma once

#include <chrono>

#include "proto/access.h"
#include "proto/deltawire/v1/sender.grpc.pb.h"
#include "proto/deltawire/v1/trainer.grpc.pb.h"
#include "sender/agent/agent.h"
#include "sender/agent/receiver_names.h"

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
  grpc::Status Rollback(grpc::ServerContext*, const v1::RollbackRequest*,
                        v1::RollbackResponse*) override;

 private:
  Agent& agent_;
  const std::shared_ptr<const Access> access_;
  const uint16_t bulk_port_;
  const size_t pool_threads_;
  const std::chrono::steady_clock::time_point started_;
};

/// Attach is served by callbacks, so that an attached receiver holds no thread.
class PullServiceImpl final
    : public v1::PullService::WithCallbackMethod_Attach<v1::PullService::Service> {
 public:
  PullServiceImpl(Agent& agent, std::shared_ptr<const Access> access, uint16_t bulk_port)
      : agent_(agent), access_(std::move(access)), bulk_port_(bulk_port) {}
  grpc::Status DescribeModel(grpc::ServerContext*, const v1::DescribeModelRequest*,
                             v1::DescribeModelResponse*) override;
  grpc::Status GetNewest(grpc::ServerContext*, const v1::GetNewestRequest*,
                         v1::GetNewestResponse*) override;
  grpc::Status GetSideFiles(grpc::ServerContext*, const v1::GetSideFilesRequest*,
                            v1::GetSideFilesResponse*) override;
  grpc::Status OpenPull(grpc::ServerContext*, const v1::OpenPullRequest*,
                        v1::OpenPullResponse*) override;
  grpc::ServerBidiReactor<v1::ReceiverReport, v1::SenderEvent>* Attach(
      grpc::CallbackServerContext*) override;

  /// The model, if this call may name it.
  StatusOr<std::shared_ptr<Model>> Find(const grpc::ServerContextBase& context,
                                        const std::string& name) const;
  /// Names the caller in `request`, and who may open streams with the ticket.
  Status Identify(const grpc::ServerContextBase& context, PullRequest& request);
  Attachments& attachments() { return agent_.attachments(); }

 private:
  Agent& agent_;
  const std::shared_ptr<const Access> access_;
  const uint16_t bulk_port_;
  ReceiverNames names_;
};

}  // namespace deltawire::sender
