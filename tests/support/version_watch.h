// An orchestrator's watch of a sender's versions, read by callbacks, so that hundreds of them hold
// no thread in the test either. Owner: the test; the stub outlives it. Threads: gRPC's, and any.
// Its destructor cancels the call and waits for its end.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "proto/deltawire/v1/sender.grpc.pb.h"
#include "tests/support/eventually.h"

namespace deltawire::testing {

class VersionWatch : public grpc::ClientReadReactor<v1::VersionInfo> {
 public:
  /// `told` is called with each version, on gRPC's thread.
  VersionWatch(v1::SenderService::Stub& stub, const std::string& model,
               std::function<void(uint64_t)> told = {})
      : told_(std::move(told)) {
    context_.set_wait_for_ready(true);
    request_.set_model(model);
    stub.async()->WatchVersions(&context_, &request_, this);
    StartRead(&info_);
    StartCall();
  }
  ~VersionWatch() override {
    context_.TryCancel();
    Eventually([&] { return ended().has_value(); });
  }
  void Cancel() { context_.TryCancel(); }
  /// The last that was told.
  uint64_t version() {
    std::lock_guard lock(mu_);
    return version_;
  }
  std::optional<grpc::Status> ended() {
    std::lock_guard lock(mu_);
    return ended_;
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    const uint64_t version = info_.id().version();
    {
      std::lock_guard lock(mu_);
      version_ = version;
    }
    if (told_) told_(version);
    StartRead(&info_);
  }
  void OnDone(const grpc::Status& status) override {
    std::lock_guard lock(mu_);
    ended_ = status;
  }

 private:
  const std::function<void(uint64_t)> told_;
  grpc::ClientContext context_;
  v1::WatchSenderVersionsRequest request_;
  v1::VersionInfo info_;
  std::mutex mu_;
  uint64_t version_ = 0;
  std::optional<grpc::Status> ended_;
};

}  // namespace deltawire::testing
