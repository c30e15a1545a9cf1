#include "tests/simulation/process.h"

#include <algorithm>
#include <utility>

#include "common/config/options.h"
#include "tests/simulation/kernel_calls.h"
#include "tests/simulation/scheduler.h"

namespace deltawire {

// Replaces common/config's, whose parsers are not linked.
std::string_view ToString(GpuUse) { return "off"; }

}  // namespace deltawire

namespace deltawire::simulation {

Process* ThisProcess() {
  Scheduler* scheduler = Scheduler::current();
  return scheduler == nullptr ? nullptr : scheduler->process();
}

Process::~Process() { ReleaseAll(); }

void Process::ReleaseAll() {
  for (const Mapping& m : std::exchange(mappings_, {})) __real_munmap(m.base, m.bytes);
  for (const int fd : std::exchange(fds_, {})) __real_close(fd);
}

void Process::Kill() {
  if (!alive_) return;
  alive_ = false;
  Scheduler& scheduler = *Scheduler::current();
  if (scheduler.trace()) scheduler.Note("killed: " + name_);
  scheduler.Drop(*this);
  ReleaseAll();
  for (auto& then : std::exchange(on_death_, {})) then();
  if (scheduler.process() == this) scheduler.Abandon();
}

const Process::Mapping* Process::Find(ino_t inode) const {
  for (const Mapping& m : mappings_) {
    if (m.inode == inode) return &m;
  }
  return nullptr;
}

bool Process::Maps(const void* at) const {
  return std::ranges::any_of(
      mappings_, [at](const Mapping& m) { return at >= m.base && at < m.base + m.bytes; });
}

void Process::Unmapped(const void* base) {
  std::erase_if(mappings_, [base](const Mapping& m) { return m.base == base; });
}

}  // namespace deltawire::simulation
