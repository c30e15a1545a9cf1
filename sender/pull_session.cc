#include "sender/pull_session.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "common/base/human.h"

namespace deltawire::sender {
namespace {

using Clock = std::chrono::steady_clock;
using kernels::Codec;

constexpr std::chrono::seconds kTicketLife{30};
// A pull whose coders were busy for so much of it tells little about the link. Well below 1: a
// small pull's stages hardly overlap.
constexpr double kCodersBound = 0.4;

}  // namespace

CodecCounts& CodecCounts::operator+=(const CodecCounts& other) {
  for (size_t i = 0; i < kForms; ++i) {
    chunks[i] += other.chunks[i];
    bytes[i] += other.bytes[i];
  }
  return *this;
}

PullSession::PullSession(std::shared_ptr<Model> model, std::string receiver_id, uint16_t streams,
                         PullCoding coding, std::shared_ptr<const Published> pinned)
    : model_(std::move(model)),
      receiver_id_(std::move(receiver_id)),
      coding_(std::move(coding)),
      pinned_(std::move(pinned)),
      encoder_(*model_, *coding_.rates),
      created_(Clock::now()),
      streams_(streams) {}

Status PullSession::Reserve(uint16_t stream, uint16_t streams) {
  std::lock_guard lock(mu_);
  if (!failed_.ok()) return failed_;
  if (streams != streams_.size() || stream >= streams_.size() || streams_[stream].reserved) {
    return Errorf(StatusCode::kInvalidArgument,
                  "stream {} of {} does not belong to this pull of {} streams, or was there before",
                  stream, streams, streams_.size());
  }
  streams_[stream].reserved = true;
  return absl::OkStatus();
}

void PullSession::StreamOpened(uint16_t stream, std::function<void()> cut) {
  std::lock_guard lock(mu_);
  streams_[stream].open = true;
  streams_[stream].cut = std::move(cut);
  if (!failed_.ok()) streams_[stream].cut();
}

void PullSession::StreamClosed(uint16_t stream, const Status& why) {
  std::lock_guard lock(mu_);
  Stream& s = streams_[stream];
  s.open = false;
  s.closed = true;
  s.reading.reset();
  if (why.ok() && s.first_frame) s.seconds = SecondsSince(*s.first_frame) - s.idle_seconds;
  if (why.ok()) EstimateLink();
  // One broken stream ends the pull; the receiver resumes with what it has verified.
  if (!why.ok() && failed_.ok()) {
    failed_ = why;
    for (Stream& other : streams_) {
      if (other.open && other.cut) other.cut();
    }
  }
}

Status PullSession::Start(const wire::Have& have) {
  const auto published = pinned_ != nullptr ? pinned_ : model_->published();
  if (published == nullptr) {
    return Errorf(StatusCode::kFailedPrecondition, "model \"{}\": nothing is published yet",
                  model_->name());
  }
  const StateId held{have.epoch, have.version};
  if (held > published->info.id) {
    return Errorf(
        StatusCode::kFailedPrecondition,
        "model \"{}\": the receiver holds {}, and this pull would end at {}: versions do not "
        "go backwards by themselves; publish a higher version, or run `deltawire sync "
        "--full` at the receiver to take the older one",
        model_->name(), ToString(held), ToString(published->info.id));
  }
  std::lock_guard lock(mu_);
  held_ = held;
  held_before_ = have.history;
  have_ = have.chunks;
  sent_serial_.assign(have_.size(), 0);
  started_ = true;
  for (Stream& s : streams_) {
    if (s.wake) std::exchange(s.wake, nullptr)();
  }
  return absl::OkStatus();
}

StatusOr<std::optional<net::OutFrame>> PullSession::Next(uint16_t index,
                                                         std::function<void()> wake) {
  while (true) {
    // Taken before our lock: the model's lock is never asked for under it.
    const LeasedState leased = Lease();
    std::optional<Task> task;
    {
      std::lock_guard lock(mu_);
      if (!failed_.ok()) return failed_;
      Stream& s = streams_[index];
      s.reading.reset();
      if (s.idle_since) s.idle_seconds += SecondsSince(*std::exchange(s.idle_since, std::nullopt));
      if (started_ && !end_) task = NextTask(s, *leased.state);
      if (task) {
        DW_RETURN_IF_ERROR(CheckDamage(*task, *leased.state));
        if (leased.lease != nullptr) s.reading = leased.state->half;
        if (!s.first_frame) s.first_frame = Clock::now();
      } else if (end_) {
        net::OutFrame frame;
        frame.header.type = wire::FrameType::kEnd;
        frame.header.epoch = end_->epoch;
        frame.header.version = end_->version;
        frame.header.payload_xxh3 = Xxh3({});
        return frame;
      } else {
        s.wake = std::move(wake);
        if (s.first_frame) s.idle_since = Clock::now();
        return std::optional<net::OutFrame>();
      }
    }
    const auto start = Clock::now();
    auto frame = MakeFrame(*task, leased);
    {
      std::lock_guard lock(mu_);
      Stream& s = streams_[index];
      s.coding_seconds += SecondsSince(start);
      // A delta is sent from memory of its own: a trainer that wants the half need not cut it.
      s.reading = task->half;
    }
    if (!frame.ok() || frame->has_value()) return frame;
  }
}

std::optional<PullSession::Task> PullSession::NextTask(Stream& s, const Published& now) {
  const ChunkTable& table = model_->chunks();
  while (cursor_ < table.size()) {
    const uint32_t c = cursor_++;
    if (!model_->owned().contains(c)) continue;
    sent_serial_[c] = now.serial;
    s.chunks.push_back(c);
    ChunkPlan plan =
        PlanChunk(now.log, c, have_[c].version, have_[c].digest, (*now.digests)[c], table[c].bytes);
    if (plan.base_refused) ++refused_bases_;
    if (plan.kind == ChunkPlan::Kind::kNothing) continue;
    return Task{c, std::move(plan), HistoryOf(c, now)};
  }
  if (s.lifted_to != now.serial) {
    for (const uint32_t c : s.chunks) {
      if (sent_serial_[c] == now.serial) continue;
      ChunkPlan plan = PlanLift(now.log, c, now.serial - sent_serial_[c], table[c].bytes);
      sent_serial_[c] = now.serial;
      if (plan.kind != ChunkPlan::Kind::kNothing) return Task{c, std::move(plan), {}};
    }
    s.lifted_to = now.serial;
  }
  for (const Stream& other : streams_) {
    if (!other.chunks.empty() && other.lifted_to != now.serial) {
      WakeOthers(s);  // one of them has yet to lift what it sent before this publish
      return std::nullopt;
    }
  }
  end_ = now.info.id;
  WakeOthers(s);
  if (refused_bases_ > 0) {
    spdlog::warn("model {}: receiver {}: {} chunks had an unknown base and went whole",
                 model_->name(), receiver_id_, refused_bases_);
  }
  return std::nullopt;
}

void PullSession::WakeOthers(const Stream& but) {
  for (Stream& other : streams_) {
    if (&other != &but && other.wake) std::exchange(other.wake, nullptr)();
  }
}

ChunkHistory PullSession::HistoryOf(uint32_t chunk, const Published& now) const {
  const size_t limit = std::min<size_t>(coding_.history, have_[chunk].depth);
  // A chunk that is elsewhere than the receiver's committed state did not get there by its history.
  if (limit == 0 || have_[chunk].version != held_.version) return {};
  return {CommonHistory(now.log, held_, held_before_), chunk, limit};
}

Status PullSession::CheckDamage(const Task& task, const Published& now) const {
  if (now.damaged[task.chunk] == 0) return absl::OkStatus();
  const Chunk& place = model_->chunks()[task.chunk];
  return Errorf(StatusCode::kDataLoss,
                "model \"{}\", {}: chunk {} of tensor {} no longer has its digest in the sender's "
                "memory and is not sent until a version in which the trainer writes that tensor "
                "(check that machine's memory)",
                model_->name(), ToString(now.info.id), task.chunk,
                model_->layout().tensor(place.tensor).name);
}

void PullSession::Count(size_t form, size_t bytes) {
  bytes_sent_ += bytes;
  ++form_chunks_[form];
  form_bytes_[form] += bytes;
}

LeasedState PullSession::Lease() const {
  if (pinned_ == nullptr) return model_->Lease();
  return {pinned_, model_->LeaseHalf(pinned_->half, pinned_->info.id)};
}

StatusOr<std::optional<net::OutFrame>> PullSession::MakeFrame(Task& task,
                                                              const LeasedState& leased) {
  if (task.plan.kind == ChunkPlan::Kind::kFull) return MakeFull(task, leased);
  return MakeDelta(task, leased);
}

Codec PullSession::Choose(const ChunkEncoder::Job& job, size_t fast_bytes) const {
  // The other codecs are made from the old bytes, of which nothing is promised without a lease.
  if (job.leased.lease == nullptr) return Codec::kFast;
  switch (coding_.policy) {
    case CodecPolicy::kFast:
      return Codec::kFast;
    case CodecPolicy::kTight:
      return Codec::kTight;
    case CodecPolicy::kDense:
      return Codec::kDense;
    case CodecPolicy::kAuto:
      break;
  }
  const CoderRates& rates = *coding_.rates;
  CodecChoiceInputs in;
  in.chunk_bytes = model_->chunks()[job.chunk].bytes;
  in.fast_bytes = fast_bytes;
  in.link_bytes_per_s = coding_.link->bytes_per_s();
  in.encode = rates.EncodeSpeeds(coding_.encode_threads);
  in.decode = coding_.decode;
  in.tight_ratio = rates.tight_ratio();
  in.dense_ratio = rates.dense_ratio();
  in.tight_made = encoder_.Made(Codec::kTight, job);
  in.dense_made = encoder_.Made(Codec::kDense, job);
  return ChooseCodec(in);
}

StatusOr<std::optional<net::OutFrame>> PullSession::MakeDelta(Task& task,
                                                              const LeasedState& leased) {
  const uint32_t chunk_bytes = model_->chunks()[task.chunk].bytes;
  const kernels::History history = task.history.First(task.history.depth());
  const ChunkEncoder::Job job{task.chunk, task.plan, leased, history};
  DW_ASSIGN_OR_RETURN(const ChunkPayload fast, encoder_.Fast(job));
  if (fast.bytes.empty()) return std::optional<net::OutFrame>();  // the changes undid one another
  ChunkPayload payload = encoder_.In(Choose(job, fast.bytes.size()), job, fast);
  // A named codec is used where it fits; auto wants the smaller one.
  const bool larger = payload.bytes.size() >= fast.bytes.size();
  if (larger && coding_.policy == CodecPolicy::kAuto) payload = fast;
  if (payload.bytes.size() >= chunk_bytes) return MakeFull(task, leased);
  net::OutFrame frame;
  frame.header.type = wire::FrameType::kChunkDelta;
  frame.header.chunk = task.chunk;
  frame.header.payload_bytes = static_cast<uint32_t>(payload.bytes.size());
  frame.header.epoch = leased.state->info.id.epoch;
  frame.header.version = leased.state->info.id.version;
  frame.header.digest_before = task.plan.chain.front()->digest_before;
  frame.header.digest_after = task.plan.chain.back()->digest_after;
  frame.header.payload_xxh3 = payload.xxh3;
  frame.payload = payload.bytes;
  frame.keep = payload.keep;
  if (payload.codec == Codec::kTight) tight_work_ += TightWork(chunk_bytes, fast.bytes.size());
  Count(static_cast<size_t>(payload.codec), payload.bytes.size());
  return frame;
}

StatusOr<LeasedState> PullSession::LeaseElsewhere(uint32_t chunk) const {
  LeasedState newest = model_->Lease();
  if ((*newest.state->digests)[chunk] == (*pinned_->digests)[chunk] &&
      newest.state->damaged[chunk] == 0) {
    return newest;
  }
  return Errorf(StatusCode::kAborted,
                "model \"{}\": the bytes of {} are gone since {} was published; pull a newer one",
                model_->name(), ToString(pinned_->info.id), ToString(newest.state->info.id));
}

StatusOr<net::OutFrame> PullSession::MakeFull(Task& task, const LeasedState& leased) {
  const uint32_t chunk = task.chunk;
  const Chunk& place = model_->chunks()[chunk];
  LeasedState from = leased;
  if (from.lease == nullptr) {
    DW_ASSIGN_OR_RETURN(from, LeaseElsewhere(chunk));
  }
  net::OutFrame frame;
  frame.payload = model_->half(from.state->half).subspan(place.offset, place.bytes);
  // Hashed at most once per version and chunk, however many receivers ask.
  std::atomic<uint64_t>& cached = from.state->full_xxh3[chunk];
  uint64_t hash = cached.load(std::memory_order_relaxed);
  if (hash == 0) {
    // A rebuilt state (serial 0) does not know what a scrub found when it was the newest.
    if (from.state->serial == 0 &&
        model_->backend().digest(model_->key(), frame.payload) != (*from.state->digests)[chunk]) {
      return Errorf(StatusCode::kDataLoss,
                    "model \"{}\", {}: chunk {} of tensor {} no longer has its digest in the "
                    "sender's memory and is not sent; pull a newer version",
                    model_->name(), ToString(from.state->info.id), chunk,
                    model_->layout().tensor(place.tensor).name);
    }
    hash = Xxh3(frame.payload);
    cached.store(hash, std::memory_order_relaxed);
  }
  frame.header.type = wire::FrameType::kChunkFull;
  frame.header.chunk = chunk;
  frame.header.payload_bytes = place.bytes;
  frame.header.epoch = leased.state->info.id.epoch;
  frame.header.version = leased.state->info.id.version;
  frame.header.digest_after = (*leased.state->digests)[chunk];
  frame.header.payload_xxh3 = hash;
  frame.keep = from.lease;
  task.half = from.state->half;
  Count(0, frame.payload.size());
  return frame;
}

void PullSession::EstimateLink() {
  double longest = 0, coding = 0;
  for (const Stream& s : streams_) {
    if (!s.closed) return;
    longest = std::max(longest, s.seconds);
    coding += s.coding_seconds;
  }
  if (longest <= 0) return;
  const double decoding = coding_.decode.tight > 0 ? tight_work_ / coding_.decode.tight : 0;
  const double coders = coding / coding_.encode_threads + decoding;
  coding_.link->Add(bytes_sent_, longest, coders > kCodersBound * longest);
  spdlog::debug("model {}: receiver {}: {} in {}, coders {}: the link is taken for {}",
                model_->name(), receiver_id_, HumanBytes(bytes_sent_), HumanSeconds(longest),
                HumanSeconds(coders), HumanRate(coding_.link->bytes_per_s()));
}

void PullSession::Cut(const Status& why) {
  std::lock_guard lock(mu_);
  if (failed_.ok()) failed_ = why;
  for (Stream& s : streams_) {
    if (s.open && s.cut) s.cut();
  }
}

bool PullSession::CutIfReading(uint32_t half) {
  {
    std::lock_guard lock(mu_);
    bool reading = false;
    for (const Stream& s : streams_) reading |= s.reading == half;
    if (!reading) return false;
  }
  Cut(absl::AbortedError("cut, so that the trainer need not wait; pull again"));
  return true;
}

uint64_t PullSession::bytes_sent() const { return bytes_sent_; }

CodecCounts PullSession::sent() const {
  CodecCounts counts;
  for (size_t i = 0; i < CodecCounts::kForms; ++i) {
    counts.chunks[i] = form_chunks_[i];
    counts.bytes[i] = form_bytes_[i];
  }
  return counts;
}

bool PullSession::Finished(std::chrono::steady_clock::time_point now) const {
  std::lock_guard lock(mu_);
  bool all_closed = true;
  for (const Stream& s : streams_) {
    if (s.open) return false;
    all_closed &= s.closed;
  }
  return all_closed || !failed_.ok() || now - created_ > kTicketLife;
}

}  // namespace deltawire::sender
