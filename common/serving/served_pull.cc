#include "common/serving/served_pull.h"

#include <algorithm>
#include <utility>

#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/trace.h"

namespace deltawire {
namespace {

using Clock = SteadyClock;

// A Have that arrives more slowly than this, in bytes a second, is late.
constexpr uint64_t kSlowestHave = uint64_t{64} << 10;

PullTerms WithSortedCorrupt(PullTerms terms) {
  std::ranges::sort(terms.request.corrupt);
  return terms;
}

}  // namespace

ServedPull::ServedPull(std::shared_ptr<StateSource> model, PullTerms terms)
    : model_(std::move(model)),
      terms_(WithSortedCorrupt(std::move(terms))),
      created_(Clock::now()),
      maker_(*model_, terms_, tally_),
      turn_(terms_.admission, model_->name()),
      plan_(*model_, terms_, maker_),
      streams_(terms_.request.streams),
      last_heard_(created_) {}

// Streams -------------------------------------------------------------------------------------

Status ServedPull::Reserve(uint16_t stream, uint16_t streams) {
  MutexLock lock(mu_);
  return failed_.ok() ? streams_.Reserve(stream, streams) : failed_;
}

void ServedPull::StreamOpened(uint16_t stream, std::function<void()> cut) {
  {
    MutexLock lock(mu_);
    last_heard_ = Clock::now();
    streams_[stream].state = StreamState::kOpen;
    streams_[stream].cut = cut;
    if (failed_.ok()) return;
  }
  cut();
}

void ServedPull::StreamClosed(uint16_t stream, const Status& why) {
  Callbacks cuts;
  std::optional<Course> course;
  {
    MutexLock lock(mu_);
    Stream& s = streams_[stream];
    NoteFrameTaken(s);
    s.state = StreamState::kClosed;
    s.reading.reset();
    s.wake = nullptr;
    const bool last = streams_.HaveAll(StreamState::kClosed);
    if (why.ok()) {
      s.clock.Close(Clock::now());
      if (last) EstimateLink();
      course = CourseOfEnded();
      if (course) LogEnd(why);
    }
    if (!why.ok() || last) turn_.Leave();
    // One broken stream ends the pull. The receiver resumes with the chunks that it has verified.
    if (!why.ok() && failed_.ok()) {
      Fail(why);
      cuts = streams_.Cuts();
    }
  }
  for (const auto& cut : cuts) cut();
  if (!course || !terms_.stages) return;
  terms_.stages({Stage::kConnect, course->connect, model_->name()});
  terms_.stages({Stage::kEncode, course->encode, model_->name()});
  terms_.stages({Stage::kSend, course->send, model_->name()});
}

std::optional<ServedPull::Course> ServedPull::CourseOfEnded() const {
  if (!failed_.ok() || plan_.phase() != PullPlan::Phase::kEnded) return std::nullopt;
  if (!streams_.HaveAll(StreamState::kClosed)) return std::nullopt;
  const PullStreams::Times times = streams_.times();
  const auto now = Clock::now();
  auto begun = times.first_frame.value_or(now);  // a pull without chunks has no first frame
  Course course{.connect = std::chrono::duration<double>(begun - created_).count(),
                .encode = times.coding};
  // Bytes that were sent while the trainer still wrote the version delayed nobody.
  const bool unwritten = terms_.incoming != nullptr && terms_.incoming->identity().root == 0;
  if (settled_ && unwritten) begun = std::max(begun, *settled_);
  course.send = std::chrono::duration<double>(now - begun).count();
  return course;
}

void ServedPull::Fail(const Status& why) {
  failed_ = why;
  LogEnd(why);
}

void ServedPull::LogEnd(const Status& why) const {
  const auto& state = plan_.end().state();
  const Identity at = state == nullptr ? terms_.granted : state->info.identity;
  LogInfo("model {}: receiver {}: pull of {} ended after {}: {} sent{} {}", model_->name(),
          terms_.request.receiver_id, ToString(at), HumanSeconds(SecondsSince(created_)),
          HumanBytes(tally_.bytes()), why.ok() ? "" : fmt::format(", {}", MessageOf(why)),
          ToString(TraceOf(at)));
}

// Frames --------------------------------------------------------------------------------------

Status ServedPull::Start(const wire::Have& have) {
  const auto end = terms_.pinned != nullptr ? terms_.pinned : model_->published();
  if (end == nullptr && terms_.incoming == nullptr) {
    return Errorf(StatusCode::kFailedPrecondition, "model \"{}\": nothing is published yet",
                  model_->name());
  }
  // Numbers of two lineages cannot be compared (IsLater is false): digests decide which chunks
  // stay.
  const Identity& to =
      terms_.incoming != nullptr ? terms_.incoming->identity() : end->info.identity;
  if (IsLater(have.held, to)) {
    return Errorf(
        StatusCode::kFailedPrecondition,
        "model \"{}\": the receiver holds {}, and this pull would end at {}: versions do not "
        "go backwards by themselves; publish a higher version, or run `deltawire sync "
        "--full` at the receiver to take the older one",
        model_->name(), ToString(have.held), ToString(to));
  }
  Callbacks wakes;
  {
    MutexLock lock(mu_);
    plan_.Start(have);
    if (terms_.admission != nullptr && failed_.ok()) {
      turn_.Begin(plan_.Classify(end.get()), terms_.request.streams);
    }
    wakes = streams_.TakeWakes();
  }
  for (const auto& wake : wakes) wake();
  return absl::OkStatus();
}

void ServedPull::OnPiece(bool last) {
  Callbacks wakes;
  // Pinned now, since the log may not reach back to it when the streams ask.
  const auto settled = last ? terms_.incoming->PieceAt(~size_t{0}).state : nullptr;
  {
    MutexLock lock(mu_);
    if (plan_.phase() > PullPlan::Phase::kIncoming) return;
    if (settled != nullptr) plan_.PinIncoming(settled);
    bool more = true;  // one stream can take a piece
    wakes = streams_.TakeWakes([&](uint16_t) { return std::exchange(more, last); });
  }
  for (const auto& wake : wakes) wake();
}

LeasedState ServedPull::Lease(PullPlan::Phase phase,
                              std::shared_ptr<const Published> pinned) const {
  if (phase == PullPlan::Phase::kIncoming) return maker_.LeaseBase();
  if (pinned == nullptr) return model_->Lease();
  auto lease = model_->LeaseHalf(pinned->half, pinned->info.identity);
  return {std::move(pinned), std::move(lease)};
}

StatusOr<PullPlan::Step> ServedPull::Step(Stream& s, uint16_t index, const LeasedState& leased,
                                          const std::function<void()>& wake, Callbacks& wakes) {
  if (!failed_.ok()) return failed_;
  const auto before = plan_.phase();
  auto step = plan_.Next(index, leased);
  if (!step.ok()) Fail(step.status());
  const auto now = Clock::now();
  if (!step.ok() || plan_.phase() != before) {
    if (plan_.phase() == PullPlan::Phase::kPublished) settled_ = now;
    wakes = streams_.TakeWakes();
  } else if (step->kind == PullPlan::Kind::kWait) {
    wakes = streams_.TakeWakes(
        [&](uint16_t i) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return plan_.HasLifts(i); });
    s.wake = wake;
    s.clock.Rest(now);
  } else if (step->kind == PullPlan::Kind::kFrame) {
    if (!step->task.piece && leased.lease != nullptr) s.reading = leased.state->half;
    s.clock.Begin(now);
  }
  return step;
}

StatusOr<std::optional<net::OutFrame>> ServedPull::Next(uint16_t index,
                                                        std::function<void()> wake) {
  using Frame = std::optional<net::OutFrame>;
  PullPlan::Phase phase{};
  std::shared_ptr<const Published> pinned;
  {
    MutexLock lock(mu_);
    Stream& s = streams_[index];
    NoteFrameTaken(s);
    s.reading.reset();
    last_heard_ = Clock::now();
    s.clock.Resume(last_heard_);
    phase = plan_.phase();
    pinned = plan_.end().pinned();
  }
  while (true) {
    // Before mu_, since the model's lock is never taken under it.
    LeasedState leased = Lease(phase, pinned);
    PullPlan::Step step;
    Callbacks wakes;
    Status failed;
    {
      MutexLock lock(mu_);
      if (plan_.phase() != phase) {
        step.kind = PullPlan::Kind::kRetry;
      } else if (auto next = Step(streams_[index], index, leased, wake, wakes); next.ok()) {
        step = *std::move(next);
      } else {
        failed = next.status();
      }
      phase = plan_.phase();
      pinned = plan_.end().pinned();
    }
    for (const auto& other : wakes) other();
    if (!failed.ok()) return failed;
    if (step.kind == PullPlan::Kind::kRetry) continue;
    if (step.kind == PullPlan::Kind::kWait) return Frame();
    if (step.kind == PullPlan::Kind::kEnd) {
      return net::EndFrame({pinned->info.identity, pinned->info.side_files_hash});
    }
    const auto start = Clock::now();
    auto made = maker_.Make(step.task, std::move(leased));
    MutexLock lock(mu_);
    Stream& s = streams_[index];
    s.clock.AddCoding(SecondsSince(start));
    plan_.Finish(index, std::move(step.task), made.ok() && made->later);
    // A frame of a copy does not occupy the half.
    s.reading = made.ok() ? made->half : std::nullopt;
    if (!made.ok()) return made.status();
    if (made->whole) {
      s.handed_over = Clock::now();
      s.handed_bytes = made->frame->payload.size();
    }
    if (made->frame) return std::move(made->frame);
    phase = plan_.phase();
    pinned = plan_.end().pinned();
  }
}

// The link ------------------------------------------------------------------------------------

void ServedPull::NoteFrameTaken(Stream& s) {
  if (!s.handed_over) return;
  const auto took = Clock::now() - *std::exchange(s.handed_over, std::nullopt);
  terms_.coding.link->AddFrame(s.handed_bytes, took >= terms_.late_after);
}

void ServedPull::Waited(uint16_t stream, uint64_t queued, uint64_t left) {
  MutexLock lock(mu_);
  streams_[stream].clock.AddRest(queued, left);
}

void ServedPull::EstimateLink() {
  const auto [first_frame, longest, coding, idle] = streams_.times();
  if (longest <= 0) return;
  const double threads = terms_.coding.encode_threads, decode = tally_.decode_seconds();
  const uint64_t sent = tally_.bytes();
  terms_.coding.link->Add(sent - std::min(sent, idle), longest,
                          CodersBound(coding, threads, decode, longest));
  LogDebug("model {}: receiver {}: {} in {}, {} while idle, coders {}: the link estimate is {}",
           model_->name(), terms_.request.receiver_id, HumanBytes(sent), HumanSeconds(longest),
           HumanBytes(idle), HumanSeconds(coding / threads + decode),
           HumanRate(terms_.coding.link->bytes_per_s()));
}

// Cutting -------------------------------------------------------------------------------------

void ServedPull::Cut(const Status& why) {
  Callbacks cuts;
  {
    MutexLock lock(mu_);
    if (failed_.ok()) {
      if (!CourseOfEnded()) LogEnd(why);
      failed_ = why;
    }
    cuts = streams_.Cuts();
  }
  for (const auto& cut : cuts) cut();
}

bool ServedPull::CutIfReading(uint32_t half, std::string_view why) {
  {
    MutexLock lock(mu_);
    if (!streams_.IsRead(half)) return false;
  }
  Cut(Errorf(StatusCode::kAborted, "cut {}; pull again", why));
  return true;
}

bool ServedPull::CutIfLate(SteadyClock::time_point now) {
  std::chrono::milliseconds limit = terms_.ticket_life;
  {
    MutexLock lock(mu_);
    const bool all = streams_.HaveAll(StreamState::kOpen);
    const uint64_t have = wire::HaveBytes(chunks(), wire::kMaxHistory);
    if (all) limit += std::chrono::milliseconds(have * 1000 / kSlowestHave);
    const bool complete = all && plan_.phase() != PullPlan::Phase::kGranted;
    if (!failed_.ok() || complete || now - created_ <= limit) return false;
  }
  Cut(Errorf(StatusCode::kDeadlineExceeded,
             "model \"{}\": not all of the pull's {} streams, or not its Have, arrived within {} "
             "ms of its "
             "ticket; open another pull",
             model_->name(), terms_.request.streams, limit.count()));
  return true;
}

void ServedPull::Overtake(const Published& newest) {
  MutexLock lock(mu_);
  plan_.Overtake(newest);
}

bool ServedPull::CutIfDiscarded() {
  {
    MutexLock lock(mu_);
    const auto& state = plan_.end().state();
    if (!failed_.ok() || state == nullptr || state->back == nullptr || !state->back->discarded()) {
      return false;
    }
  }
  Cut(absl::AbortedError("slow pulls of newer versions need the memory; pull again"));
  return true;
}

SteadyClock::time_point ServedPull::last_heard() const {
  MutexLock lock(mu_);
  return last_heard_;
}

bool ServedPull::IsFinished(SteadyClock::time_point now) const {
  MutexLock lock(mu_);
  if (streams_.HaveOpen()) return false;
  return streams_.HaveAll(StreamState::kClosed) || !failed_.ok() ||
         now - created_ > terms_.ticket_life;
}

}  // namespace deltawire
