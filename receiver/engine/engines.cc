#include "receiver/engine/engines.h"

#include <algorithm>

namespace deltawire::receiver {
namespace {

// Waits are cut into slices of this length to notice callers that have gone.
constexpr std::chrono::milliseconds kSlice{100};

}  // namespace

Identity ServedByAll(const std::vector<EngineDriver::View>& engines) {
  if (engines.empty()) return {};
  const Identity& first = engines.front().served;
  const bool same = std::all_of(engines.begin(), engines.end(),
                                [&](const EngineDriver::View& e) { return e.served == first; });
  return same ? first : Identity{};
}

Engines::Engines(std::vector<EngineDriver::Settings> settings, EngineSource& source,
                 const HookFactory& hooks)
    : serials_(settings.size()) {
  for (size_t i = 0; i < settings.size(); ++i) {
    auto hook = hooks(settings[i]);
    drivers_.push_back(std::make_unique<EngineDriver>(std::move(settings[i]), std::move(hook),
                                                      source, [this, i] { OnServed(i); }));
  }
}

void Engines::News() {
  for (const auto& driver : drivers_) driver->News();
}

void Engines::OnServed(size_t engine) {
  std::lock_guard lock(mu_);
  serials_[engine] = ++last_serial_;
  cv_.notify_all();
}

std::optional<Engines::Served> Engines::WaitServed(uint64_t seen,
                                                   const std::function<bool()>& gone) {
  std::unique_lock lock(mu_);
  while (!stopping_) {
    size_t next = serials_.size();
    for (size_t i = 0; i < serials_.size(); ++i) {
      if (serials_[i] > seen && (next == serials_.size() || serials_[i] < serials_[next])) next = i;
    }
    if (next < serials_.size()) {
      Served served{.engine = {}, .all = {}, .serial = serials_[next]};
      lock.unlock();
      std::vector<EngineDriver::View> all = views();
      served.all = ServedByAll(all);
      served.engine = std::move(all[next]);
      return served;
    }
    cv_.wait_for(lock, kSlice);
    lock.unlock();
    const bool left = gone();
    lock.lock();
    if (left) return std::nullopt;
  }
  return std::nullopt;
}

std::vector<EngineDriver::View> Engines::views() const {
  std::vector<EngineDriver::View> views;
  for (const auto& driver : drivers_) views.push_back(driver->view());
  return views;
}

void Engines::Stop() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
    cv_.notify_all();
  }
  for (const auto& driver : drivers_) driver->Stop();
}

}  // namespace deltawire::receiver
