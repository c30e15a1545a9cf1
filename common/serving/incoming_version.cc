#include "common/serving/incoming_version.h"

#include <algorithm>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "common/layout/root.h"

namespace deltawire {
namespace {

bool Known(const wire::Have::Entry& entry) { return entry.version != wire::Have::kUnknown; }

}  // namespace

IncomingVersion::IncomingVersion(const Identity& identity, wire::Have base, uint64_t payload_limit,
                                 std::shared_ptr<EncodedCache::Totals> encoded)
    : identity_(identity),
      starts_at_(base.held),
      payload_limit_(payload_limit),
      encoded_(payload_limit, std::move(encoded)),
      base_(std::move(base)),
      arrived_(base_.chunks.size()),
      copies_(base_.chunks.size()) {}

void IncomingVersion::SetHistory(std::vector<StateId> history, uint32_t wanted) {
  MutexLock lock(mu_);
  base_.history = std::move(history);
  history_wanted_ = wanted;
}

void IncomingVersion::AbandonUnlessOf(const wire::FrameHeader& header) {
  const StateId of{header.epoch, header.version};
  if (of == identity_.id) return;
  Abandon(Errorf(StatusCode::kAborted, "{} has overtaken the incoming {}; pull again", ToString(of),
                 ToString(identity_.id)));
}

std::vector<std::shared_ptr<IncomingVersion::Watcher>> IncomingVersion::Watchers() {
  std::vector<std::shared_ptr<Watcher>> all;
  std::erase_if(watchers_, [&](const auto& weak) {
    auto watcher = weak.lock();
    const bool gone = watcher == nullptr;
    if (!gone) all.push_back(std::move(watcher));
    return gone;
  });
  return all;
}

void IncomingVersion::Add(Piece piece) {
  std::vector<std::shared_ptr<Watcher>> watchers;
  {
    MutexLock lock(mu_);
    const wire::FrameHeader& header = piece.header;
    if (step_ != Step::kComing || std::exchange(arrived_[header.chunk], uint8_t{1}) != 0) return;
    base_.chunks[header.chunk] = {header.version, header.digest_after, 0};
    const uint64_t bytes = piece.payload == nullptr ? 0 : header.payload_bytes + piece.fast_bytes;
    if (payload_bytes_ + bytes > payload_limit_) return;
    payload_bytes_ += bytes;
    if (piece.payload != nullptr && piece.fast == nullptr) {
      piece.delta = std::make_shared<ChunkDelta>(
          ChunkDelta{.chunk = header.chunk,
                     .digest_before = header.digest_before,
                     .digest_after = header.digest_after,
                     .payload_xxh3 = header.payload_xxh3,
                     .payload = Bytes(piece.payload.get(), header.payload_bytes)});
    }
    pieces_.push_back(std::move(piece));
    watchers = Watchers();
  }
  for (const auto& watcher : watchers) watcher->OnPiece(false);
}

bool IncomingVersion::IsWhole(const net::PullEnd& end) const {
  MutexLock lock(mu_);
  if (step_ != Step::kComing || !IsOf(identity_, end.identity)) return false;
  uint64_t root = 0;
  for (uint32_t c = 0; c < base_.chunks.size(); ++c) {
    if (!Known(base_.chunks[c])) return false;
    root += RootTerm(c, base_.chunks[c].digest);
  }
  return root == end.identity.root;
}

void IncomingVersion::Complete(const net::PullEnd& end,
                               std::shared_ptr<const SideFileSet> side_files) {
  std::vector<std::shared_ptr<Watcher>> watchers;
  {
    MutexLock lock(mu_);
    if (step_ != Step::kComing) return;
    step_ = Step::kComplete;
    end_ = end;
    side_files_ = std::move(side_files);
    watchers = Watchers();
  }
  for (const auto& watcher : watchers) watcher->OnPiece(true);
}

void IncomingVersion::Settle(std::shared_ptr<const Published> state) {
  std::vector<std::shared_ptr<Watcher>> watchers;
  {
    MutexLock lock(mu_);
    if (!live()) return;
    state_ = std::move(state);
    step_ = Step::kSettled;
    while (copying_ > 0) cv_.wait(lock);
    watchers = Watchers();
  }
  for (const auto& watcher : watchers) watcher->OnPiece(true);
}

void IncomingVersion::Release() {
  std::deque<Piece> pieces;  // may be large, so destroyed without the lock
  {
    MutexLock lock(mu_);
    pieces.swap(pieces_);
  }
  encoded_.Retire(0);
}

void IncomingVersion::Abandon(const Status& why) {
  std::deque<Piece> pieces;  // destroyed without the lock, as in Release
  std::vector<std::shared_ptr<Watcher>> watchers;
  {
    MutexLock lock(mu_);
    const bool ends = live();
    if (ends) {
      why_ = why;
      step_ = Step::kAbandoned;
    }
    while (copying_ > 0) cv_.wait(lock);
    if (!ends) return;
    pieces.swap(pieces_);
    watchers = Watchers();
  }
  for (const auto& watcher : watchers) watcher->OnPiece(true);
}

IncomingVersion::Found IncomingVersion::PieceAt(size_t n) const {
  MutexLock lock(mu_);
  Found found{.step = step_, .state = state_, .why = why_};
  if (n < pieces_.size()) found.piece = pieces_[n];
  return found;
}

IncomingVersion::Step IncomingVersion::step() const {
  MutexLock lock(mu_);
  return step_;
}

std::shared_ptr<const std::byte[]> IncomingVersion::CopyOf(const Piece& piece) {
  const uint32_t chunk = piece.header.chunk;
  {
    MutexLock lock(mu_);
    if (!live()) return nullptr;
    if (auto copy = copies_[chunk].lock()) return copy;
    ++copying_;
  }
  // If there is no memory for the copy, nobody may wait for it.
  const absl::Cleanup copied = [this] {
    MutexLock lock(mu_);
    if (--copying_ == 0) cv_.notify_all();
  };
  auto copy = std::make_shared_for_overwrite<std::byte[]>(piece.whole.size());
  std::memcpy(copy.get(), piece.whole.data(), piece.whole.size());
  MutexLock lock(mu_);
  copies_[chunk] = copy;
  return copy;
}

std::optional<uint64_t> IncomingVersion::digest(uint32_t chunk) const {
  MutexLock lock(mu_);
  if (!Known(base_.chunks[chunk])) return std::nullopt;
  return base_.chunks[chunk].digest;
}

bool IncomingVersion::Has(const std::vector<wire::Have::Entry>& have) const {
  MutexLock lock(mu_);
  for (uint32_t c = 0; c < have.size(); ++c) {
    if (!Known(have[c]) || have[c].digest != base_.chunks[c].digest) return false;
  }
  return true;
}

bool IncomingVersion::SharesHistory(const Identity& held, const std::vector<StateId>& history,
                                    size_t depth) const {
  if (depth == 0) return true;
  MutexLock lock(mu_);
  return held == starts_at_ && depth <= std::min(history.size(), base_.history.size()) &&
         std::equal(history.begin(), history.begin() + static_cast<std::ptrdiff_t>(depth),
                    base_.history.begin());
}

net::PullEnd IncomingVersion::end() const {
  MutexLock lock(mu_);
  return end_;
}

std::shared_ptr<const SideFileSet> IncomingVersion::side_files() const {
  MutexLock lock(mu_);
  return side_files_;
}

uint32_t IncomingVersion::history_wanted() const {
  MutexLock lock(mu_);
  return history_wanted_;
}

void IncomingVersion::Watch(std::weak_ptr<Watcher> watcher) {
  MutexLock lock(mu_);
  watchers_.push_back(std::move(watcher));
}

}  // namespace deltawire
