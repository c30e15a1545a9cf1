#include "sender/agent/model_table.h"

#include "common/base/call_end.h"

namespace deltawire::sender {

StatusOr<std::shared_ptr<Model>> ModelTable::Find(const std::string& name) const {
  MutexLock lock(mu_);
  const auto it = models_.find(name);
  if (it != models_.end()) return it->second;
  std::string known;
  for (const auto& [other, model] : models_) known += (known.empty() ? "" : ", ") + other;
  return Errorf(StatusCode::kNotFound,
                "no model \"{}\" is registered with this sender (it has: {})", name,
                known.empty() ? "none yet" : known);
}

std::vector<std::shared_ptr<Model>> ModelTable::All() const {
  MutexLock lock(mu_);
  std::vector<std::shared_ptr<Model>> all;
  for (const auto& [name, model] : models_) all.push_back(model);
  return all;
}

bool ModelTable::Has(const Model& model) const {
  MutexLock lock(mu_);
  const auto it = models_.find(model.name());
  return it != models_.end() && it->second.get() == &model;
}

Status ModelTable::CheckStays(const std::string& name) const {
  MutexLock lock(mu_);
  if (!unregistering_.contains(name)) return absl::OkStatus();
  return Errorf(StatusCode::kNotFound,
                "model \"{}\" is being unregistered from this sender; register it again", name);
}

StatusOr<std::shared_ptr<void>> ModelTable::TakeTurn(const std::string& name) {
  MutexLock lock(mu_);
  cv_.wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !turns_.contains(name);
  });
  if (stopping_) return Stopping("sender");
  turns_.insert(name);
  lock.unlock();  // the deleter below takes it, also if there is no memory for the result
  return std::shared_ptr<void>(nullptr, [this, name](void*) {
    MutexLock guard(mu_);
    turns_.erase(name);
    cv_.notify_all();
  });
}

void ModelTable::Add(Entry entry) {
  const std::string& name = entry.model->name();
  MutexLock lock(mu_);
  unregistering_.erase(name);
  ends_[name] = std::move(entry.end);
  models_[name] = std::move(entry.model);
}

ModelTable::Entry ModelTable::Remove(const std::string& name) {
  Entry removed;
  MutexLock lock(mu_);
  if (const auto it = ends_.find(name); it != ends_.end()) removed.end = it->second;
  if (const auto it = models_.find(name); it != models_.end()) {
    removed.model = std::move(it->second);
    models_.erase(it);
  }
  return removed;
}

void ModelTable::BeginUnregister(const std::string& name) {
  MutexLock lock(mu_);
  unregistering_.insert(name);
}

void ModelTable::CancelUnregister(const std::string& name) {
  MutexLock lock(mu_);
  unregistering_.erase(name);
}

void ModelTable::EndUnregister(const std::string& name) {
  MutexLock lock(mu_);
  unregistering_.erase(name);
  ends_.erase(name);
}

void ModelTable::Stop() {
  MutexLock lock(mu_);
  stopping_ = true;
  cv_.notify_all();
}

void ModelTable::Clear() {
  decltype(models_) models;
  {
    MutexLock lock(mu_);
    models.swap(models_);
  }
  models.clear();
}

}  // namespace deltawire::sender
