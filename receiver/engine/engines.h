// The engines of one model, each with a driver and a thread of its own, so that none waits for
// another. The source outlives it. Thread-safe. Errors are in views().
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/listeners.h"
#include "common/base/status.h"
#include "receiver/engine/engine_driver.h"

namespace deltawire::receiver {

class Engines {
 public:
  /// Makes the hook of an engine. Tests pass others.
  using HookFactory = std::function<std::unique_ptr<EngineHook>(const EngineDriver::Settings&)>;

  Engines(std::vector<EngineDriver::Settings> settings, EngineSource& source,
          const HookFactory& hooks);
  /// All drivers end before the first is destroyed, since listeners look at all of them.
  ~Engines();

  /// Notes that a version is ready. Called after its commit, before the directory changes again.
  void NoteReady();

  struct Served {
    EngineDriver::View engine;  ///< as it was when it began to serve the version
    Identity all;               ///< the version that every engine serves now; empty: they differ
    Identity oldest;            ///< the oldest version that one serves; empty if one's is not known
    uint64_t serial = 0;        ///< increases with each version that an engine begins to serve
  };
  /// Returns the oldest event with a serial above `seen`: an engine began to serve a version. With
  /// 0 the versions that engines serve now come first. An event is skipped when its engine has gone
  /// on or was lost. nullopt: none yet. An error: this stops.
  StatusOr<std::optional<Served>> ServedAfter(uint64_t seen) const;
  /// Calls `news`, without a lock, when ServedAfter may have an event; see Listeners.
  [[nodiscard]] Listeners::Listener OnServed(std::function<void()> news) {
    return listeners_.Add(std::move(news));
  }

  struct Checked {
    std::string name;
    std::string error;  ///< the drift in its memory, or why it was not compared
    bool drifted = false;
  };
  /// The results of EngineDriver::AskCheck, by engine.
  using Asked = std::vector<std::optional<uint64_t>>;
  /// Asks every engine to compare its memory with the version that it serves.
  Asked AskCheck();
  /// Returns the results, in the order of the settings; nullopt: not all are there. It waits for an
  /// engine on its way to a version, but not for one that the receiver has given up, which may
  /// never serve a version again. When this stops, it waits for none.
  std::optional<std::vector<Checked>> CheckAnswer(const Asked& asked) const;
  /// Calls `news`, without a lock, after each call to an engine, when CheckAnswer may have results
  /// and views() may have changed; see Listeners.
  [[nodiscard]] Listeners::Listener OnCalled(std::function<void()> news) {
    return call_listeners_.Add(std::move(news));
  }

  /// Returns the views, in the order of the settings.
  std::vector<EngineDriver::View> views() const;
  /// Begins to stop all; the destructor waits for them.
  void Stop();

 private:
  /// An engine began to serve a version.
  struct Event {
    EngineDriver::View engine;
    uint64_t serial = 0;  // 0: none yet
  };
  void Note(size_t engine, const EngineDriver::View& view);
  /// Returns the oldest event after `seen`.
  std::optional<size_t> NextEvent(uint64_t seen) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Listeners listeners_, call_listeners_;
  mutable CheckedMutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_serial_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Event> events_ ABSL_GUARDED_BY(mu_);      // the newest of each engine
  std::vector<std::unique_ptr<EngineDriver>> drivers_;  // fixed; ends first
};

/// Returns the version that every engine serves; empty if there is none, or they differ.
Identity ServedByAll(const std::vector<EngineDriver::View>& engines);
/// Returns the oldest state that one of them serves; empty if there is none, one is not known, or
/// they serve states of different lineages.
Identity OldestServed(const std::vector<EngineDriver::View>& engines);

}  // namespace deltawire::receiver
