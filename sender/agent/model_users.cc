#include "sender/agent/model_users.h"

#include <spdlog/fmt/fmt.h>

#include "sender/agent/model.h"

namespace deltawire::sender {
namespace {

constexpr size_t kMostPublisher = 256;

}  // namespace

ModelUsers::Use ModelUsers::Enter(const std::string& model, uint32_t rank,
                                  const std::string& publisher, uint64_t client) {
  std::string who = fmt::format("rank {}", rank);
  if (!publisher.empty()) who += fmt::format(" ({})", publisher.substr(0, kMostPublisher));
  std::shared_ptr<Model> served;  // dropped without the lock
  MutexLock lock(table_->mu);
  const uint64_t number = table_->next++;
  Named& named = table_->models[model];
  named.users.emplace(number, User{std::move(who), client});
  served = named.model.lock();
  if (served != nullptr) served->offloads().AddClient(client);
  return {table_.get(), [table = table_, model, number, client](const void*) {
            std::shared_ptr<Model> left;
            {
              MutexLock guard(table->mu);
              const auto it = table->models.find(model);
              left = it->second.model.lock();
              it->second.users.erase(number);
              if (it->second.users.empty() && left == nullptr) table->models.erase(it);
            }
            if (left != nullptr) left->offloads().RemoveClient(client);
          }};
}

void ModelUsers::Serve(const std::shared_ptr<Model>& model) {
  MutexLock lock(table_->mu);
  Named& named = table_->models[model->name()];
  named.model = model;
  for (const auto& entry : named.users) model->offloads().AddClient(entry.second.client);
}

std::vector<std::string> ModelUsers::Of(const std::string& model) const {
  MutexLock lock(table_->mu);
  std::vector<std::string> all;
  const auto it = table_->models.find(model);
  if (it == table_->models.end()) return all;
  for (const auto& entry : it->second.users) all.push_back(entry.second.who);
  return all;
}

bool ModelUsers::stopped() const {
  MutexLock lock(table_->mu);
  return table_->stopped;
}

void ModelUsers::Stop() {
  {
    MutexLock lock(table_->mu);
    table_->stopped = true;
  }
  listeners_.Call();
}

}  // namespace deltawire::sender
