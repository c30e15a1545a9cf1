// The engines of one model, each with a driver of its own, so that none waits for another. Owner:
// the Daemon; the source outlives it. Threads: any. Cost: a thread an engine. Errors: in views().
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/listeners.h"
#include "common/base/status.h"
#include "receiver/engine/engine_driver.h"

namespace deltawire::receiver {

class Engines {
 public:
  /// Makes the hook of an engine; tests give others.
  using HookFactory = std::function<std::unique_ptr<EngineHook>(const EngineDriver::Settings&)>;

  Engines(std::vector<EngineDriver::Settings> settings, EngineSource& source,
          const HookFactory& hooks);
  /// All drivers end before the first is destroyed, since listeners look at all of them.
  ~Engines();

  /// A version is ready. Called by whoever committed it, before the directory is changed again.
  void News();

  struct Served {
    EngineDriver::View engine;  ///< as it was when it began to
    Identity all;               ///< what every engine serves now; empty: not all the same
    Identity oldest;            ///< the oldest version that one serves; empty if one's is not known
    uint64_t serial = 0;        ///< rises with each version that an engine of these begins to serve
  };
  /// The oldest event with a serial above `seen` that an engine began to serve a version; with 0
  /// that is first what each engine serves now. An event is skipped when its engine has gone on or
  /// was lost. nullopt: none yet. An error: this stops.
  StatusOr<std::optional<Served>> ServedAfter(uint64_t seen) const;
  /// `news` is called, without a lock, when ServedAfter may have something; see Listeners.
  [[nodiscard]] Listeners::Listener OnServed(std::function<void()> news) {
    return listeners_.Add(std::move(news));
  }

  struct Checked {
    std::string name;
    std::string error;  ///< what is wrong with its memory, or why it was not compared
    bool drifted = false;
  };
  /// By engine, what EngineDriver::AskCheck returned.
  using Asked = std::vector<std::optional<uint64_t>>;
  /// Has every engine compare its memory with what it serves.
  Asked AskCheck();
  /// What came of it, in the order of the settings; nullopt: some engine goes on. An engine on its
  /// way to a version is waited for. One that the receiver has given up may never serve a version
  /// again, so it is not. When this stops, nothing is waited for.
  std::optional<std::vector<Checked>> CheckAnswer(const Asked& asked) const;
  /// `news` is called, without a lock, after each call to an engine, when CheckAnswer may have
  /// something, and views() may say something else; see Listeners.
  [[nodiscard]] Listeners::Listener OnCalled(std::function<void()> news) {
    return call_listeners_.Add(std::move(news));
  }

  /// In the order of the settings.
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
  /// The oldest event after `seen`. REQUIRES: mu_ held.
  std::optional<size_t> NextEvent(uint64_t seen) const;

  Listeners listeners_, call_listeners_;
  mutable Mutex mu_;
  bool stopping_ = false;
  uint64_t last_serial_ = 0;
  std::vector<Event> events_;                           // the newest of each engine
  std::vector<std::unique_ptr<EngineDriver>> drivers_;  // fixed; ends first
};

/// What every engine serves; empty where there is none, or not all serve the same.
Identity ServedByAll(const std::vector<EngineDriver::View>& engines);
/// The oldest state that one of them serves; empty where there is none, or one is not known, or
/// they serve states of different lineages.
Identity OldestServed(const std::vector<EngineDriver::View>& engines);

}  // namespace deltawire::receiver
