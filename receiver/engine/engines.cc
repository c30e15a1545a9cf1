#include "receiver/engine/engines.h"

#include <algorithm>

#include "common/base/call_end.h"

namespace deltawire::receiver {
namespace {

/// Returns true if an engine in this state comes to serve the committed version by itself.
bool MayServe(EngineState state) {
  return state == EngineState::kServing || state == EngineState::kPreparing ||
         state == EngineState::kUpdating || state == EngineState::kRetrying;
}

}  // namespace

Identity ServedByAll(const std::vector<EngineDriver::View>& engines) {
  if (engines.empty()) return {};
  const Identity& first = engines.front().served;
  const bool same = std::all_of(engines.begin(), engines.end(),
                                [&](const EngineDriver::View& e) { return e.served == first; });
  return same ? first : Identity{};
}

Identity OldestServed(const std::vector<EngineDriver::View>& engines) {
  if (engines.empty()) return {};
  Identity oldest = engines.front().served;
  for (const EngineDriver::View& engine : engines) {
    const Identity& served = engine.served;
    if (served == oldest) continue;
    // A rollback's number is lower than the one that it undoes, so the epoch counts first. States
    // of two lineages have no order here, and neither have two of one name.
    const bool comparable = served.lineage == oldest.lineage && served.id != oldest.id;
    if (served.empty() || oldest.empty() || !comparable) return {};
    if (IsLater(oldest, served)) oldest = served;
  }
  return oldest;
}

Engines::Engines(std::vector<EngineDriver::Settings> settings, EngineSource& source,
                 const HookFactory& hooks)
    : events_(settings.size()) {
  for (size_t i = 0; i < settings.size(); ++i) {
    auto hook = hooks(settings[i]);
    drivers_.push_back(std::make_unique<EngineDriver>(
        std::move(settings[i]), std::move(hook), source,
        [this, i](const EngineDriver::View& view) { Note(i, view); },
        [this] { call_listeners_.Call(); }));
  }
}

Engines::~Engines() {
  Stop();
  for (const auto& driver : drivers_) driver->Join();
}

void Engines::NoteReady() {
  for (const auto& driver : drivers_) driver->NoteReady();
}

void Engines::Note(size_t engine, const EngineDriver::View& view) {
  {
    MutexLock lock(mu_);
    events_[engine] = {view, ++last_serial_};
  }
  listeners_.Call();
}

std::optional<size_t> Engines::NextEvent(uint64_t seen) const {
  std::optional<size_t> next;
  for (size_t i = 0; i < events_.size(); ++i) {
    if (events_[i].serial > seen && (!next || events_[i].serial < events_[*next].serial)) next = i;
  }
  return next;
}

StatusOr<std::optional<Engines::Served>> Engines::ServedAfter(uint64_t seen) const {
  while (true) {
    Event event;
    size_t engine = 0;
    {
      MutexLock lock(mu_);
      if (stopping_) return Stopping("receiver");
      const auto next = NextEvent(seen);
      if (!next) return std::optional<Served>();
      engine = *next;
      event = events_[engine];
    }
    const std::vector<EngineDriver::View> all = views();
    const EngineDriver::View& now = all[engine];
    if (now.served == event.engine.served &&
        now.served_unix_nanos == event.engine.served_unix_nanos) {
      return std::optional<Served>({.engine = event.engine,
                                    .all = ServedByAll(all),
                                    .oldest = OldestServed(all),
                                    .serial = event.serial});
    }
    seen = event.serial;  // the engine was lost, or serves a later version, which has an event
  }
}

Engines::Asked Engines::AskCheck() {
  Asked asked;
  for (const auto& driver : drivers_) asked.push_back(driver->AskCheck());
  return asked;
}

std::optional<std::vector<Engines::Checked>> Engines::CheckAnswer(const Asked& asked) const {
  bool stopping = false;
  {
    MutexLock lock(mu_);
    stopping = stopping_;
  }
  std::vector<Checked> found;
  for (size_t i = 0; i < drivers_.size(); ++i) {
    const EngineDriver::View view = drivers_[i]->view();
    if (!asked[i]) {
      found.push_back(
          {view.name,
           fmt::format("an engine of the kind {} cannot compare its memory", ToString(view.kind)),
           false});
    } else if (const auto* check = view.CheckAfter(*asked[i])) {
      found.push_back({view.name, check->error, check->drifted});
    } else if (MayServe(view.state) && !stopping) {
      return std::nullopt;
    } else {
      found.push_back({view.name,
                       fmt::format("its memory was not compared: it is {}", ToString(view.state)),
                       false});
    }
  }
  return found;
}

std::vector<EngineDriver::View> Engines::views() const {
  std::vector<EngineDriver::View> views;
  for (const auto& driver : drivers_) views.push_back(driver->view());
  return views;
}

void Engines::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  listeners_.Call();
  call_listeners_.Call();
  for (const auto& driver : drivers_) driver->Stop();
}

}  // namespace deltawire::receiver
