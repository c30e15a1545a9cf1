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
  std::lock_guard lock(mu_);
  return newest_;
}

std::shared_ptr<Published> VersionStore::Make(const VersionInfo& info, uint32_t half) const {
  auto state = std::make_shared<Published>();
  state->info = info;
  state->half = half;
  state->encoded = std::make_shared<EncodedCache>(EncodedCache::kUsualBytes, encoded_);
  state->kept = std::make_shared<KeptChunks>(kept_chunks_);
  state->damaged = std::make_unique<std::atomic<uint8_t>[]>(context_.chunks->size());
  return state;
}

void VersionStore::Install(std::shared_ptr<Published> next, std::shared_ptr<const Delta> delta) {
  std::shared_ptr<const Published> last;  // may be large, so it is destroyed without the lock
  std::lock_guard lock(mu_);
  if (delta != nullptr && newest_ != nullptr) {
    log_.Append(std::move(delta));
    steps_.push_back({newest_->info, newest_->side_files});
  } else {
    log_.Clear();
    steps_.clear();
  }
  next->log = log_.View();
  while (steps_.size() > next->log.size()) steps_.pop_front();
  next->serial = next_serial_++;
  last = std::exchange(newest_, std::move(next));
  if (last == nullptr) return;
  std::erase_if(held_, [](const auto& held) { return held.expired(); });
  // The next offload writes to the half of an earlier state, so nothing here refers to it any more.
  for (const auto& gone : {std::exchange(kept_, nullptr), last}) {
    if (gone == nullptr) continue;
    held_.push_back(gone);
    if (gone->side_files->hash == newest_->side_files->hash) continue;
    last_side_files_.push_back(gone->side_files);
    if (last_side_files_.size() > kLastSideFiles) last_side_files_.pop_front();
  }
}

void VersionStore::KeepEarlier(std::shared_ptr<const Published> state) {
  std::lock_guard lock(mu_);
  kept_ = std::move(state);
}

std::optional<size_t> VersionStore::Find(const Identity& id) const {
  for (size_t i = steps_.size(); i-- > 0;) {
    if (IsNamed(steps_[i].info.identity, id)) return i;
  }
  return std::nullopt;
}

StatusOr<std::shared_ptr<const Published>> VersionStore::At(const Identity& id) {
  std::lock_guard lock(mu_);
  if (newest_ == nullptr) {
    return Errorf(StatusCode::kFailedPrecondition, "model \"{}\": nothing is published yet",
                  context_.model);
  }
  const Identity& newest = newest_->info.identity;
  if (IsNamed(newest, id)) return newest_;
  if (!IsOf(newest, id.lineage) || newest.id < id.id) {
    return Errorf(StatusCode::kAborted,
                  "model \"{}\": {} is not published here, the newest is {}; pull again",
                  context_.model, DescribeFully(id), DescribeFully(newest));
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
                context_.model, ToString(id), DescribeFully(newest));
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
  return state;
}

LogView VersionStore::Since(const Published& newest, const Identity& id) const {
  std::lock_guard lock(mu_);
  const auto step = Find(id);
  if (!step || newest_ == nullptr || newest_->serial != newest.serial) return {};
  return {newest_->log.begin() + static_cast<std::ptrdiff_t>(*step), newest_->log.end()};
}

Status VersionStore::UndoChunk(const ChunkDelta& d, MutableBytes bytes, uint64_t& digest) const {
  const Chunk& chunk = (*context_.chunks)[d.chunk];
  const auto undone =
      UndoDelta(*context_.backend, *context_.key, d.payload, chunk.width, bytes, digest);
  if (undone == kernels::DecodeStatus::kOk && digest == d.digest_before) return absl::OkStatus();
  return Errorf(StatusCode::kDataLoss,
                "model \"{}\": undoing a delta of tensor {} disagrees with its digest; nothing was "
                "published, offload the version again",
                context_.model, context_.layout->tensor(chunk.tensor).name);
}

StatusOr<Identity> VersionStore::Reach(uint64_t version) const {
  std::lock_guard lock(mu_);
  if (newest_ == nullptr || newest_->info.id().version == version) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\": {} is published; there is nothing to roll back", context_.model,
                  ToString(newest_ ? newest_->info.id() : StateId{}));
  }
  const LogView& log = newest_->log;
  uint64_t oldest = newest_->info.id().version;
  for (size_t i = log.size(); i-- > 0;) {
    // A payload that was too large to keep cannot be undone, so nothing before it can be reached.
    const auto& chunks = log[i]->chunks();
    if (std::any_of(chunks.begin(), chunks.end(), [](const ChunkDelta& d) { return d.full; }))
      break;
    oldest = steps_[i].info.id().version;
    if (oldest == version) return steps_[i].info.identity;
  }
  return Errorf(StatusCode::kNotFound,
                "model \"{}\": version {} cannot be made from the delta log, which reaches back "
                "to version {}; offload it again as a new version",
                context_.model, version, oldest);
}

Status VersionStore::UndoInto(MutableBytes data, const Published& newest, const Identity& target,
                              std::vector<uint64_t>& digests) const {
  const LogView since = Since(newest, target);
  if (since.empty()) {
    return Errorf(StatusCode::kAborted, "model \"{}\": {} is not kept any more", context_.model,
                  DescribeFully(target));
  }
  for (size_t i = since.size(); i-- > 0;) {
    for (const ChunkDelta& d : since[i]->chunks()) {
      const Chunk& chunk = (*context_.chunks)[d.chunk];
      DW_RETURN_IF_ERROR(UndoChunk(d, data.subspan(chunk.offset, chunk.bytes), digests[d.chunk]));
    }
  }
  return absl::OkStatus();
}

std::shared_ptr<const SideFileSet> VersionStore::side_files(uint64_t hash) const {
  std::lock_guard lock(mu_);
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
  std::lock_guard lock(mu_);
  return log_.bytes();
}

}  // namespace deltawire
