#include "common/serving/chunk_bytes.h"

#include <cstring>

#include "common/serving/undo.h"

namespace deltawire {
namespace {

using kernels::DecodeStatus;

class PrivateCopy {
 public:
  explicit PrivateCopy(Bytes from)
      : memory_(std::make_unique_for_overwrite<std::byte[]>(from.size())), size_(from.size()) {
    std::memcpy(memory_.get(), from.data(), from.size());
  }
  MutableBytes bytes() const { return {memory_.get(), size_}; }
  WholeChunk chunk() const { return {bytes(), memory_, std::nullopt}; }

 private:
  std::shared_ptr<std::byte[]> memory_;
  size_t size_;
};

}  // namespace

StatusOr<WholeChunk> ChunkBytes::Get(uint32_t chunk, const LeasedState& at, How how) {
  const bool whole = at.state->damaged[chunk] == 0;
  Status why;
  if (at.lease != nullptr && whole) {
    auto got = FromHalf(chunk, at, how);
    if (got.ok()) return got;
    why = got.status();
  } else if (!whole) {
    why = Damaged(chunk, *at.state);
  }
  // The way back may lead to the bytes of an earlier state.
  auto got = FromWayBack(chunk, *at.state, how);
  return got.ok() || why.ok() ? got : why;
}

StatusOr<WholeChunk> ChunkBytes::FromHalf(uint32_t chunk, const LeasedState& at, How how) {
  const Chunk& place = model_.chunks()[chunk];
  const Bytes bytes = model_.half(at.state->half).subspan(place.offset, place.bytes);
  // A rebuilt state (serial 0) has lost the marks of a scrub that found corrupt chunks.
  if ((how.check || at.state->serial == 0) && !HasItsDigest(chunk, *at.state, bytes)) {
    return Damaged(chunk, *at.state);
  }
  if (!how.copy) return WholeChunk{bytes, at.lease, at.state->half};
  return PrivateCopy(bytes).chunk();
}

StatusOr<WholeChunk> ChunkBytes::FromWayBack(uint32_t chunk, const Published& end, How how) {
  // Without a lease, only old bytes can serve. kAborted makes the receiver pull again.
  const LeasedState newest = model_.Lease();
  if (newest.lease != nullptr && newest.state.get() == &end) {
    // The half became available after the caller looked, or the chunk is damaged.
    return end.damaged[chunk] == 0 ? FromHalf(chunk, newest, how) : Damaged(chunk, end);
  }
  WayBack::Base base{.chunk = chunk};
  if (newest.lease != nullptr && newest.state->damaged[chunk] == 0) {
    base.serial = newest.state->serial;
    base.digest = (*newest.state->digests)[chunk];
  }
  const auto way = end.back->FindFrom(base);
  if (way && way->from == nullptr && base.digest == (*end.digests)[chunk]) {
    return FromHalf(chunk, newest, how);
  }
  if (way) return Undo(chunk, end, *way, newest);
  if (newest.lease != nullptr) return Gone(chunk, end, *newest.state);
  return Errorf(StatusCode::kAborted, "model \"{}\": its only file is being changed; pull again",
                model_.name());
}

StatusOr<WholeChunk> ChunkBytes::Undo(uint32_t chunk, const Published& end, const WayBack::Way& way,
                                      const LeasedState& newest) {
  const Chunk& place = model_.chunks()[chunk];
  if (way.from != nullptr && way.chain.empty()) {
    const Bytes bytes = way.from->bytes();
    if (!HasItsDigest(chunk, end, bytes)) return Damaged(chunk, end);
    return WholeChunk{bytes, way.from, std::nullopt};
  }
  const PrivateCopy copy(way.from != nullptr
                             ? way.from->bytes()
                             : model_.half(newest.state->half).subspan(place.offset, place.bytes));
  uint64_t digest = way.chain.empty() ? 0 : way.chain.back()->digest_after;
  for (auto change = way.chain.rbegin(); change != way.chain.rend(); ++change) {
    const auto done = UndoDelta(model_.backend(), model_.key(), (*change)->payload, place.width,
                                copy.bytes(), digest);
    if (done != DecodeStatus::kOk) return Damaged(chunk, end);
  }
  // The digest that the chain computed would not show a flipped bit.
  if (!HasItsDigest(chunk, end, copy.bytes())) return Damaged(chunk, end);
  return copy.chunk();
}

bool ChunkBytes::HasItsDigest(uint32_t chunk, const Published& state, Bytes bytes) const {
  return model_.backend().digest(model_.key(), bytes) == (*state.digests)[chunk];
}

Status ChunkBytes::Damaged(uint32_t chunk, const Published& state) const {
  return Errorf(StatusCode::kDataLoss,
                "model \"{}\", {}: chunk {} of tensor {} no longer has its digest in the memory of "
                "the daemon that serves it, and is not sent until {} (check that machine's memory)",
                model_.name(), ToString(state.info.id()), chunk,
                model_.layout().tensor(model_.chunks()[chunk].tensor).name, model_.healed_by());
}

Status ChunkBytes::Gone(uint32_t chunk, const Published& end, const Published& newest) const {
  return Errorf(StatusCode::kAborted,
                "model \"{}\": the bytes of {} in tensor {} are gone since {} was published, and "
                "the delta log does not lead back to them; pull a newer one (a larger "
                "delta-log-bytes would keep them longer)",
                model_.name(), ToString(end.info.id()),
                model_.layout().tensor(model_.chunks()[chunk].tensor).name,
                ToString(newest.info.id()));
}

}  // namespace deltawire
