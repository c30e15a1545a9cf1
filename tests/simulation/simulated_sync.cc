#include "tests/simulation/simulated_sync.h"

#include <cstdlib>
#include <map>

#include "tests/simulation/process.h"
#include "tests/simulation/scheduler.h"
#include "tests/simulation/simulated_thread_local.h"

namespace deltawire {

using simulation::Scheduler;

namespace {

/// Stands for the owner of a mutex that is locked outside of any fiber.
constexpr int kOutside = 0;

const void* Self() {
  Scheduler* scheduler = Scheduler::current();
  if (scheduler == nullptr || scheduler->fiber() == nullptr) return &kOutside;
  return scheduler->fiber();
}

}  // namespace

namespace simulation {

std::shared_ptr<void>& OfThisFiber(const void* key) {
  static std::map<const void*, std::shared_ptr<void>> outside;
  return Self() == &kOutside ? outside[key] : Scheduler::current()->fiber()->locals[key];
}

}  // namespace simulation

SteadyClock::time_point SteadyClock::now() noexcept {
  Scheduler* scheduler = Scheduler::current();
  return time_point(scheduler == nullptr ? duration{0} : scheduler->Tick());
}

WallClock::time_point WallClock::now() noexcept {
  return time_point(SteadyClock::now().time_since_epoch() + std::chrono::hours(24 * 365 * 55));
}

void Mutex::lock() {
  const void* self = Self();
  Scheduler* scheduler = Scheduler::current();
  if (self == &kOutside) {
    if (owner_ != nullptr) std::abort();
    owner_ = self;
    return;
  }
  scheduler->Point("lock");
  if (owner_ == self) scheduler->Fail("a thread locks a mutex that it holds");
  while (owner_ != nullptr) {
    ++waiting_;
    scheduler->Block(this, "a mutex", simulation::kForever, true);
    --waiting_;
  }
  owner_ = self;
}

bool Mutex::try_lock() {
  const void* self = Self();
  if (self != &kOutside) Scheduler::current()->Point("try_lock");
  if (owner_ != nullptr) return false;
  owner_ = self;
  return true;
}

void Mutex::unlock() {
  if (owner_ != Self()) std::abort();
  owner_ = nullptr;
  if (waiting_ > 0) Scheduler::current()->Wake(this);
}

void CondVar::notify_one() {
  if (Self() != &kOutside) Scheduler::current()->WakeOne(this);
}

void CondVar::notify_all() {
  if (Self() != &kOutside) Scheduler::current()->Wake(this);
}

std::cv_status CondVar::WaitUntil(std::unique_lock<Mutex>& lock, SteadyClock::time_point until) {
  Scheduler* scheduler = Scheduler::current();
  const bool forever = until == SteadyClock::time_point::max();
  const simulation::Time deadline = forever ? simulation::kForever : until.time_since_epoch();
  lock.unlock();
  // No other fiber runs between the two calls, so unlocking and waiting are one step, as they must
  // be.
  const bool woken = scheduler->Block(this, "a condition", deadline);
  lock.lock();
  return woken ? std::cv_status::no_timeout : std::cv_status::timeout;
}

Thread::~Thread() {
  if (joinable()) std::abort();
}

Thread& Thread::operator=(Thread&& other) noexcept {
  if (joinable()) std::abort();
  fiber_ = std::move(other.fiber_);
  return *this;
}

void Thread::Start(std::function<void()> body) {
  Scheduler& scheduler = *Scheduler::current();
  fiber_ = scheduler.Spawn("thread", scheduler.fiber()->process, std::move(body));
  scheduler.Point("thread");
}

void Thread::join() {
  Scheduler::current()->Join(fiber_);
  fiber_.reset();
}

}  // namespace deltawire
