// Replaces common/base/sync.h in a simulated build: mutexes, condition variables, threads and
// clocks over the fibers and the virtual time of tests/simulation/scheduler.h. Owner: as the
// standard library's. Threads: one, with many fibers. Cost: every lock and wait is a step. Errors:
// none.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <utility>

namespace deltawire {
namespace simulation {
struct Fiber;
}

/// Virtual time; the history begins at zero.
struct SteadyClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<SteadyClock>;
  static constexpr bool is_steady = true;
  static time_point now() noexcept;
};

/// Virtual time too: SteadyClock's, plus a fixed number of years since 1970.
struct WallClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<std::chrono::system_clock, duration>;
  static constexpr bool is_steady = false;
  static time_point now() noexcept;
};

class Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  void lock();
  bool try_lock();
  void unlock();

 private:
  const void* owner_ = nullptr;
  uint32_t waiting_ = 0;
};

/// Lets one reader in at a time: the order in which readers come is what can go wrong.
class SharedMutex : public Mutex {
 public:
  void lock_shared() { lock(); }
  void unlock_shared() { unlock(); }
};

class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  void notify_one();
  void notify_all();

  void wait(std::unique_lock<Mutex>& lock) { WaitUntil(lock, SteadyClock::time_point::max()); }
  template <typename Predicate>
  void wait(std::unique_lock<Mutex>& lock, Predicate done) {
    while (!done()) wait(lock);
  }
  template <typename Duration>
  std::cv_status wait_until(std::unique_lock<Mutex>& lock,
                            const std::chrono::time_point<SteadyClock, Duration>& until) {
    return WaitUntil(lock, until);
  }
  template <typename Duration, typename Predicate>
  bool wait_until(std::unique_lock<Mutex>& lock,
                  const std::chrono::time_point<SteadyClock, Duration>& until, Predicate done) {
    while (!done()) {
      if (WaitUntil(lock, until) == std::cv_status::timeout) return done();
    }
    return true;
  }
  template <typename Rep, typename Period>
  std::cv_status wait_for(std::unique_lock<Mutex>& lock,
                          const std::chrono::duration<Rep, Period>& duration) {
    return WaitUntil(lock, After(duration));
  }
  template <typename Rep, typename Period, typename Predicate>
  bool wait_for(std::unique_lock<Mutex>& lock, const std::chrono::duration<Rep, Period>& duration,
                Predicate done) {
    return wait_until(lock, After(duration), std::move(done));
  }

 private:
  template <typename Rep, typename Period>
  static SteadyClock::time_point After(const std::chrono::duration<Rep, Period>& duration) {
    const auto now = SteadyClock::now();
    if (duration >= SteadyClock::time_point::max() - now) return SteadyClock::time_point::max();
    return now + std::chrono::duration_cast<SteadyClock::duration>(duration);
  }
  std::cv_status WaitUntil(std::unique_lock<Mutex>& lock, SteadyClock::time_point until);
};

class Thread {
 public:
  using id = const void*;
  Thread() = default;
  template <typename F, typename... Args>
  requires(!std::is_same_v<std::remove_cvref_t<F>, Thread>) explicit Thread(F&& f, Args&&... args) {
    // Shared, since std::function needs a copyable callable and the arguments may be move-only.
    auto call = std::make_shared<decltype(std::bind_front(std::forward<F>(f),
                                                          std::forward<Args>(args)...))>(
        std::bind_front(std::forward<F>(f), std::forward<Args>(args)...));
    Start([call] { (*call)(); });
  }
  ~Thread();
  Thread(Thread&& other) noexcept = default;
  Thread& operator=(Thread&& other) noexcept;

  bool joinable() const { return fiber_ != nullptr; }
  void join();
  void detach() { fiber_.reset(); }
  id get_id() const { return fiber_.get(); }
  static unsigned hardware_concurrency() { return 2; }

 private:
  void Start(std::function<void()> body);
  std::shared_ptr<simulation::Fiber> fiber_;
};

}  // namespace deltawire
