// The stream that tells the agent that this rank lives while it writes (AttendOffload). Dropping it
// ends the stream, and with it the offload if the rank was not ready. Owner: the Offload. Threads:
// gRPC's threads call the reactor; the other methods from any. Cost: no thread of its own. Errors:
// Start and status return the agent's.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

#include "proto/deltawire/v1/trainer.grpc.pb.h"

namespace deltawire {

class Attendance : public grpc::ClientReadReactor<v1::AttendOffloadEvent> {
 public:
  Attendance() = default;
  ~Attendance() override;
  Attendance(const Attendance&) = delete;
  Attendance& operator=(const Attendance&) = delete;

  /// Returns OK when the agent watches this rank, otherwise the reason why it does not. Call once.
  grpc::Status Start(v1::TrainerService::Stub& stub, const std::string& model, uint64_t lease,
                     uint32_t rank, std::chrono::milliseconds timeout);
  /// OK while the offload goes on and when it was published; otherwise the reason why it is over.
  grpc::Status status() const;
  /// Ends the stream and waits for its end.
  void End();

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  grpc::ClientContext context_;
  v1::AttendOffloadRequest request_;
  v1::AttendOffloadEvent event_;
  mutable std::mutex mu_;
  std::condition_variable cv_;
  bool started_ = false, watched_ = false, done_ = false;
  grpc::Status status_;
};

}  // namespace deltawire
