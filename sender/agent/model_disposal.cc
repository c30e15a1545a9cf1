#include "sender/agent/model_disposal.h"

namespace deltawire::sender {

void ModelEnd::Set() {
  MutexLock lock(mu_);
  set_ = true;
  cv_.notify_all();
}

bool ModelEnd::is_set() const {
  MutexLock lock(mu_);
  return set_;
}

bool ModelEnd::WaitFor(std::chrono::milliseconds time) {
  MutexLock lock(mu_);
  return cv_.wait_for(lock, time, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return set_; });
}

ModelDisposal::ModelDisposal() {
  thread_ = Thread([this] { Run(); });
}

ModelDisposal::~ModelDisposal() {
  {
    MutexLock lock(queue_->mu);
    queue_->stopping = true;
    queue_->cv.notify_all();
  }
  thread_.join();
}

std::shared_ptr<Model> ModelDisposal::Watch(std::shared_ptr<Model> model,
                                            std::shared_ptr<ModelEnd> end) {
  Model* const raw = model.get();
  return {raw, [doomed = Doomed{std::move(model), std::move(end)}, queue = queue_](Model*) mutable {
            {
              MutexLock lock(queue->mu);
              if (!queue->closed) {
                queue->models.push_back(std::move(doomed));
                queue->cv.notify_all();
                return;
              }
            }
            Destroy(std::move(doomed));
          }};
}

void ModelDisposal::Destroy(Doomed doomed) {
  doomed.model.reset();
  doomed.end->Set();
}

void ModelDisposal::Run() {
  Queue& q = *queue_;
  std::vector<std::pair<Thread, std::shared_ptr<ModelEnd>>> threads;
  MutexLock lock(q.mu);
  while (!q.stopping || !q.models.empty()) {
    auto models = std::exchange(q.models, {});
    lock.unlock();
    for (Doomed& doomed : models) {
      // A model that is publishing is destroyed once it has published; the others need not wait for
      // it. The thread must hold the last reference, or the end would be set too early.
      auto end = doomed.end;
      threads.emplace_back(
          Thread([doomed = std::move(doomed)]() mutable { Destroy(std::move(doomed)); }),
          std::move(end));
    }
    models.clear();
    std::erase_if(threads, [](auto& thread) {
      if (!thread.second->is_set()) return false;
      thread.first.join();
      return true;
    });
    lock.lock();
    q.cv.wait(lock, [&q]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(q.mu) {
      return q.stopping || !q.models.empty();
    });
  }
  q.closed = true;
  lock.unlock();
  for (auto& [thread, end] : threads) thread.join();
}

}  // namespace deltawire::sender
