#include "common/serving/version_store.h"

#include <algorithm>
#include <optional>

#include "common/serving/undo.h"

namespace deltawire {
namespace {

bool IsOf(const Identity& known, const Hash128& lineage) {
  return lineage == Hash128{} || lineage == known.lineage;
}

bool IsNamed(const Identity& known, const Identity& asked) {
  return known.id == asked.id && IsOf(known, asked.lineage) &&
         (asked.root == 0 || asked.root == known.root) &&
         (asked.attempt == 0 || asked.attempt == known.attempt);
}

constexpr size_t kLastSideFiles = 4;

}  // namespace

std::shared_ptr<const Published> VersionStore::newest() const {
  MutexLock lock(mu_);
  return newest_;
}

std::shared_ptr<Published> VersionStore::Make(const VersionInfo& info, uint32_t half) const {
  auto state = std::make_shared<Published>();
  state->info = info;
  state->half = half;
  state->encoded = std::make_shared<EncodedCache>(EncodedCache::kUsualBytes, encoded_);
  state->back = std::make_shared<WayBack>(log_limit_ / 2);
  state->damaged = std::make_unique<std::atomic<uint8_t>[]>(model_.chunks.size());
  return state;
}

void VersionStore::Install(std::shared_ptr<Published> next, std::shared_ptr<const Delta> delta) {
  States earlier;  // may be large, so destroyed without the lock
  std::shared_ptr<const Published> last, kept;
  MutexLock lock(mu_);
  const uint64_t serial = next_serial_++;
  const bool leads = delta != nullptr && newest_ != nullptr;
  std::erase_if(ways_, [&](const auto& weak) {
    const auto way = weak.lock();
    if (way == nullptr) return true;
    if (leads && way->pinned()) {
      way->Follow(delta, serial);
      return false;
    }
    way->Break();  // Pin begins anew
    return true;
  });
  delta_sums_.push_back((delta_sums_.empty() ? 0 : delta_sums_.back()) +
                        (leads ? delta->memory_bytes() : 0));
  if (leads) {
    log_.Append(std::move(delta));
    steps_.push_back({newest_->info, newest_->side_files});
  } else {
    log_.Clear();
    steps_.clear();
  }
  next->log = log_.View();
  while (steps_.size() > next->log.size()) steps_.pop_front();
  next->serial = serial;
  next->back->Begin(serial, next->digests);
  last = std::exchange(newest_, std::move(next));
  if (last == nullptr) return;
  last->encoded->Retire(EncodedCache::kUsualBytes);
  std::erase_if(held_, [](const auto& held) { return held.expired(); });
  // The next offload writes to the half of an earlier state, so nothing here refers to it.
  kept = std::exchange(kept_, nullptr);
  for (const auto& gone : {kept, last}) {
    if (gone == nullptr) continue;
    held_.push_back(gone);
    if (gone->side_files->hash == newest_->side_files->hash) continue;
    last_side_files_.push_back(gone->side_files);
    if (last_side_files_.size() > kLastSideFiles) last_side_files_.pop_front();
  }
  earlier = Earlier();
  (void)HeldDeltas(earlier, kHeldLogs * log_.limit());
  uint64_t oldest = newest_->serial - newest_->log.size();
  for (const auto& state : earlier) {
    oldest = std::min<uint64_t>(oldest, state->back->serial() - state->log.size());
  }
  for (; first_sum_ < oldest; ++first_sum_) delta_sums_.pop_front();
}

// Pulls of earlier states --------------------------------------------------------------------

std::shared_ptr<const void> VersionStore::Pin(const std::shared_ptr<const Published>& state) {
  const std::shared_ptr<WayBack>& way = state->back;
  MutexLock lock(mu_);
  const bool fed = std::ranges::any_of(ways_, [&](const auto& one) { return one.lock() == way; });
  if (!fed) {
    const LogView& log = newest_->log;
    const uint64_t behind = newest_->serial - way->serial();
    if (way->serial() != 0 && behind <= log.size()) {
      way->Start({log.end() - static_cast<std::ptrdiff_t>(behind), log.end()});
    } else {
      way->Break();
    }
    ways_.push_back(way);
  }
  return WayBack::Pin(way);
}

void VersionStore::KeepOldBytes(uint32_t chunk, Bytes before, bool undoable, bool may_pin) {
  std::vector<std::shared_ptr<WayBack>> wanting;
  WayBack::Base base{.chunk = chunk};
  {
    MutexLock lock(mu_);
    if (newest_ == nullptr || (ways_.empty() && !may_pin)) return;
    base.serial = newest_->serial;
    base.digest = (*newest_->digests)[chunk];
    for (const auto& weak : ways_) {
      auto way = weak.lock();
      if (way != nullptr && way != newest_->back && way->pinned()) wanting.push_back(way);
    }
    if (may_pin || newest_->back->pinned()) wanting.push_back(newest_->back);
  }
  std::erase_if(wanting, [&](const auto& way) { return !way->Wants(base, undoable); });
  if (wanting.empty()) return;
  const auto keep = [&](std::shared_ptr<const OldBytes> old) {
    if (old == nullptr) return false;
    for (const auto& way : wanting) way->Keep(base, old);
    return true;
  };
  {
    std::shared_lock lock(keeping_);
    if (keep(OldBytes::Copy(old_bytes_, before))) return;
  }
  std::unique_lock lock(keeping_);
  if (!keep(OldBytes::Copy(old_bytes_, before))) keep(CopyReplacingNewer(before, wanting));
}

std::shared_ptr<const OldBytes> VersionStore::CopyReplacingNewer(
    Bytes before, const std::vector<std::shared_ptr<WayBack>>& wanting) {
  uint64_t oldest = ~uint64_t{0};
  for (const auto& way : wanting) {
    if (way->pinned()) oldest = std::min(oldest, way->serial());
  }
  States states;
  {
    MutexLock lock(mu_);
    states = Earlier();
    states.insert(states.begin(), newest_);
  }
  std::stable_partition(states.begin(), states.end(),
                        [](const auto& state) { return !state->back->pinned(); });
  for (const auto& state : states) {
    const bool gives = !state->back->pinned() || state->back->serial() > oldest;
    if (oldest == ~uint64_t{0} || !gives) continue;
    state->back->ForgetOldBytes();
    if (auto old = OldBytes::Copy(old_bytes_, before)) return old;
  }
  return nullptr;
}

VersionStore::States VersionStore::Earlier() const {
  States states;
  const auto add = [&](const std::weak_ptr<const Published>& weak)
                       ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                         auto state = weak.lock();
                         if (state != nullptr && state != newest_ && state->back->serial() != 0) {
                           states.push_back(std::move(state));
                         }
                       };
  for (const auto& weak : held_) add(weak);
  for (const auto& [id, weak] : made_) add(weak);
  std::ranges::sort(states, std::greater{}, [](const auto& s) { return s->back->serial(); });
  return states;
}

uint64_t VersionStore::HeldDeltas(const States& states, uint64_t limit) const {
  // Bytes of the deltas that lead from one serial to another.
  const auto bytes = [&](uint64_t from, uint64_t to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto sum = [&](uint64_t serial) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return serial < first_sum_ ? 0 : delta_sums_[serial - first_sum_];
    };
    return sum(to) - sum(from);
  };
  uint64_t held = 0, counted_from = newest_->serial - newest_->log.size();
  for (const auto& state : states) {
    const uint64_t serial = state->back->serial(), from = serial - state->log.size();
    const uint64_t to = std::min(state->back->reached(), counted_from);
    if (from >= to) continue;
    const uint64_t more = bytes(from, to);
    if (held > 0 && held + more > limit) {
      state->back->Discard();
    } else {
      held += more;
      counted_from = from;
    }
  }
  return held;
}

uint64_t VersionStore::held_bytes() const {
  States earlier;  // as in Install
  MutexLock lock(mu_);
  if (newest_ == nullptr) return 0;
  earlier = Earlier();
  return HeldDeltas(earlier, ~uint64_t{0}) + old_bytes_->used();
}

void VersionStore::KeepEarlier(std::shared_ptr<const Published> state) {
  state->back->Begin(0, state->digests);
  MutexLock lock(mu_);
  kept_ = std::move(state);
}

std::optional<size_t> VersionStore::Find(const Identity& id) const {
  for (size_t i = steps_.size(); i-- > 0;) {
    if (IsNamed(steps_[i].info.identity, id)) return i;
  }
  return std::nullopt;
}

StatusOr<std::shared_ptr<const Published>> VersionStore::At(const Identity& id) {
  MutexLock lock(mu_);
  if (newest_ == nullptr) {
    return Errorf(StatusCode::kFailedPrecondition, "model \"{}\": nothing is published yet",
                  model_.name);
  }
  const Identity& newest = newest_->info.identity;
  if (IsNamed(newest, id)) return newest_;
  if (!IsOf(newest, id.lineage) || newest.id < id.id) {
    return Errorf(StatusCode::kAborted,
                  "model \"{}\": {} is not published here, the newest is {}; pull again",
                  model_.name, DescribeFully(id), DescribeFully(newest));
  }
  std::erase_if(made_, [](const auto& e) { return e.second.expired(); });
  if (const auto it = made_.find({id.id, id.root}); it != made_.end()) {
    if (auto known = it->second.lock(); known && IsNamed(known->info.identity, id)) return known;
  }
  if (const auto step = Find(id)) {
    std::shared_ptr<const Published> state = Rebuild(*step);
    made_[{id.id, id.root}] = state;
    return state;
  }
  if (kept_ != nullptr && IsNamed(kept_->info.identity, id)) return kept_;
  return Errorf(StatusCode::kAborted,
                "model \"{}\": {} is not kept any more, the newest is {}; pull a newer one",
                model_.name, ToString(id), DescribeFully(newest));
}

std::shared_ptr<Published> VersionStore::Rebuild(size_t step) const {
  auto state = Make(steps_[step].info, 1 - newest_->half);
  state->side_files = steps_[step].side_files;
  auto digests = std::make_shared<std::vector<uint64_t>>(*newest_->digests);
  const LogView& log = newest_->log;
  for (size_t i = log.size(); i-- > step;) {
    for (const ChunkDelta& d : log[i]->chunks()) (*digests)[d.chunk] = d.digest_before;
  }
  state->digests = std::move(digests);
  state->log.assign(log.begin(), log.begin() + static_cast<std::ptrdiff_t>(step));
  state->back->Begin(newest_->serial - (log.size() - step), state->digests);
  return state;
}

LogView VersionStore::Since(const Published& newest, const Identity& id) const {
  MutexLock lock(mu_);
  const auto step = Find(id);
  if (!step || newest_ == nullptr || newest_->serial != newest.serial) return {};
  return {newest_->log.begin() + static_cast<std::ptrdiff_t>(*step), newest_->log.end()};
}

Status VersionStore::UndoChunk(const ChunkDelta& d, MutableBytes bytes, uint64_t& digest) const {
  const Chunk& chunk = model_.chunks[d.chunk];
  const auto undone = UndoDelta(model_.backend, model_.key, d.payload, chunk.width, bytes, digest);
  if (undone == kernels::DecodeStatus::kOk && digest == d.digest_before) return absl::OkStatus();
  return Errorf(StatusCode::kDataLoss,
                "model \"{}\": undoing a delta of tensor {} disagrees with its digest; nothing was "
                "published, offload the version again",
                model_.name, model_.layout.tensor(chunk.tensor).name);
}

StatusOr<Identity> VersionStore::Reach(uint64_t version) const {
  MutexLock lock(mu_);
  if (newest_ == nullptr || newest_->info.id().version == version) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\": {} is published; there is nothing to roll back", model_.name,
                  ToString(newest_ ? newest_->info.id() : StateId{}));
  }
  const LogView& log = newest_->log;
  uint64_t oldest = newest_->info.id().version;
  for (size_t i = log.size(); i-- > 0;) {
    // A payload that was too large to keep cannot be undone.
    const auto& chunks = log[i]->chunks();
    if (std::any_of(chunks.begin(), chunks.end(), [](const ChunkDelta& d) { return d.full; }))
      break;
    oldest = steps_[i].info.id().version;
    if (oldest == version) return steps_[i].info.identity;
  }
  return Errorf(StatusCode::kNotFound,
                "model \"{}\": version {} cannot be made from the delta log, which reaches back "
                "to version {}; offload it again as a new version",
                model_.name, version, oldest);
}

Status VersionStore::UndoInto(MutableBytes data, const Published& newest, const Identity& target,
                              std::vector<uint64_t>& digests) const {
  const LogView since = Since(newest, target);
  if (since.empty()) {
    return Errorf(StatusCode::kAborted, "model \"{}\": {} is not kept any more", model_.name,
                  DescribeFully(target));
  }
  for (size_t i = since.size(); i-- > 0;) {
    for (const ChunkDelta& d : since[i]->chunks()) {
      const Chunk& chunk = model_.chunks[d.chunk];
      DW_RETURN_IF_ERROR(UndoChunk(d, data.subspan(chunk.offset, chunk.bytes), digests[d.chunk]));
    }
  }
  return absl::OkStatus();
}

std::shared_ptr<const SideFileSet> VersionStore::side_files(uint64_t hash) const {
  MutexLock lock(mu_);
  if (newest_ != nullptr && newest_->side_files->hash == hash) return newest_->side_files;
  for (const Step& step : steps_) {
    if (step.side_files->hash == hash) return step.side_files;
  }
  if (kept_ != nullptr && kept_->side_files->hash == hash) return kept_->side_files;
  for (const auto& weak : held_) {
    const auto held = weak.lock();
    if (held != nullptr && held->side_files->hash == hash) return held->side_files;
  }
  for (const auto& [id, weak] : made_) {
    const auto made = weak.lock();
    if (made != nullptr && made->side_files->hash == hash) return made->side_files;
  }
  for (const auto& set : last_side_files_) {
    if (set->hash == hash) return set;
  }
  return nullptr;
}

uint64_t VersionStore::log_bytes() const {
  MutexLock lock(mu_);
  return log_.bytes();
}

}  // namespace deltawire
