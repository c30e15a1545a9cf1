// Single functions that the simulation replaces by the linker's --wrap: those that would take real
// time or read the machine, points within the kernels' work, and the planted bugs.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "common/delta/coder_rates.h"
#include "common/layout/root.h"
#include "common/serving/incoming_version.h"
#include "common/serving/version_store.h"
#include "common/shm/state_file.h"
#if __has_include("common/shm/file_lease.h")
#include "common/shm/file_lease.h"
#endif
#include "kernels/kernels.h"
#include "receiver/attach/follower.h"
#include "receiver/buffer/buffer.h"
#include "receiver/buffer/buffer_gate.h"
#include "receiver/buffer/buffer_names.h"
#include "sender/agent/fleet/group_file.h"
#include "sender/agent/model.h"
#include "sender/agent/offload/offload_session.h"
#include "tests/simulation/planted.h"
#include "tests/simulation/process.h"
#include "tests/simulation/published.h"
#include "tests/simulation/scheduler.h"

namespace deltawire {
namespace simulation {
namespace {

// Explicit instantiation may name a private member and its type.
template <auto kMember>
struct Reached;
template <typename State, State receiver::BufferGate::*kMember>
struct Reached<kMember> {
  friend void OpenWhileDraining(receiver::BufferGate& gate) {
    if (gate.*kMember == State::kDraining) gate.*kMember = State::kOpen;
  }
};
template struct Reached<&receiver::BufferGate::state_>;
void OpenWhileDraining(receiver::BufferGate& gate);

Plant g_plant = Plant::kNone;
uint32_t g_model_chunks = 0;
ArrivingChunk* g_arriving = nullptr;
std::map<std::string, std::vector<Identity>> g_published;  // by the sender's name

const kernels::Backend& RealBackend();

/// A step before and after bytes change that other processes see: others may look, or the process
/// die.
void PointIfShared(const void* at) {
  const Process* process = ThisProcess();
  if (process != nullptr && process->Maps(at)) Scheduler::current()->Point("a chunk's bytes");
}

kernels::DecodeStatus DecodeApply(const kernels::DigestKey& key, kernels::Bytes payload,
                                  kernels::MutableBytes data, unsigned width,
                                  uint64_t digest_before, uint64_t* digest_after) {
  PointIfShared(data.data());
  const auto status =
      RealBackend().decode_apply(key, payload, data, width, digest_before, digest_after);
  PointIfShared(data.data());
  return status;
}

uint64_t Digest(const kernels::DigestKey& key, kernels::Bytes data) {
  if (g_arriving != nullptr) return g_arriving->expected;
  return RealBackend().digest(key, data);
}

uint64_t DigestRange(const kernels::DigestKey& key, kernels::Bytes data, size_t offset) {
  const uint64_t part = RealBackend().digest_range(key, data, offset);
  if (g_arriving == nullptr) return part;
  if (offset + data.size() == g_arriving->bytes) return g_arriving->expected - g_arriving->sum;
  g_arriving->sum += part;
  return part;
}

}  // namespace

Plant planted() { return g_plant; }

void SetPlanted(Plant plant) { g_plant = plant; }

void SetModelChunks(uint32_t chunks) { g_model_chunks = chunks; }

void SetArriving(ArrivingChunk* chunk) { g_arriving = chunk; }

bool WasPublished(const Identity& whole, size_t senders) {
  const auto is_whole = [&whole](const Identity& made) {
    return made == whole && made.attempt == whole.attempt;
  };
  if (g_published.size() < senders) return false;
  const std::vector<Identity>& first = g_published.begin()->second;
  if (g_published.size() == 1) return std::ranges::any_of(first, is_whole);
  for (const Identity& a : first) {
    for (const Identity& b : g_published.rbegin()->second) {
      if (a.id.version != b.id.version || a.attempt != b.attempt) continue;
      if (is_whole(receiver::Combine(std::vector<Identity>{a, b}))) return true;
    }
  }
  return false;
}

void ForgetPublished() { g_published.clear(); }

}  // namespace simulation
}  // namespace deltawire

using deltawire::simulation::Plant;
using deltawire::simulation::planted;

#define DW_INSTALL(prefix) \
  prefix##_ZN9deltawire12VersionStore7InstallESt10shared_ptrINS_9PublishedEES1_IKNS_5DeltaEE

extern "C" {

const deltawire::kernels::Backend& __real__ZN9deltawire7kernels4BestEv();

const deltawire::kernels::Backend& __wrap__ZN9deltawire7kernels4BestEv() {
  static const deltawire::kernels::Backend backend = [] {
    deltawire::kernels::Backend b = __real__ZN9deltawire7kernels4BestEv();
    b.decode_apply = deltawire::simulation::DecodeApply;
    b.digest = deltawire::simulation::Digest;
    b.digest_range = deltawire::simulation::DigestRange;
    return b;
  }();
  return backend;
}

// Each simulated machine starts anew by itself.
deltawire::StatusOr<std::string> __wrap__ZN9deltawire6BootIdERKNSt10filesystem7__cxx114pathE(
    const std::filesystem::path&) {
  return fmt::format("start {}", deltawire::simulation::ThisProcess()->boot());
}

// The machine's free memory changes from run to run, and is read from a dozen files.
std::optional<uint64_t> __wrap__ZN9deltawire15AvailableMemoryERKNSt10filesystem7__cxx114pathES4_(
    const std::filesystem::path&, const std::filesystem::path&) {
  return std::nullopt;
}

// CoderRates::Calibrate measures real work, which takes no virtual time.
void __wrap__ZN9deltawire10CoderRates9CalibrateERKNS_7kernels7BackendE(
    deltawire::CoderRates*, const deltawire::kernels::Backend&) {}

#if __has_include("common/shm/file_lease.h")
// WhoHas reads the machine's /proc, which does not show simulated processes.
std::vector<deltawire::FileHolder> __wrap__ZN9deltawire6WhoHasEi(int) { return {}; }
#endif

void DW_INSTALL(__real_)(deltawire::VersionStore*, std::shared_ptr<deltawire::Published>,
                         std::shared_ptr<const deltawire::Delta>);

// The state is recorded before others can see it. A sender that dies in between leaves one that
// nobody is told of.
void DW_INSTALL(__wrap_)(deltawire::VersionStore* store, std::shared_ptr<deltawire::Published> next,
                         std::shared_ptr<const deltawire::Delta> delta) {
  using namespace deltawire::simulation;
  const std::string& name = ThisProcess()->name();
  // What a relay serves it was sent, and that is checked with its commits.
  if (name.starts_with("sender")) g_published[name].push_back(next->info.identity);
  DW_INSTALL(__real_)(store, std::move(next), std::move(delta));
}

#define DW_READ_GROUP_FILE(prefix) \
  prefix##_ZN9deltawire6sender13ReadGroupFileERKNSt10filesystem7__cxx114pathE

deltawire::StatusOr<deltawire::sender::KeptGroups> DW_READ_GROUP_FILE(__real_)(
    const std::filesystem::path& path);

deltawire::StatusOr<deltawire::sender::KeptGroups> DW_READ_GROUP_FILE(__wrap_)(
    const std::filesystem::path& path) {
  if (planted() == Plant::kForgetDecision) return deltawire::sender::KeptGroups{};
  return DW_READ_GROUP_FILE(__real_)(path);
}

void __real__ZN9deltawire9StateFile11MarkUnknownEjj(deltawire::StateFile*, uint32_t, uint32_t);

void __wrap__ZN9deltawire9StateFile11MarkUnknownEjj(deltawire::StateFile* state, uint32_t slot,
                                                    uint32_t chunk) {
  if (planted() == Plant::kForgetUnknown) return;
  __real__ZN9deltawire9StateFile11MarkUnknownEjj(state, slot, chunk);
}

// A linker's name, behind __real_ or __wrap_.
#define DW_BEGIN                                                                                 \
  "_ZN9deltawire6sender14OffloadSession5BeginERKNS0_14OffloadRequestERKNS_8IdentityEmNSt6chrono" \
  "10time_pointINS_11SteadyClockENS8_8durationIlSt5ratioILl1ELl1000000000EEEEEE"
using Begun = deltawire::StatusOr<deltawire::sender::OffloadSession::Begun>;

Begun RealBegin(deltawire::sender::OffloadSession*, const deltawire::sender::OffloadRequest&,
                const deltawire::Identity&, uint64_t,
                deltawire::SteadyClock::time_point) __asm__("__real_" DW_BEGIN);
Begun BeginAnyAttempt(deltawire::sender::OffloadSession*, const deltawire::sender::OffloadRequest&,
                      const deltawire::Identity&, uint64_t,
                      deltawire::SteadyClock::time_point) __asm__("__wrap_" DW_BEGIN);

Begun BeginAnyAttempt(deltawire::sender::OffloadSession* session,
                      const deltawire::sender::OffloadRequest& request,
                      const deltawire::Identity& published, uint64_t drawn,
                      deltawire::SteadyClock::time_point now) {
  deltawire::sender::OffloadRequest joins = request;
  const bool plant =
      planted() == Plant::kAnyAttempt && session->current().version == request.version;
  if (plant) joins.attempt = session->current().attempt;
  return RealBegin(session, joins, published, drawn, now);
}

void __real__ZN9deltawire6sender8Offloads12RemoveClientEm(deltawire::sender::Offloads*, uint64_t);

void __wrap__ZN9deltawire6sender8Offloads12RemoveClientEm(deltawire::sender::Offloads* model,
                                                          uint64_t client) {
  if (planted() == Plant::kNeverAttends) return;
  __real__ZN9deltawire6sender8Offloads12RemoveClientEm(model, client);
}

#define DW_HOLD                                                                              \
  "_ZN9deltawire8receiver10BufferGate4HoldERKNS_8IdentityERKNSt7__cxx1112basic_stringIcSt11" \
  "char_traitsIcESaIcEEENSt6chrono10time_pointINS_11SteadyClockENSD_8durationIlSt5ratioIL"   \
  "l1ELl1000000000EEEEEE"

bool RealHold(deltawire::receiver::BufferGate*, const deltawire::Identity&, const std::string&,
              deltawire::SteadyClock::time_point) __asm__("__real_" DW_HOLD);
bool HoldLate(deltawire::receiver::BufferGate*, const deltawire::Identity&, const std::string&,
              deltawire::SteadyClock::time_point) __asm__("__wrap_" DW_HOLD);

bool HoldLate(deltawire::receiver::BufferGate* gate, const deltawire::Identity& id,
              const std::string& reader, deltawire::SteadyClock::time_point until) {
  if (planted() == Plant::kLateHold) deltawire::simulation::OpenWhileDraining(*gate);
  return RealHold(gate, id, reader, until);
}

#define DW_RECOVER                                                                           \
  "_ZN9deltawire8receiver13RecoverBufferERKNSt10filesystem7__cxx114pathESt10shared_ptrINS_7" \
  "DirLockEERKNS0_6Buffer7OptionsE"
using Recovered = deltawire::StatusOr<std::unique_ptr<deltawire::receiver::Buffer>>;

Recovered RealRecover(const std::filesystem::path&, std::shared_ptr<deltawire::DirLock>,
                      const deltawire::receiver::Buffer::Options&) __asm__("__real_" DW_RECOVER);
Recovered RecoverNamed(const std::filesystem::path&, std::shared_ptr<deltawire::DirLock>,
                       const deltawire::receiver::Buffer::Options&) __asm__("__wrap_" DW_RECOVER);

Recovered RecoverNamed(const std::filesystem::path& directory,
                       std::shared_ptr<deltawire::DirLock> lock,
                       const deltawire::receiver::Buffer::Options& options) {
  const bool keeps = planted() == Plant::kKeepName;
  const auto named = directory / deltawire::receiver::kWeights;
  const auto kept = directory / "kept";
  std::error_code ignored;
  if (keeps) std::filesystem::create_hard_link(named, kept, ignored);
  auto taken = RealRecover(directory, std::move(lock), options);
  if (keeps && !taken.ok()) std::filesystem::create_hard_link(kept, named, ignored);
  if (keeps) std::filesystem::remove(kept, ignored);
  return taken;
}

#define DW_LOOK(prefix) prefix##_ZNK9deltawire15IncomingVersion7PieceAtEm
#define DW_END(prefix) prefix##_ZNK9deltawire15IncomingVersion3endEv

deltawire::IncomingVersion::Found DW_LOOK(__real_)(const deltawire::IncomingVersion*, size_t);

deltawire::IncomingVersion::Found DW_LOOK(__wrap_)(const deltawire::IncomingVersion* version,
                                                   size_t n) {
  using Step = deltawire::IncomingVersion::Step;
  auto found = DW_LOOK(__real_)(version, n);
  const bool planted =
      deltawire::simulation::planted() == Plant::kEndAbandoned && version->identity().root == 0;
  if (planted && found.step == Step::kAbandoned) found.step = Step::kComplete;
  return found;
}

deltawire::net::PullEnd DW_END(__real_)(const deltawire::IncomingVersion*);

deltawire::net::PullEnd DW_END(__wrap_)(const deltawire::IncomingVersion* version) {
  auto end = DW_END(__real_)(version);
  const bool planted = deltawire::simulation::planted() == Plant::kEndAbandoned;
  if (!planted || !end.identity.empty()) return end;
  end.identity = version->identity();
  for (uint32_t c = 0; c < deltawire::simulation::g_model_chunks; ++c) {
    end.identity.root += deltawire::RootTerm(c, version->digest(c).value_or(0));
  }
  return end;
}

}  // extern "C"

namespace deltawire::simulation {
namespace {
const kernels::Backend& RealBackend() { return __real__ZN9deltawire7kernels4BestEv(); }
}  // namespace
}  // namespace deltawire::simulation
