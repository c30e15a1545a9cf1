// A Model's version on its way to receivers while the trainer still writes it: each chunk's delta
// as soon as it is diffed. Bound to its offload: when that ends without a publish, so do its pulls.
#include "common/base/checksum.h"
#include "sender/agent/model.h"

namespace deltawire::sender {

std::shared_ptr<IncomingVersion> Model::incoming() const {
  MutexLock lock(mu_);
  const bool told = early_ != nullptr && !EarlyIsOver() && early_->Look(0).piece.has_value();
  return told ? early_ : nullptr;
}

std::shared_ptr<IncomingVersion> Model::MakeEarly() const {
  const auto newest = store_->newest();
  // A GPU diffs all at the end, and its results can be dropped again.
  const bool gpu = gpu_ != nullptr && gpu_->trusted();
  if (!options_.send_early || !wanted_ || newest == nullptr || gpu) return nullptr;
  const Identity& base = newest->info.identity;
  wire::Have have{.held = base};
  have.chunks.resize(chunks_.size());
  for (uint32_t c = 0; c < chunks_.size(); ++c) {
    have.chunks[c] = {base.id.version, (*newest->digests)[c], 0};
  }
  const Identity version{halves_->lineage(), NextState(session_.version()), 0, session_.attempt()};
  return std::make_shared<IncomingVersion>(version, std::move(have), options_.delta_log_bytes / 2,
                                           early_encoded_);
}

void Model::Diffed(IncomingVersion& early, uint32_t half, uint32_t chunk, uint64_t digest_before,
                   uint64_t digest_after, Bytes payload) const {
  // Without a receiver the payload need not be kept twice. One that comes later gets what it missed
  // when the version is published.
  const bool first = !early.Look(0).piece.has_value();
  if (first && !wanted_()) return;
  const Chunk& place = chunks_[chunk];
  IncomingVersion::Piece piece;
  piece.header.chunk = chunk;
  piece.header.epoch = early.identity().id.epoch;
  piece.header.version = early.identity().id.version;
  piece.header.digest_after = digest_after;
  if (payload.empty()) {
    piece.header.type = wire::FrameType::kChunkFull;
    piece.header.payload_bytes = place.bytes;
    piece.whole = this->half(half).subspan(place.offset, place.bytes);
  } else {
    piece.header.type = wire::FrameType::kChunkDelta;
    piece.header.payload_bytes = static_cast<uint32_t>(payload.size());
    piece.header.digest_before = digest_before;
    piece.header.payload_xxh3 = Xxh3(payload);
    auto kept = std::make_shared_for_overwrite<std::byte[]>(payload.size());
    std::copy(payload.begin(), payload.end(), kept.get());
    piece.payload = std::move(kept);
  }
  early.Add(std::move(piece));
  if (first) coming_();
}

void Model::DropEarly(const std::shared_ptr<IncomingVersion>& early) {
  if (early == nullptr) return;
  early->Abandon(Errorf(StatusCode::kAborted,
                        "model \"{}\": {} was given up while it was written; nothing of it is "
                        "published, wait for the next",
                        name_, ToString(early->identity())));
  {
    MutexLock lock(mu_);
    if (early_ != early) return;  // another thread has done the same, and told of it
    early_ = nullptr;
  }
  coming_();
}

}  // namespace deltawire::sender
