#include "sender/pull_session.h"

#include <spdlog/spdlog.h>

namespace deltawire::sender {
namespace {

constexpr std::chrono::seconds kTicketLife{30};

}  // namespace

PullSession::PullSession(std::shared_ptr<Model> model, std::string receiver_id, uint16_t streams)
    : model_(std::move(model)),
      receiver_id_(std::move(receiver_id)),
      created_(std::chrono::steady_clock::now()),
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
  // One broken stream ends the pull; the receiver resumes with what it has verified.
  if (!why.ok() && failed_.ok()) {
    failed_ = why;
    for (Stream& other : streams_) {
      if (other.open && other.cut) other.cut();
    }
  }
}

Status PullSession::Start(const wire::Have& have) {
  const auto published = model_->published();
  if (published == nullptr) {
    return Errorf(StatusCode::kFailedPrecondition, "model \"{}\": nothing is published yet",
                  model_->name());
  }
  const StateId held{have.epoch, have.version};
  if (held > published->info.id) {
    return Errorf(
        StatusCode::kFailedPrecondition,
        "model \"{}\": the receiver holds {}, the newest published is {}: versions do not "
        "go backwards by themselves; publish a higher version, or run `deltawire sync "
        "--full` at the receiver to take the older one",
        model_->name(), ToString(held), ToString(published->info.id));
  }
  std::lock_guard lock(mu_);
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
    const LeasedState leased = model_->Lease();
    std::optional<Task> task;
    {
      std::lock_guard lock(mu_);
      if (!failed_.ok()) return failed_;
      Stream& s = streams_[index];
      s.reading.reset();
      if (started_ && !end_) task = NextTask(s, *leased.state);
      if (task) {
        s.reading = leased.state->half;
      } else if (end_) {
        net::OutFrame frame;
        frame.header.type = wire::FrameType::kEnd;
        frame.header.epoch = end_->epoch;
        frame.header.version = end_->version;
        frame.header.payload_xxh3 = Xxh3({});
        return frame;
      } else {
        s.wake = std::move(wake);
        return std::optional<net::OutFrame>();
      }
    }
    auto frame = MakeFrame(*task, leased);
    if (!frame.ok() || frame->has_value()) {
      if (frame.ok()) bytes_sent_ += (*frame)->payload.size();
      return frame;
    }
  }
}

std::optional<PullSession::Task> PullSession::NextTask(Stream& s, const Published& now) {
  const ChunkTable& table = model_->chunks();
  while (cursor_ < table.size()) {
    const uint32_t c = cursor_++;
    sent_serial_[c] = now.serial;
    s.chunks.push_back(c);
    ChunkPlan plan =
        PlanChunk(now.log, c, have_[c].version, have_[c].digest, (*now.digests)[c], table[c].bytes);
    if (plan.base_refused) ++refused_bases_;
    if (plan.kind != ChunkPlan::Kind::kNothing) return Task{c, std::move(plan)};
  }
  if (s.lifted_to != now.serial) {
    for (const uint32_t c : s.chunks) {
      if (sent_serial_[c] == now.serial) continue;
      ChunkPlan plan = PlanLift(now.log, c, now.serial - sent_serial_[c], table[c].bytes);
      sent_serial_[c] = now.serial;
      if (plan.kind != ChunkPlan::Kind::kNothing) return Task{c, std::move(plan)};
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

StatusOr<std::optional<net::OutFrame>> PullSession::MakeFrame(const Task& task,
                                                              const LeasedState& leased) {
  if (task.plan.kind == ChunkPlan::Kind::kFull) return MakeFull(task.chunk, leased);
  if (task.plan.chain.size() > 1) return MakeFolded(task, leased);
  const ChunkDelta& d = *task.plan.chain.front();
  net::OutFrame frame;
  frame.header.type = wire::FrameType::kChunkDelta;
  frame.header.chunk = task.chunk;
  frame.header.payload_bytes = static_cast<uint32_t>(d.payload.size());
  frame.header.epoch = leased.state->info.id.epoch;
  frame.header.version = leased.state->info.id.version;
  frame.header.digest_before = d.digest_before;
  frame.header.digest_after = d.digest_after;
  frame.header.payload_xxh3 = d.payload_xxh3;
  frame.payload = d.payload;
  frame.keep = leased.state;  // holds the log view, which holds the delta
  return frame;
}

net::OutFrame PullSession::MakeFull(uint32_t chunk, const LeasedState& leased) {
  const Chunk& place = model_->chunks()[chunk];
  net::OutFrame frame;
  frame.payload = model_->half(leased.state->half).subspan(place.offset, place.bytes);
  // Hashed at most once per version and chunk, however many receivers ask.
  std::atomic<uint64_t>& cached = leased.state->full_xxh3[chunk];
  uint64_t hash = cached.load(std::memory_order_relaxed);
  if (hash == 0) {
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
  frame.keep = leased.lease;
  return frame;
}

StatusOr<std::optional<net::OutFrame>> PullSession::MakeFolded(const Task& task,
                                                               const LeasedState& leased) {
  const Chunk& place = model_->chunks()[task.chunk];
  const kernels::Backend& backend = model_->backend();
  std::vector<Bytes> parts;
  for (const ChunkDelta* d : task.plan.chain) parts.push_back(d->payload);
  std::vector<std::byte> scratch(kernels::FoldScratchBytes(place.width));
  auto out =
      std::make_shared<std::vector<std::byte>>(kernels::MaxEncodedBytes(place.bytes, place.width));
  size_t bytes = 0;
  const auto folded = backend.fold(parts, place.bytes, place.width, scratch, *out, &bytes);
  if (folded != kernels::DecodeStatus::kOk) {
    return Errorf(StatusCode::kInternal, "model \"{}\": folding {} deltas of chunk {}: {}",
                  model_->name(), parts.size(), task.chunk, kernels::ToString(folded));
  }
  if (bytes == 0) return std::optional<net::OutFrame>();  // the changes undid one another
  if (bytes >= place.bytes) return MakeFull(task.chunk, leased);
  out->resize(bytes);
  out->shrink_to_fit();
  net::OutFrame frame;
  frame.header.type = wire::FrameType::kChunkDelta;
  frame.header.chunk = task.chunk;
  frame.header.payload_bytes = static_cast<uint32_t>(bytes);
  frame.header.epoch = leased.state->info.id.epoch;
  frame.header.version = leased.state->info.id.version;
  frame.header.digest_before = task.plan.chain.front()->digest_before;
  frame.header.digest_after = task.plan.chain.back()->digest_after;
  frame.header.payload_xxh3 = Xxh3(*out);
  frame.payload = *out;
  frame.keep = out;
  return frame;
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
