#include "sender/agent/diff/incoming_slot.h"

#include <algorithm>
#include <utility>

#include "common/base/checksum.h"
#include "common/base/human.h"

namespace deltawire::sender {

void IncomingSlot::SetListener(std::function<bool()> wanted, std::function<void()> changed) {
  wanted_ = std::move(wanted);
  changed_ = std::move(changed);
}

std::shared_ptr<IncomingVersion> IncomingSlot::Begin(uint64_t lease, const Identity& version,
                                                     const Published& base,
                                                     uint64_t payload_limit) {
  wire::Have have{.held = base.info.identity};
  have.chunks.resize(base.digests->size());
  for (size_t c = 0; c < have.chunks.size(); ++c) {
    have.chunks[c] = {base.info.identity.id.version, (*base.digests)[c], 0};
  }
  auto made = std::make_shared<IncomingVersion>(version, std::move(have), payload_limit, encoded_);
  MutexLock lock(mu_);
  now_ = made;
  lease_ = lease;
  return made;
}

void IncomingSlot::Add(IncomingVersion& incoming, uint32_t chunk, uint64_t digest_before,
                       uint64_t digest_after, Bytes payload, Bytes whole) const {
  // Without a receiver there is no need to keep the payload. A later receiver gets these chunks
  // once the version is published.
  const bool first = !incoming.PieceAt(0).piece.has_value();
  if (first && !wanted_()) return;
  IncomingVersion::Piece piece;
  piece.header.chunk = chunk;
  piece.header.epoch = incoming.identity().id.epoch;
  piece.header.version = incoming.identity().id.version;
  piece.header.digest_after = digest_after;
  if (payload.empty()) {
    piece.header.type = wire::FrameType::kChunkFull;
    piece.header.payload_bytes = static_cast<uint32_t>(whole.size());
    piece.whole = whole;
  } else {
    piece.header.type = wire::FrameType::kChunkDelta;
    piece.header.payload_bytes = static_cast<uint32_t>(payload.size());
    piece.header.digest_before = digest_before;
    piece.header.payload_xxh3 = Xxh3(payload);
    auto kept = std::make_shared_for_overwrite<std::byte[]>(payload.size());
    std::copy(payload.begin(), payload.end(), kept.get());
    piece.payload = std::move(kept);
  }
  incoming.Add(std::move(piece));
  if (first) changed_();
}

std::shared_ptr<IncomingVersion> IncomingSlot::Announced(uint64_t lease) const {
  MutexLock lock(mu_);
  const bool announced = now_ != nullptr && lease_ == lease && now_->PieceAt(0).piece.has_value();
  return announced ? now_ : nullptr;
}

std::shared_ptr<IncomingVersion> IncomingSlot::Stale(uint64_t lease) const {
  MutexLock lock(mu_);
  return lease_ != lease ? now_ : nullptr;
}

std::shared_ptr<IncomingVersion> IncomingSlot::current() const {
  MutexLock lock(mu_);
  return now_;
}

void IncomingSlot::Discard(const std::shared_ptr<IncomingVersion>& incoming) {
  if (incoming == nullptr) return;
  incoming->Abandon(Errorf(StatusCode::kAborted,
                           "model \"{}\": {} was abandoned while it was written; wait for "
                           "the next version",
                           model_, ToString(incoming->identity())));
  {
    MutexLock lock(mu_);
    if (now_ != incoming) return;  // another thread has discarded it
    now_ = nullptr;
  }
  changed_();
}

std::shared_ptr<IncomingVersion> IncomingSlot::Take() {
  MutexLock lock(mu_);
  return std::exchange(now_, nullptr);
}

void IncomingSlot::Settle(IncomingVersion& incoming, std::shared_ptr<const Published> state) const {
  incoming.Settle(std::move(state));
  incoming.Release();  // the log has all of it
  changed_();
}

}  // namespace deltawire::sender
