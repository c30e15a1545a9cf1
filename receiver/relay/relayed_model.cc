#include "receiver/relay/relayed_model.h"

#include "common/base/log.h"
#include "common/delta/coders.h"

namespace deltawire::receiver {

RelayedModel::RelayedModel(std::string name, const Buffer& buffer, ThreadPool& pool,
                           uint64_t log_bytes, std::function<void(uint32_t chunk)> on_corrupt)
    : StateSource(
          std::make_shared<const ModelFacts>(std::move(name), buffer.layout(), buffer.chunks(),
                                             Coverage::All(buffer.chunks().size())),
          log_bytes, pool),
      on_corrupt_(std::move(on_corrupt)) {}

Status RelayedModel::Install(const Buffer& buffer, std::shared_ptr<ServedFile> file,
                             std::shared_ptr<const Delta> delta, const Identity& from) {
  DW_ASSIGN_OR_RETURN(std::vector<SideFile> files, buffer.side_files().Read());
  DW_ASSIGN_OR_RETURN(auto side_files, MakeSideFileSet(std::move(files)));
  const Identity id = buffer.committed();
  const auto before = store().newest();
  // This is also the end of a pull that brought nothing new.
  if (before != nullptr && before->info.identity == id && Serves(*before, file) &&
      before->side_files->hash == side_files->hash) {
    return absl::OkStatus();
  }
  const bool follows = before != nullptr && before->info.identity.lineage == id.lineage;
  if (follows && before->info.identity == id) {
    // Chunks that had gone bad were fetched anew. To running pulls this is a newer state.
    delta = DeltaBuilder(0).Finish(id.id, id.id);
  } else if (delta != nullptr && !(follows && before->info.identity == from)) {
    delta = nullptr;
  }
  VersionInfo info;
  info.identity = id;
  info.model_bytes = layout().total_bytes();
  info.delta_bytes = delta == nullptr ? 0 : delta->payload_bytes();
  info.published_unix_nanos = UnixNanos();
  info.rollback = follows && before->info.id().epoch < id.id.epoch;
  info.side_files_hash = side_files->hash;
  uint32_t half = 0;
  {
    std::lock_guard lock(mu_);
    std::erase_if(halves_, [](const auto& h) { return h.second.file.expired(); });
    half = next_half_++;
    halves_[half] = {file, id};
  }
  auto state = store().Make(info, half);
  state->digests = std::make_shared<std::vector<uint64_t>>(buffer.CommittedDigests());
  state->side_files = std::move(side_files);
  store().Install(std::move(state), std::move(delta));
  return absl::OkStatus();
}

std::shared_ptr<ServedFile> RelayedModel::FileOf(uint32_t half, const Identity* id) const {
  std::lock_guard lock(mu_);
  const auto known = halves_.find(half);
  if (known == halves_.end() || (id != nullptr && !(known->second.id == *id))) return nullptr;
  return known->second.file.lock();
}

bool RelayedModel::Serves(const Published& state, const std::shared_ptr<ServedFile>& file) const {
  for (uint32_t i = 0; i < chunks().size(); ++i) {
    if (state.damaged[i] != 0) return false;
  }
  return FileOf(state.half, &state.info.identity) == file;
}

std::vector<uint32_t> RelayedModel::HalvesOf(const ServedFile& file) const {
  std::vector<uint32_t> halves;
  std::lock_guard lock(mu_);
  for (const auto& [half, known] : halves_) {
    if (known.file.lock().get() == &file) halves.push_back(half);
  }
  return halves;
}

LeasedState RelayedModel::Lease() {
  while (true) {
    auto state = store().newest();
    if (state == nullptr) return {};
    auto lease = LeaseHalf(state->half, state->info.identity);
    // No lease, and no newer state: the file is being changed, or was taken away to be repaired.
    if (lease != nullptr || store().newest() == state) return {std::move(state), std::move(lease)};
  }
}

Bytes RelayedModel::half(uint32_t i) const {
  const auto file = FileOf(i, nullptr);
  return file == nullptr ? Bytes() : file->data();
}

std::shared_ptr<const void> RelayedModel::LeaseHalf(uint32_t half, const Identity& id) {
  const auto file = FileOf(half, &id);
  return file == nullptr ? nullptr : file->Lease();
}

StatusOr<std::shared_ptr<const Published>> RelayedModel::At(const Identity& id) {
  auto newest = store().newest();
  if (newest != nullptr && newest->info.identity.id == id.id) return store().At(id);
  return Errorf(StatusCode::kAborted, "model \"{}\": this relay no longer holds {}; pull again",
                name(), DescribeFully(id));
}

std::shared_ptr<const SideFileSet> RelayedModel::side_files() const {
  const auto newest = store().newest();
  static const auto kNone = *MakeSideFileSet({});
  return newest == nullptr ? kNone : newest->side_files;
}

std::shared_ptr<const SideFileSet> RelayedModel::side_files(uint64_t hash) const {
  std::shared_ptr<const SideFileSet> come;
  {
    std::lock_guard lock(mu_);
    come = incoming_ == nullptr ? nullptr : incoming_->side_files();
    if (come == nullptr) come = last_come_;
  }
  return come != nullptr && come->hash == hash ? come : store().side_files(hash);
}

void RelayedModel::KeepPayloads(const IncomingVersion& incoming) const {
  const auto state = store().newest();
  if (state->log.empty()) return;
  for (size_t n = 0; auto piece = incoming.PieceAt(n).piece; ++n) {
    const Bytes payload(piece->payload.get(), piece->header.payload_bytes);
    const Coder* coder = piece->payload == nullptr ? nullptr : CoderOf(payload);
    if (coder == nullptr) continue;  // whole, or in the log as it came
    const ChunkDelta* delta = state->log.back()->Find(piece->header.chunk);
    const bool same = delta != nullptr && !delta->full &&
                      delta->digest_before == piece->header.digest_before &&
                      delta->digest_after == piece->header.digest_after;
    HistoryNeed need;
    const bool read = coder->read_need == nullptr ||
                      coder->read_need(payload, &need) == kernels::DecodeStatus::kOk;
    if (!same || !read) continue;
    auto value = std::make_shared<Encoded>();
    value->codec = coder->codec;
    value->bytes = payload;
    value->xxh3 = piece->header.payload_xxh3;
    value->keep = piece->payload;
    state->encoded->Put({delta, coder->codec, need.depth, need.context}, std::move(value));
  }
}

void RelayedModel::SetIncoming(std::shared_ptr<IncomingVersion> incoming) {
  std::lock_guard lock(mu_);
  // A pull that has just ended at the last one may still ask for its side files.
  if (incoming_ != nullptr) {
    if (auto come = incoming_->side_files(); come != nullptr) last_come_ = std::move(come);
  }
  if (incoming != nullptr) early_encoded_ = incoming->encoded().totals();
  incoming_.swap(incoming);
}

EncodedCache::Counts RelayedModel::early_encoded() const {
  std::lock_guard lock(mu_);
  return early_encoded_ == nullptr ? EncodedCache::Counts() : early_encoded_->counts();
}

std::shared_ptr<IncomingVersion> RelayedModel::incoming() const {
  std::lock_guard lock(mu_);
  return incoming_;
}

bool RelayedModel::Mark(uint32_t chunk) {
  const LeasedState leased = Lease();
  if (leased.lease == nullptr || chunk >= chunks().size()) return false;
  const Chunk& place = chunks()[chunk];
  const Bytes bytes = half(leased.state->half).subspan(place.offset, place.bytes);
  if (backend().digest(key(), bytes) == (*leased.state->digests)[chunk]) return false;
  if (leased.state->damaged[chunk].exchange(1) != 0) return false;
  LogError(
      "model {}: {}: chunk {} of tensor {} has lost its digest here and is not served until it was "
      "fetched anew (check this machine's memory)",
      name(), ToString(leased.state->info.id()), chunk, layout().tensor(place.tensor).name);
  return true;
}

}  // namespace deltawire::receiver
