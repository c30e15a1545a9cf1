#include "sender/agent/halves/model_states.h"

#include <cstring>
#include <utility>

#include "common/layout/root.h"

namespace deltawire::sender {

ModelStates::ModelStates(std::unique_ptr<const ModelHome> home, uint64_t delta_log_bytes,
                         ThreadPool& pool)
    : StateSource(home->facts(), delta_log_bytes, pool),
      home_(std::move(home)),
      scrubber_(facts(), home_->halves()) {}

StatusOr<std::shared_ptr<Published>> ModelStates::RestoreHalf(uint32_t half) {
  auto digests = std::make_shared<std::vector<uint64_t>>(halves().Digests(half));
  VersionInfo info;
  info.identity = halves().holds(half);
  info.model_bytes = owned_bytes();
  info.elements = facts().owned_elements;
  if (const uint64_t root = RootOf(*digests, owned()); root != info.identity.root) {
    return Errorf(StatusCode::kDataLoss,
                  "{}: the state file's digests have root {:016x}, not that of {}; register the "
                  "model anew",
                  home_->directory().string(), root, DescribeFully(info.identity));
  }
  DW_ASSIGN_OR_RETURN(auto side_files, home_->side_files().Load(ModelHome::UseOf(half)));
  info.side_files_hash = side_files->hash;
  auto state = store().Make(info, half);
  state->digests = std::move(digests);
  state->side_files = std::move(side_files);
  return state;
}

Status ModelStates::Restore() {
  const auto newest = halves().Newest();
  if (!newest) return absl::OkStatus();
  halves().Activate(*newest);
  DW_ASSIGN_OR_RETURN(auto state, RestoreHalf(*newest));
  store().Install(std::move(state), nullptr);
  if (halves().holds(1 - *newest).empty()) return absl::OkStatus();
  auto earlier = RestoreHalf(1 - *newest);
  if (earlier.ok()) store().KeepEarlier(std::move(*earlier));
  return absl::OkStatus();
}

std::shared_ptr<const SideFileSet> ModelStates::side_files() const {
  const auto newest = store().newest();
  return newest != nullptr ? newest->side_files : home_->side_files().next();
}

std::shared_ptr<const SideFileSet> ModelStates::side_files(uint64_t hash) const {
  if (auto kept = store().side_files(hash)) return kept;
  auto next = home_->side_files().next();
  return next->hash == hash ? next : nullptr;
}

Status ModelStates::SetSideFiles(std::vector<SideFile> files) {
  DW_ASSIGN_OR_RETURN(auto set, MakeSideFileSet(std::move(files)));
  return home_->side_files().SetNext(std::move(set));
}

LeasedState ModelStates::Lease() {
  // If a publish takes the half between the two calls, there is a newer state.
  while (true) {
    auto state = store().newest();
    if (state == nullptr) return {};
    auto lease = halves().Lease(state->half, state->info.identity);
    if (lease != nullptr) return {std::move(state), std::move(lease)};
  }
}

void ModelStates::Recheck(uint32_t chunk) {
  const LeasedState leased = Lease();
  if (leased.state != nullptr && owned().contains(chunk)) scrubber_.Check(*leased.state, chunk);
}

uint64_t ModelStates::damaged_chunks() const {
  const auto now = published();
  uint64_t n = 0;
  for (uint32_t c = 0; now != nullptr && c < chunks().size(); ++c) n += now->damaged[c];
  return n;
}

uint32_t ModelStates::InactiveHalf() const {
  const auto newest = store().newest();
  return newest == nullptr ? 0 : 1 - newest->half;
}

StateId ModelStates::NextState(uint64_t version) const {
  const auto newest = store().newest();
  if (newest == nullptr) return {1, version};
  const StateId now = newest->info.id();
  const bool later = version > now.version || (version == now.version && !owned().all());
  return {later ? now.epoch : now.epoch + 1, version};
}

// Rolling back --------------------------------------------------------------------------------

Status ModelStates::CheckUndamaged(const Published& newest, uint64_t version) const {
  for (uint32_t c = 0; c < chunks().size(); ++c) {
    if (newest.damaged[c] == 0) continue;
    return Errorf(StatusCode::kDataLoss,
                  "model \"{}\": tensor {} is corrupt in memory, so nothing can be made from it; "
                  "offload version {} again as a new one",
                  name(), layout().tensor(chunks()[c].tensor).name, version);
  }
  return absl::OkStatus();
}

Status ModelStates::UndoInto(uint32_t half, const Published& newest, const Identity& target) {
  const uint64_t version = target.id.version;
  DW_RETURN_IF_ERROR(CheckUndamaged(newest, version));
  const Bytes from = this->half(newest.half);
  const MutableBytes to = halves().writable(half);
  for (const ByteRange& r : owned().ByteRanges(chunks())) {
    std::memcpy(to.data() + r.first, from.data() + r.first, r.last - r.first);
  }
  std::vector<uint64_t> digests = *newest.digests;
  DW_RETURN_IF_ERROR(store().UndoInto(to, newest, target, digests));
  // The digests that the deltas computed do not show bytes that were corrupt from the start.
  for (uint32_t c = 0; c < chunks().size(); ++c) {
    const Chunk& chunk = chunks()[c];
    if (!owned().contains(c)) continue;
    if (backend().digest(key(), to.subspan(chunk.offset, chunk.bytes)) == digests[c]) continue;
    return Errorf(StatusCode::kDataLoss,
                  "model \"{}\": tensor {} is corrupt in memory and cannot be rolled back; nothing "
                  "was published, offload the version again",
                  name(), layout().tensor(chunk.tensor).name);
  }
  // A scrub may have found corrupt chunks after the first check, and the copy has them.
  return CheckUndamaged(newest, version);
}

}  // namespace deltawire::sender
