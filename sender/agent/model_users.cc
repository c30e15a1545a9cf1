#include "sender/agent/model_users.h"

#include <spdlog/fmt/fmt.h>

namespace deltawire::sender {
namespace {

constexpr size_t kMostPublisher = 256;

}  // namespace

ModelUsers::Use ModelUsers::Enter(const std::string& model, uint32_t rank,
                                  const std::string& publisher) {
  std::string who = fmt::format("rank {}", rank);
  if (!publisher.empty()) who += fmt::format(" ({})", publisher.substr(0, kMostPublisher));
  MutexLock lock(table_->mu);
  const uint64_t number = table_->next++;
  table_->users[model].emplace(number, std::move(who));
  return {table_.get(), [table = table_, model, number](const void*) {
            MutexLock guard(table->mu);
            const auto users = table->users.find(model);
            users->second.erase(number);
            if (users->second.empty()) table->users.erase(users);
          }};
}

std::vector<std::string> ModelUsers::Of(const std::string& model) const {
  MutexLock lock(table_->mu);
  std::vector<std::string> all;
  const auto users = table_->users.find(model);
  if (users == table_->users.end()) return all;
  for (const auto& [number, who] : users->second) all.push_back(who);
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
