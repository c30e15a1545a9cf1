#include "receiver/attach/follower.h"

#include <algorithm>
#include <set>

namespace deltawire::receiver {
namespace {

bool IsHeld(const Follower::Target& target, const Follower::Situation& s) {
  const Identity& whole = target.whole;
  return whole.lineage == s.committed.lineage && whole.id == s.committed.id &&
         (!target.root_known || whole.root == s.committed.root);
}

void PutLittleEndian(uint64_t value, std::vector<std::byte>& out) {
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

}  // namespace

Hash128 CombineLineages(std::vector<Hash128> lineages) {
  if (lineages.size() == 1) return lineages.front();
  // Sorted as 128-bit numbers, which is also the order of their texts.
  std::sort(lineages.begin(), lineages.end(), [](const Hash128& a, const Hash128& b) {
    return a.hi != b.hi ? a.hi < b.hi : a.lo < b.lo;
  });
  std::vector<std::byte> bytes;
  bytes.reserve(lineages.size() * 16);
  for (const Hash128& l : lineages) {
    if (l == Hash128{}) return {};
    PutLittleEndian(l.lo, bytes);
    PutLittleEndian(l.hi, bytes);
  }
  return Xxh3_128(bytes);
}

Identity Combine(std::span<const Identity> parts) {
  Identity whole = parts.front();
  if (parts.size() == 1) return whole;
  std::vector<Hash128> lineages;
  whole.root = 0;
  for (const Identity& part : parts) {
    lineages.push_back(part.lineage);
    whole.id = std::max(whole.id, part.id);
    whole.root += part.root;
  }
  whole.lineage = CombineLineages(std::move(lineages));
  return whole;
}

Follower::Follower(std::vector<std::string> addresses, Options options)
    : options_(options), agents_(addresses.size()), random_(options.seed) {
  for (size_t i = 0; i < agents_.size(); ++i) agents_[i].address = std::move(addresses[i]);
}

void Follower::NoteEvent(size_t agent, const SenderEvent& event) {
  FollowedAgent& a = agents_[agent];
  a.attached = true;
  Learn(agent, event.newest.identity);
  a.incoming = event.incoming;
  a.forgotten = false;
  const Identity& version = a.incoming.version;
  if (!version.empty()) a.written = version.attempt;
  if (!version.empty() && !(version.lineage == event.newest.identity.lineage)) {
    a.next_lineage = version.lineage;
  }
}

void Follower::NoteEnd(size_t agent) {
  agents_[agent].attached = false;
  agents_[agent].incoming = {};
}

bool Follower::attached() const {
  return std::all_of(agents_.begin(), agents_.end(),
                     [](const FollowedAgent& a) { return a.attached; });
}

void Follower::Learn(size_t agent, const Identity& newest) {
  FollowedAgent& a = agents_[agent];
  // After a rollback, or with a new lineage, receivers must not be brought to the older states.
  const bool same_lineage = newest.lineage == a.newest.lineage;
  if (newest.empty() || !same_lineage || newest.id.epoch > a.newest.id.epoch) a.known.clear();
  if (!same_lineage) a.next_lineage = {};
  // A version number may be published again after another agent abandoned its offload; that is a
  // new state and replaces the old one.
  while (!a.known.empty() && a.known.back().id >= newest.id) a.known.pop_back();
  a.newest = newest;
  if (newest.empty()) return;
  a.known.push_back(newest);
  if (a.known.size() > kRemembered) a.known.pop_front();
}

const Identity* Follower::FindKnown(const FollowedAgent& agent, const Identity& part) const {
  for (auto known = agent.known.rbegin(); known != agent.known.rend(); ++known) {
    // Parts of one offload belong together even if agents count different epochs, because one was
    // rolled back more often. Without attempts the ids must be equal.
    const bool same_offload =
        part.attempt != 0 && known->attempt == part.attempt && known->id.version == part.id.version;
    if (same_offload || (known->id == part.id && known->attempt == part.attempt)) return &*known;
  }
  return nullptr;
}

std::optional<Follower::Target> Follower::WholeOf(const Identity& part) const {
  Target target;
  target.root_known = true;
  for (const FollowedAgent& a : agents_) {
    if (const Identity* known = FindKnown(a, part)) {
      target.parts.push_back(*known);
      continue;
    }
    // The agent may have published that state while this receiver was not attached. The pull will
    // find out: an agent that did not publish it refuses.
    const bool passed = a.newest.id.epoch == part.id.epoch && a.newest.id > part.id &&
                        std::ranges::none_of(a.known, [&](const Identity& known) {
                          return known.id == part.id;  // known under another attempt
                        });
    if (!passed) return std::nullopt;
    target.parts.push_back({.lineage = a.newest.lineage, .id = part.id, .attempt = part.attempt});
    target.root_known = false;
  }
  target.whole = Combine(target.parts);
  return target;
}

std::optional<Follower::Target> Follower::NewestCommon() const {
  std::vector<const Identity*> states;
  for (const FollowedAgent& a : agents_) {
    if (a.newest.empty()) return std::nullopt;
    for (const Identity& known : a.known) states.push_back(&known);
  }
  // A whole has the greatest id of its parts, so with ids falling the first state that all agents
  // have is the newest.
  std::ranges::stable_sort(states,
                           [](const Identity* a, const Identity* b) { return a->id > b->id; });
  for (const Identity* state : states) {
    if (auto target = WholeOf(*state)) return target;
  }
  return std::nullopt;
}

StateId Follower::OldestNewest() const {
  StateId oldest = agents_.front().newest.id;
  for (const FollowedAgent& a : agents_) oldest = std::min(oldest, a.newest.id);
  return oldest;
}

bool Follower::HasPublished(const FollowedAgent& agent, const Identity& part) {
  return std::ranges::any_of(agent.known, [&](const Identity& known) { return IsOf(part, known); });
}

bool Follower::IsPublished(std::span<const Identity> parts) const {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!HasPublished(agents_[i], parts[i])) return false;
  }
  return true;
}

bool Follower::HasPart(size_t agent, const Identity& part) const {
  const FollowedAgent& a = agents_[agent];
  return IsOf(part, a.incoming.version) || HasPublished(a, part);
}

bool Follower::IsAbandoned(const FollowedAgent& a, const Identity& part) {
  const Identity& coming = a.incoming.version;
  if (a.forgotten || IsOf(part, coming) || HasPublished(a, part)) return false;
  if (a.written == part.attempt) return true;
  // The agent has not announced this part. A version that it has published may have the same number
  // in an earlier attempt, which is now written again.
  const bool gone_on = !coming.empty() && coming.id.version >= part.id.version;
  return gone_on || !(a.newest.lineage == part.lineage) || a.newest.id.epoch != part.id.epoch ||
         a.newest.id > part.id;
}

bool Follower::IsAbandoned(std::span<const Identity> parts) const {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (IsAbandoned(agents_[i], parts[i])) return true;
  }
  return false;
}

void Follower::ForgetIncoming(const Target& target) {
  for (size_t i = 0; i < target.parts.size(); ++i) {
    FollowedAgent& a = agents_[i];
    if (!IsOf(target.parts[i], a.incoming.version)) continue;
    a.incoming = {};
    a.forgotten = true;
  }
}

std::optional<Follower::Target> Follower::FindIncoming(const Situation& s) const {
  if (s.requested || s.corrupt || s.paused) return std::nullopt;
  if (!options_.follow && !s.member) return std::nullopt;
  return agents_.size() == 1 ? IncomingOfOne(s) : IncomingOfAll(s);
}

std::optional<Follower::Target> Follower::IncomingOfOne(const Situation& s) const {
  const FollowedAgent& a = agents_.front();
  const Identity& version = a.incoming.version;
  if (version.empty() || (s.checking && version.root == 0)) return std::nullopt;
  // A complete version comes first, since the deltas of the incoming one begin after it.
  const Identity& base = a.incoming.base;
  if (!base.empty() && !(base == s.committed)) return std::nullopt;
  const bool later = version.lineage == s.committed.lineage ? version.id > s.committed.id
                     : version.lineage == a.newest.lineage  ? version.id > a.newest.id
                                                            : true;
  if (!later || IsLater(s.held(), version)) return std::nullopt;
  return Target{
      .whole = version, .root_known = version.root != 0, .parts = {version}, .incoming = true};
}

std::optional<Follower::Target> Follower::UnwrittenWhole(const Identity& version,
                                                         bool one_file) const {
  Target target{.incoming = true};
  for (const FollowedAgent& a : agents_) {
    const Identity& coming = a.incoming.version;
    const bool told = coming.root == 0 && coming.attempt == version.attempt &&
                      coming.id.version == version.id.version;
    const Identity* known = told ? nullptr : FindKnown(a, version);
    // A published part is not kept to the staging, and the other agents may never publish theirs.
    if (known != nullptr && one_file) return std::nullopt;
    if (const Identity* part = told ? &coming : known) {
      target.parts.push_back(*part);
      continue;
    }
    // An agent that still writes an earlier version makes that one common to all first.
    if (!coming.empty() && coming.id.version < version.id.version) return std::nullopt;
    const Identity expected{
        a.newest.lineage, {a.newest.id.epoch, version.id.version}, 0, version.attempt};
    if (a.forgotten || IsAbandoned(a, expected)) return std::nullopt;
    target.awaited.push_back(target.parts.size());
    target.parts.push_back(expected);
  }
  target.whole = Combine(target.parts);
  target.whole.root = 0;
  return target;
}

std::optional<Follower::Target> Follower::IncomingOfAll(const Situation& s) const {
  const auto common = s.checking ? std::nullopt : NewestCommon();
  if (!common || !IsHeld(*common, s)) return std::nullopt;
  for (const FollowedAgent& a : agents_) {
    const Identity& version = a.incoming.version;
    // Only an attempt ties parts together before they have roots.
    if (version.empty() || version.root != 0 || version.attempt == 0) continue;
    auto target = UnwrittenWhole(version, s.one_file);
    if (target && IsLater(target->whole, s.committed)) return target;
  }
  return std::nullopt;
}

bool Follower::IsBehind(const Identity& held) const {
  const FollowedAgent& a = agents_.front();
  return agents_.size() == 1 && !held.empty() && held.lineage == a.next_lineage &&
         !(held.lineage == a.newest.lineage);
}

Follower::Choice Follower::Next(const Situation& s, Time now) const {
  Choice choice;
  for (const FollowedAgent& a : agents_) {
    if (a.attached) continue;
    choice.why = fmt::format("not attached to sender {}", a.address);
    return choice;
  }
  if (auto coming = FindIncoming(s)) {
    choice.pull = now >= pull_at_;
    choice.again = pull_at_;
    choice.target = *std::move(coming);
    return choice;
  }
  const auto target = NewestCommon();
  if (!target) {
    const bool all = std::none_of(agents_.begin(), agents_.end(),
                                  [](const FollowedAgent& a) { return a.newest.empty(); });
    choice.why = agents_.size() == 1
                     ? fmt::format("sender {} has published nothing yet", agents_[0].address)
                     : fmt::format(
                           "the agents have {} in common: {}; every agent publishes every "
                           "version, and a rollback is for all of them",
                           all ? "no version of one attempt" : "no version", NewestOfEach());
    return choice;
  }
  const Identity& whole = target->whole;
  const bool same = IsHeld(*target, s);
  // A buffer in the middle of an update counts as what it held before: a relay may be behind that.
  const bool older = IsLater(s.held(), whole) || IsBehind(s.held());
  choice.target = *target;
  if (older) {
    choice.why = fmt::format(
        "the sender's newest is {}, older than the {} held here; waiting for a newer one "
        "(`deltawire sync --full` takes the older)",
        agents_.size() == 1 ? ToString(whole) : NewestOfEach(), ToString(s.held()));
  }
  if (s.requested) {
    choice.pull = true;
    return choice;
  }
  if (const StateId all = OldestNewest(); choice.why.empty() && whole.id < all) {
    choice.why = fmt::format(
        "no version of one attempt above {}: {}; its parts are of different "
        "offloads, waiting for all agents to publish the same one",
        ToString(whole), NewestOfEach());
  }
  if (!options_.follow || s.paused) return choice;
  // An upstream that is behind cannot repair corrupt chunks: the pull would fetch its whole older
  // state.
  if (older || (same && !s.corrupt)) return choice;
  choice.why.clear();
  choice.pull = now >= pull_at_;
  choice.again = pull_at_;
  return choice;
}

Follower::Choice Follower::ChooseUnwritten(const Situation& s, Time now) const {
  Choice choice;
  auto coming = attached() ? FindIncoming(s) : std::nullopt;
  if (!coming || !coming->unwritten()) return choice;
  choice.pull = now >= pull_at_;
  choice.again = pull_at_;
  choice.target = *std::move(coming);
  choice.target.exact = true;
  return choice;
}

void Follower::NotePullEnd(const Status& status, bool reached, Time now) {
  if (status.ok() && reached) {
    pull_backoff_.Reset();
    pull_at_ = now;
    return;
  }
  pull_at_ = now + pull_backoff_.Next(random_);
}

std::string Follower::NewestOfEach() const {
  std::string text;
  for (const FollowedAgent& a : agents_) {
    text += fmt::format("{}{} at {}", text.empty() ? "" : ", ", a.address, ToString(a.newest));
    if (a.newest.attempt != 0) text += fmt::format(" (attempt {:016x})", a.newest.attempt);
  }
  return text;
}

}  // namespace deltawire::receiver
