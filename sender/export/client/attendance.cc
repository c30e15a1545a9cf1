#include "sender/export/client/attendance.h"

namespace deltawire {

Attendance::~Attendance() { End(); }

grpc::Status Attendance::Start(v1::TrainerService::Stub& stub, const std::string& model,
                               uint64_t lease, uint32_t rank, std::chrono::milliseconds timeout) {
  request_.set_model(model);
  request_.set_lease(lease);
  request_.set_rank(rank);
  stub.async()->AttendOffload(&context_, &request_, this);
  StartRead(&event_);
  StartCall();
  std::unique_lock lock(mu_);
  started_ = true;
  // The stream itself has no deadline, since writing a version may take any time.
  if (!cv_.wait_for(lock, timeout, [this] { return watched_ || done_; })) {
    return {grpc::StatusCode::DEADLINE_EXCEEDED, "the sender did not answer; is it running?"};
  }
  return done_ ? status_ : grpc::Status::OK;
}

grpc::Status Attendance::status() const {
  std::lock_guard lock(mu_);
  return done_ ? status_ : grpc::Status::OK;
}

void Attendance::End() {
  std::unique_lock lock(mu_);
  if (!started_) return;
  lock.unlock();
  context_.TryCancel();
  lock.lock();
  cv_.wait(lock, [this] { return done_; });
}

void Attendance::OnReadDone(bool ok) {
  {
    std::lock_guard lock(mu_);
    watched_ = watched_ || ok;
    cv_.notify_all();
  }
  if (ok) StartRead(&event_);
}

void Attendance::OnDone(const grpc::Status& status) {
  std::lock_guard lock(mu_);
  status_ = status;
  done_ = true;
  cv_.notify_all();
}

}  // namespace deltawire
