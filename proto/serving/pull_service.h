// The gRPC service for receivers over a PullHost, which is the sender's agent or a relay. The host
// outlives it. Callbacks serve Attach, so an attached receiver holds no thread.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "common/base/sync.h"
#include "common/serving/pull_desk.h"
#include "proto/access.h"
#include "proto/deltawire/v1/sender.grpc.pb.h"
#include "proto/serving/receiver_names.h"

namespace deltawire {

class PullServiceImpl final
    : public v1::PullService::WithCallbackMethod_Attach<v1::PullService::Service> {
 public:
  PullServiceImpl(PullHost& host, std::shared_ptr<const Access> access, uint16_t bulk_port)
      : host_(host), access_(std::move(access)), bulk_port_(bulk_port) {}
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

  /// Returns the model's source if this call may name the model.
  StatusOr<std::shared_ptr<StateSource>> Find(const grpc::ServerContextBase& context,
                                              const std::string& name) const;
  /// Returns this call's caller, if it may name the model and the receiver.
  StatusOr<PullCaller> Identify(const grpc::ServerContextBase& context, const std::string& model,
                                const std::string& receiver_id);
  /// Returns whether this call may (still) name the model.
  bool MayTouch(const grpc::ServerContextBase& context, const std::string& model) const {
    return access_->MaySee(context, model);
  }
  Attachments& attachments() { return host_.attachments(); }
  /// Counts an Attach call that has not named its receiver yet, until the result is destroyed,
  /// which must precede this service's end. Fails with kResourceExhausted beyond the limits of
  /// attached receivers.
  StatusOr<std::shared_ptr<const void>> AwaitReport(const grpc::ServerContextBase& context);

 private:
  PullHost& host_;
  const std::shared_ptr<const Access> access_;
  const uint16_t bulk_port_;
  ReceiverNames names_;

  Mutex mu_;
  size_t awaited_ = 0;
  std::map<std::string, size_t> awaited_of_;  // by principal
};

}  // namespace deltawire
