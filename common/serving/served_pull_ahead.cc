// The part of ServedPull that makes its frames while the version that it ends at is still coming.
#include <algorithm>

#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/trace.h"
#include "common/serving/served_pull.h"

namespace deltawire {
namespace {

using Clock = SteadyClock;
using Step = IncomingVersion::Step;
using kernels::Codec;

/// A state of which no more than the name is known here.
std::shared_ptr<const Published> NameOf(const net::PullEnd& end) {
  auto state = std::make_shared<Published>();
  state->info.identity = end.identity;
  state->info.side_files_hash = end.side_files_hash;
  return state;
}

ChunkPlan PlanOf(const ChunkDelta& delta) {
  ChunkPlan plan;
  plan.kind = ChunkPlan::Kind::kDelta;
  plan.chain = {&delta};
  return plan;
}

/// What the piece takes where it is staged until it is applied: there deltas are fast.
uint64_t StagedBytes(const IncomingVersion::Piece& piece) {
  return std::max<uint64_t>(piece.header.payload_bytes, piece.fast_bytes);
}

}  // namespace

void ServedPull::Came(bool all) {
  Callbacks wakes;
  // The streams may look at it when the log does not reach back to it any more.
  const auto settled = all ? terms_.incoming->Look(~size_t{0}).state : nullptr;
  {
    std::lock_guard lock(mu_);
    if (!ahead_) return;
    if (settled != nullptr) PinSettled(settled);
    for (Stream& s : streams_) {
      if (!s.wake) continue;
      wakes.push_back(std::exchange(s.wake, nullptr));
      if (!all) break;  // one more chunk has come, and one stream can take it
    }
  }
  for (const auto& wake : wakes) wake();
}

void ServedPull::PinSettled(const std::shared_ptr<const Published>& state) {
  if (!terms_.ends_at_incoming || pinned_ != nullptr) return;
  PinEnd(state);
}

LeasedState ServedPull::LeaseBase() const {
  const bool fast = terms_.coding.codec ? *terms_.coding.codec == Codec::kFast
                                        : terms_.coding.link->bytes_per_s() <= 0;
  return fast ? LeasedState() : model_->Lease();
}

std::optional<StatusOr<std::optional<net::OutFrame>>> ServedPull::NextAhead(
    uint16_t index, const std::function<void()>& wake) {
  using Frame = std::optional<net::OutFrame>;
  {
    std::lock_guard lock(mu_);
    if (!ahead_) return std::nullopt;
  }
  while (true) {
    const LeasedState base = LeaseBase();  // before mu_, as in Next
    std::optional<AheadTask> task;
    Callbacks wakes;
    bool ended = false, ahead = false, again = false;
    Status failed;
    {
      std::lock_guard lock(mu_);
      if (!ahead_) return std::nullopt;
      Stream& s = streams_[index];
      if (failed_.ok() && end_ == nullptr && started_) task = TakeAhead(s, base, wakes);
      failed = failed_;
      ended = end_ != nullptr;
      ahead = ahead_;
      if (task && !s.first_frame) s.first_frame = Clock::now();
      if (failed.ok() && !ended && ahead && !task) {
        again = !AwaitMade(s, wake);
        if (!again) s.wake = wake;
        if (!again && s.first_frame) s.idle_since = Clock::now();
      }
    }
    for (const auto& other : wakes) other();
    if (!failed.ok()) return failed;
    if (ended) return Frame(MakeEnd());
    if (!ahead) return std::nullopt;
    if (again) continue;
    if (!task) return Frame();
    const auto start = Clock::now();
    auto frame = MakeAhead(*task);
    Made(streams_[index], *task, frame.has_value(), SecondsSince(start));
    if (frame) return Frame(std::move(frame));
  }
}

std::optional<ServedPull::AheadTask> ServedPull::TakeMade(Stream& stream, const LeasedState& base) {
  while (true) {
    const auto made = std::ranges::find_if(
        stream.deferred, [](const Deferred& d) { return d.piece && d.payload->made(); });
    if (made == stream.deferred.end()) return std::nullopt;
    const uint32_t chunk = made->chunk;
    AheadTask task{.piece = *std::move(made->piece), .before = have_[chunk]};
    stream.deferred.erase(made);
    if (ChooseAhead(task, base, terms_.incoming->step())) {
      Took(stream, task);
      return task;
    }
    sent_ahead_[chunk] = 0;
  }
}

std::optional<ServedPull::AheadTask> ServedPull::TakeAhead(Stream& stream, const LeasedState& base,
                                                           Callbacks& wakes) {
  if (auto made = TakeMade(stream, base)) return made;
  while (true) {
    IncomingVersion::Found found = terms_.incoming->Look(taken_);
    if (found.piece) {
      ++taken_;
      const uint32_t chunk = found.piece->header.chunk;
      AheadTask task{.piece = *std::move(found.piece), .before = have_[chunk]};
      if (!Fits(task) || !ChooseAhead(task, base, found.step)) continue;
      if (task.piece.payload != nullptr) ahead_taken_ += StagedBytes(task.piece);
      Took(stream, task);
      return task;
    }
    switch (found.step) {
      case Step::kComing:
        return std::nullopt;
      case Step::kComplete:
        // If the receiver lacks chunks that the version did not change, the pull goes on until the
        // version is settled, and sends them then.
        if (defers() || !terms_.incoming->Has(have_)) return std::nullopt;
        end_ = NameOf(terms_.incoming->end());
        break;
      case Step::kSettled:
        ahead_ = false;
        first_serial_ = found.state->serial;
        PinSettled(found.state);
        if (pinned_ == nullptr) first_ = std::move(found.state);
        settled_ = Clock::now();
        break;
      case Step::kAbandoned:
        failed_ = found.why;
        LogEnd(failed_);
        break;
    }
    for (Callbacks others = TakeWakes(); auto& wake : others) wakes.push_back(std::move(wake));
    return std::nullopt;
  }
}

void ServedPull::Took(Stream& stream, AheadTask& task) {
  const wire::FrameHeader& header = task.piece.header;
  // If a newer version overtakes this pull, the stream that sent the chunk also lifts it.
  stream.early.push_back(header.chunk);
  sent_ahead_[header.chunk] = 1;
  have_[header.chunk] = {header.version, header.digest_after, 0};
  const bool anew = task.codec != Codec::kFast;
  if (task.piece.payload != nullptr && !anew) return;
  // No stream ends before the frame is made: its bytes may turn out to be no longer there, and
  // another thread may be coding it.
  task.making = std::make_shared<PayloadElsewhere>();
  Deferred deferred{header.chunk, false, task.making};
  if (anew) deferred.piece = task.piece;
  stream.deferred.push_back(std::move(deferred));
}

void ServedPull::Made(Stream& stream, const AheadTask& task, bool made, double seconds) {
  std::lock_guard lock(mu_);
  if (task.codec != Codec::kFast) stream.coding_seconds += seconds;
  if (task.making == nullptr) return;
  if (made) {
    std::erase_if(stream.deferred, [&](const Deferred& d) { return d.payload == task.making; });
    return;
  }
  // The stream sends the chunk when its payload is made, or, where its bytes are gone, when the
  // version is settled; then as one that it has deferred.
  have_[task.piece.header.chunk] = task.before;
  stream.early.pop_back();
  if (task.codec == Codec::kFast) task.making->Made();
}

bool ServedPull::ChooseAhead(AheadTask& task, const LeasedState& base, Step step) const {
  task.codec = Codec::kFast;
  const ChunkDelta* delta = task.piece.delta.get();
  if (delta == nullptr || base.state == nullptr || task.as_fast) return true;
  task.history = HistoryOf(delta->chunk, *base.state);
  task.base = base;
  const kernels::History history = CodedHistory(task);
  const ChunkPlan plan = PlanOf(*delta);
  const ChunkEncoder::Job job{delta->chunk, plan, base, history, {}, &terms_.incoming->encoded()};
  const Codec codec = Choose(job, delta->payload.size());
  if (codec == Codec::kFast) return true;
  // Once the version is settled, its old bytes are no longer where they were, and are made anew for
  // whoever asks in the ordinary way.
  const bool live = step <= Step::kComplete;
  const bool there = base.lease != nullptr && terms_.incoming->StartsAt(base.state->info.identity);
  const bool made = encoder_.Made(codec, job);
  if (made || (live && there)) task.codec = codec;
  return made || live;
}

kernels::History ServedPull::CodedHistory(const AheadTask& task) const {
  return task.history.First(std::min<size_t>(task.history.depth(), terms_.coding.history));
}

std::optional<ChunkPayload> ServedPull::CodeAhead(const AheadTask& task) const {
  const IncomingVersion::Piece& piece = task.piece;
  const kernels::History history = CodedHistory(task);
  const ChunkPlan plan = PlanOf(*piece.delta);
  const ChunkEncoder::Job job{piece.header.chunk,
                              plan,
                              task.base,
                              history,
                              [making = task.making] { making->Made(); },
                              &terms_.incoming->encoded()};
  const ChunkPayload fast{Codec::kFast, piece.delta->payload, piece.delta->payload_xxh3,
                          piece.payload};
  auto coded = encoder_.In(task.codec, job, fast);
  if (!coded) return std::nullopt;
  // As of a published version: a codec that the options name is used if the chunk shrinks.
  const size_t most =
      terms_.coding.codec ? model_->chunks()[piece.header.chunk].bytes : fast.bytes.size();
  return coded->bytes.size() < most ? *coded : fast;
}

bool ServedPull::Fits(AheadTask& task) const {
  const wire::FrameHeader& header = task.piece.header;
  const wire::Have::Entry& have = task.before;
  const bool known = have.version != wire::Have::kUnknown;
  if (known && have.digest == header.digest_after) return false;  // the receiver has it
  // A suspect waits until the version is settled: its bytes are then compared with their digest.
  if (Suspect(header.chunk)) return false;
  if (const uint64_t most = terms_.ahead_bytes; most != 0) {
    // A receiver whose only file keeps its bytes until the version is published.
    if (task.piece.payload == nullptr || ahead_taken_ + StagedBytes(task.piece) > most)
      return false;
  }
  if (header.type == wire::FrameType::kChunkFull) return true;
  if (!known || have.digest != header.digest_before) return false;
  const Bytes payload(task.piece.payload.get(), header.payload_bytes);
  const Coder* coder = CoderOf(payload);
  HistoryNeed need;
  if (coder != nullptr && coder->read_need != nullptr) (void)coder->read_need(payload, &need);
  task.as_fast =
      need.depth > have.depth || !terms_.incoming->SharesHistory(held_, held_before_, need.depth);
  return !task.as_fast || task.piece.fast != nullptr;
}

std::optional<net::OutFrame> ServedPull::MakeAhead(const AheadTask& task) {
  const IncomingVersion::Piece& piece = task.piece;
  net::OutFrame frame;
  frame.header = piece.header;
  size_t form = FormCounts::kRaw;
  if (piece.payload == nullptr) {
    auto copy = terms_.incoming->CopyOf(piece);
    if (copy == nullptr) return std::nullopt;
    frame.payload = Bytes(copy.get(), piece.whole.size());
    frame.keep = std::move(copy);
  } else if (task.codec != Codec::kFast) {
    const auto coded = CodeAhead(task);
    if (!coded) return std::nullopt;
    frame.payload = coded->bytes;
    frame.keep = coded->keep;
    frame.header.payload_bytes = static_cast<uint32_t>(coded->bytes.size());
    frame.header.payload_xxh3 = coded->xxh3;
    form = kernels::FormOf(coded->codec);
    CountDecode(coded->codec, frame.header.chunk, piece.header.payload_bytes);
  } else {
    frame.payload = task.as_fast ? Bytes(piece.fast.get(), piece.fast_bytes)
                                 : Bytes(piece.payload.get(), piece.header.payload_bytes);
    frame.keep = task.as_fast ? piece.fast : piece.payload;
    const Coder* coder = CoderOf(frame.payload);
    form = kernels::FormOf(coder == nullptr ? Codec::kFast : coder->codec);
  }
  if (task.as_fast) {
    frame.header.payload_bytes = static_cast<uint32_t>(piece.fast_bytes);
    frame.header.payload_xxh3 = Xxh3(frame.payload);
  }
  Count(form, frame.payload.size());
  bytes_ahead_ += frame.payload.size();
  return frame;
}

}  // namespace deltawire
