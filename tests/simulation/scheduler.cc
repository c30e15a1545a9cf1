#include "tests/simulation/scheduler.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "tests/simulation/kernel_calls.h"
#include "tests/simulation/process.h"

namespace deltawire::simulation {
namespace {

constexpr size_t kStackBytes = size_t{1} << 20;
constexpr size_t kGuardBytes = size_t{64} << 10;
constexpr auto kStep = std::chrono::microseconds(1);

Scheduler* g_current = nullptr;

Stack* MakeStack(void (*enter)()) {
  void* at = __real_mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (at == MAP_FAILED) std::abort();
  ::mprotect(at, kGuardBytes, PROT_NONE);
  auto* stack = new Stack;
  ::getcontext(&stack->context);
  stack->context.uc_stack.ss_sp = at;
  stack->context.uc_stack.ss_size = kStackBytes;
  stack->context.uc_link = nullptr;
  ::makecontext(&stack->context, enter, 0);
  return stack;
}

/// Leaks what the fiber would destroy: a killed process destroys nothing.
void Leak(Fiber& fiber) {
  if (fiber.body) new std::function<void()>(std::move(fiber.body));
  fiber.body = nullptr;
}

/// Stacks are kept between histories: making one costs as much as a hundred switches.
std::vector<Stack*>& StackPool() {
  static std::vector<Stack*> pool;
  return pool;
}

}  // namespace

Scheduler* Scheduler::current() { return g_current; }

Scheduler::Scheduler(const Options& options) : options_(options), random_(options.seed) {
  free_stacks_.swap(StackPool());
  g_current = this;
}

Scheduler::~Scheduler() {
  g_current = nullptr;
  for (const auto& fiber : fibers_) {
    if (fiber->stack != nullptr) free_stacks_.push_back(fiber->stack);
    Leak(*fiber);
  }
  StackPool().swap(free_stacks_);
}

std::shared_ptr<Fiber> Scheduler::Spawn(std::string name, std::shared_ptr<Process> process,
                                        std::function<void()> body) {
  auto fiber = std::make_shared<Fiber>();
  fiber->number = next_number_++;
  fiber->name = std::move(name);
  fiber->process = std::move(process);
  fiber->body = std::move(body);
  if (free_stacks_.empty()) {
    fiber->stack = MakeStack(&Scheduler::Enter);
  } else {
    fiber->stack = free_stacks_.back();
    free_stacks_.pop_back();
  }
  fibers_.push_back(fiber);
  queue_.Add(*fiber);
  return fiber;
}

void Scheduler::Enter() {
  // Each later fiber on this stack begins here. What the one before left deeper down is dead.
  (void)::_setjmp(g_current->running_->stack->entry);
  Scheduler& scheduler = *g_current;
  scheduler.running_->body();
  // Destroys the captures while this is still a fiber, since destructors may wait.
  scheduler.running_->body = nullptr;
  scheduler.Abandon();
}

void Scheduler::Abandon() {
  Fiber& fiber = *running_;
  End(fiber);
  Wake(&fiber);
  ::_longjmp(loop_, 1);
}

std::string Scheduler::Run(std::shared_ptr<Process> process, std::function<void()> main) {
  const auto fiber = Spawn("main", std::move(process), std::move(main));
  main_ = fiber.get();
  Loop();
  return failure_;
}

void Scheduler::Loop() {
  while (failure_.empty() && main_->state != Fiber::State::kDone) {
    Fiber* next = Choose();
    if (next == nullptr) return;
    if (steps_ > options_.max_steps) {
      return Fail(fmt::format("no end after {} steps:\n{}", steps_, Describe()));
    }
    queue_.MakeRunnable(*next);
    running_ = next;
    Mix(next->number);
    SwitchTo(*next);
    running_ = nullptr;
    if (ended_ > 0) Bury();
  }
}

void Scheduler::Bury() {
  ended_ = 0;
  std::erase_if(fibers_, [this](const std::shared_ptr<Fiber>& fiber) {
    if (fiber->state != Fiber::State::kDone) return false;
    if (fiber->stack != nullptr) free_stacks_.push_back(fiber->stack);
    fiber->stack = nullptr;
    Leak(*fiber);
    return fiber.get() != main_;
  });
}

void Scheduler::End(Fiber& fiber) {
  if (fiber.state == Fiber::State::kDone) return;
  queue_.End(fiber);
  ++ended_;
}

Fiber* Scheduler::Choose() {
  const std::vector<Fiber*>* ready = &queue_.ReadyAt(now_);
  for (; ready->empty(); ready = &queue_.ReadyAt(now_)) {
    if (queue_.first_deadline() == kForever) {
      Fail("deadlock: nobody can go on and no timer runs:\n" + Describe());
      return nullptr;
    }
    now_ = queue_.first_deadline();
    CheckLockWaits();
    if (failed()) return nullptr;
  }
  Fiber* chosen = (*ready)[random_.Below(ready->size())];
  chosen->timed_out = chosen->state == Fiber::State::kBlocked;
  return chosen;
}

void Scheduler::CheckLockWaits() {
  const Fiber* fiber = queue_.FindLockWait(now_ - options_.longest_lock_wait);
  if (fiber == nullptr) return;
  Fail(fmt::format("{} has waited for a mutex since {:.6f} s:\n{}", fiber->name,
                   std::chrono::duration<double>(fiber->since).count(), Describe()));
}

// The context is used only to enter a new stack: each switch by context would cost two system calls
// for signal masks, which never change here.
void Scheduler::SwitchTo(Fiber& fiber) {
  if (::_setjmp(loop_) != 0) return;
  if (fiber.entered) ::_longjmp(fiber.place, 1);
  fiber.entered = true;
  if (fiber.stack->entered) ::_longjmp(fiber.stack->entry, 1);
  fiber.stack->entered = true;
  ::setcontext(&fiber.stack->context);
  std::abort();
}

void Scheduler::SwitchToLoop() {
  if (::_setjmp(running_->place) == 0) ::_longjmp(loop_, 1);
}

void Scheduler::Point(const char* what) {
  if (running_ == nullptr || observing_) return;
  ++steps_;
  now_ += kStep;
  Mix(now_.count());
  if (options_.trace) Note(what);
  if (observer_) {
    observing_ = true;
    observer_(what);
    observing_ = false;
    if (failed()) Abandon();
  }
  if (running_->process->Due()) running_->process->Kill();
  if (random_.Chance(options_.spurious)) {
    // The standard allows spurious wake-ups.
    Fiber* fiber = fibers_[random_.Below(fibers_.size())].get();
    if (!fiber->lock) queue_.MakeRunnable(*fiber);
  }
  if (random_.Chance(options_.switches)) Yield();
}

void Scheduler::Yield() {
  running_->state = Fiber::State::kRunnable;
  running_->timed_out = false;
  SwitchToLoop();
}

bool Scheduler::Block(const void* key, const char* doing, Time deadline, bool lock) {
  Fiber& fiber = *running_;
  if (options_.trace) Note(fmt::format("waits: {}", doing));
  fiber.key = key;
  fiber.doing = doing;
  fiber.lock = lock;
  fiber.since = now_;
  fiber.timed_out = false;
  queue_.Block(fiber, deadline);
  ++steps_;
  SwitchToLoop();
  fiber.key = nullptr;
  fiber.lock = false;
  return !fiber.timed_out;
}

void Scheduler::Sleep(Time duration) {
  const Time until = now_ + duration;
  while (now_ < until) Block(this, "sleep", until);
}

void Scheduler::Wake(const void* key) { queue_.Wake(key); }

void Scheduler::WakeOne(const void* key) { queue_.WakeOne(key, random_); }

void Scheduler::Join(const std::shared_ptr<Fiber>& fiber) {
  Point("join");
  while (fiber->state != Fiber::State::kDone) Block(fiber.get(), "join");
}

void Scheduler::Drop(const Process& process) {
  for (const auto& fiber : fibers_) {
    if (fiber->process.get() == &process && fiber.get() != running_) End(*fiber);
  }
}

void Scheduler::Fail(std::string why) {
  if (failure_.empty()) {
    failure_ =
        fmt::format("at {:.6f} s, step {}{}: {}", std::chrono::duration<double>(now_).count(),
                    steps_, running_ == nullptr ? "" : ", " + running_->name, why);
  }
  if (running_ != nullptr && !observing_) Abandon();
}

std::string Scheduler::Describe() const {
  std::string text;
  for (const auto& fiber : fibers_) {
    const bool blocked = fiber->state == Fiber::State::kBlocked;
    text += fmt::format("  {} / {}: {} since {:.6f} s\n", fiber->process->name(), fiber->name,
                        blocked ? fiber->doing : "can run",
                        std::chrono::duration<double>(fiber->since).count());
  }
  return text;
}

void Scheduler::Note(const std::string& text) {
  if (!options_.trace) return;
  std::fprintf(stderr, "%12.6f %s/%s: %s\n", std::chrono::duration<double>(now_).count(),
               running_ == nullptr ? "-" : running_->process->name().c_str(),
               running_ == nullptr ? "-" : running_->name.c_str(), text.c_str());
}

}  // namespace deltawire::simulation
