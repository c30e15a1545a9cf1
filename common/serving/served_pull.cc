#include "common/serving/served_pull.h"

#include <algorithm>
#include <utility>

#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/trace.h"

namespace deltawire {
namespace {

using Clock = SteadyClock;

// A Have that comes more slowly than this, in bytes a second, is late.
constexpr uint64_t kSlowestHave = uint64_t{64} << 10;

}  // namespace

ServedPull::ServedPull(std::shared_ptr<StateSource> model, PullTerms terms)
    : model_(std::move(model)),
      terms_([&] {
        std::sort(terms.suspects.begin(), terms.suspects.end());
        return std::move(terms);
      }()),
      encoder_(*model_, *terms_.coding.rates),
      created_(Clock::now()),
      bytes_(*model_),
      streams_(terms_.streams),
      ahead_(terms_.incoming != nullptr),
      pinned_(terms_.pinned),
      last_heard_(created_) {
  if (pinned_ != nullptr) pin_ = model_->Pin(pinned_);
}

ServedPull::~ServedPull() {
  LeaveAdmission();
  NeedNoWayBack();
}

void ServedPull::NeedWayBack() {
  if (!std::exchange(needs_way_back_, true)) model_->CountPull(1);
}

void ServedPull::NeedNoWayBack() {
  if (std::exchange(needs_way_back_, false)) model_->CountPull(-1);
}

void ServedPull::PinEnd(const std::shared_ptr<const Published>& state) {
  pin_ = model_->Pin(state);
  pinned_ = state;
  first_ = nullptr;  // else its log would be kept to the end of the pull
  NeedNoWayBack();
}

void ServedPull::Overtaken(const Published& newest) {
  std::lock_guard lock(mu_);
  if (first_ != nullptr && end_ == nullptr && newest.serial > first_serial_) NeedWayBack();
}

bool ServedPull::CutIfGivenUp() {
  {
    std::lock_guard lock(mu_);
    const auto& state = pinned_ != nullptr ? pinned_ : first_;
    if (state == nullptr || !state->back->given_up() || !failed_.ok()) return false;
  }
  Cut(absl::AbortedError("slow pulls of newer versions need the memory; pull again"));
  return true;
}

Status ServedPull::Reserve(uint16_t stream, uint16_t streams) {
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

void ServedPull::StreamOpened(uint16_t stream, std::function<void()> cut) {
  {
    std::lock_guard lock(mu_);
    last_heard_ = Clock::now();
    streams_[stream].open = true;
    streams_[stream].cut = cut;
    if (failed_.ok()) return;
  }
  cut();
}

void ServedPull::StreamClosed(uint16_t stream, const Status& why) {
  Callbacks cuts;
  std::optional<Course> course;
  {
    std::lock_guard lock(mu_);
    Stream& s = streams_[stream];
    FrameTaken(s);
    s.open = false;
    s.closed = true;
    s.reading.reset();
    s.wake = nullptr;
    if (why.ok() && s.first_frame) s.seconds = SecondsSince(*s.first_frame) - s.idle_seconds;
    if (why.ok()) EstimateLink();
    if (why.ok()) course = Ended();
    if (course) LogEnd(why);
    const bool over = !why.ok() || std::all_of(streams_.begin(), streams_.end(),
                                               [](const Stream& other) { return other.closed; });
    if (over) LeaveAdmission();
    // One broken stream ends the pull; the receiver resumes with what it has verified.
    if (!why.ok() && failed_.ok()) {
      failed_ = why;
      LogEnd(why);
      cuts = Cuts();
    }
  }
  for (const auto& cut : cuts) cut();
  if (!course || !terms_.stages) return;
  terms_.stages({Stage::kConnect, course->connect, model_->name()});
  terms_.stages({Stage::kEncode, course->encode, model_->name()});
  terms_.stages({Stage::kSend, course->send, model_->name()});
}

std::optional<ServedPull::Course> ServedPull::Ended() const {
  if (!failed_.ok() || end_ == nullptr) return std::nullopt;
  Course course;
  auto first = Clock::time_point::max();
  for (const Stream& s : streams_) {
    if (!s.closed) return std::nullopt;
    if (s.first_frame) first = std::min(first, *s.first_frame);
    course.encode += s.coding_seconds;
  }
  const auto now = Clock::now();
  auto begun = std::min(first, now);  // a pull that has nothing to send has no frame
  course.connect = std::chrono::duration<double>(begun - created_).count();
  // What went out while the version was being written held nobody up.
  if (settled_ && unwritten()) begun = std::max(begun, *settled_);
  course.send = std::chrono::duration<double>(now - begun).count();
  return course;
}

void ServedPull::LogEnd(const Status& why) const {
  const auto state = end_ != nullptr ? end_ : pinned_ != nullptr ? pinned_ : first_;
  const Identity at = state == nullptr ? terms_.granted : state->info.identity;
  LogInfo("model {}: receiver {}: pull of {} ended after {}: {} sent{} {}", model_->name(),
          receiver_id(), ToString(at), HumanSeconds(SecondsSince(created_)),
          HumanBytes(bytes_sent_), why.ok() ? "" : fmt::format(", {}", MessageOf(why)),
          ToString(TraceOf(at)));
}

Status ServedPull::Start(const wire::Have& have) {
  const auto end = terms_.pinned != nullptr ? terms_.pinned : model_->published();
  if (end == nullptr && terms_.incoming == nullptr) {
    return Errorf(StatusCode::kFailedPrecondition, "model \"{}\": nothing is published yet",
                  model_->name());
  }
  const Identity& held = have.held;
  // Between two lineages numbers cannot be compared (IsLater is false): digests alone decide which
  // chunks stay.
  const Identity& to =
      terms_.incoming != nullptr ? terms_.incoming->identity() : end->info.identity;
  if (IsLater(held, to)) {
    return Errorf(
        StatusCode::kFailedPrecondition,
        "model \"{}\": the receiver holds {}, and this pull would end at {}: versions do not "
        "go backwards by themselves; publish a higher version, or run `deltawire sync "
        "--full` at the receiver to take the older one",
        model_->name(), ToString(held), ToString(to));
  }
  Callbacks wakes;
  {
    std::lock_guard lock(mu_);
    held_ = held;
    held_before_ = have.history;
    have_ = have.chunks;
    if (ahead_) sent_ahead_.resize(have_.size());
    started_ = true;
    if (terms_.admission != nullptr && failed_.ok()) {
      const PullClass who = Classify(end.get());
      newcomer_ = who == PullClass::kNewcomer;
      admitted_ = terms_.admission->Begin(model_->name(), who, terms_.streams, Clock::now());
    }
    wakes = TakeWakes();
  }
  for (const auto& wake : wakes) wake();
  return absl::OkStatus();
}

StatusOr<std::optional<net::OutFrame>> ServedPull::Next(uint16_t index,
                                                        std::function<void()> wake) {
  {
    std::lock_guard lock(mu_);
    Stream& s = streams_[index];
    FrameTaken(s);
    s.reading.reset();
    last_heard_ = Clock::now();
    if (s.idle_since) s.idle_seconds += SecondsSince(*std::exchange(s.idle_since, std::nullopt));
  }
  if (auto next = NextAhead(index, wake)) return *std::move(next);
  while (true) {
    // Before mu_, since the model's lock is never taken under it.
    LeasedState leased = Lease();
    std::optional<Task> task;
    Callbacks wakes;
    bool ended = false, again = false;
    {
      std::lock_guard lock(mu_);
      if (!failed_.ok()) return failed_;
      Stream& s = streams_[index];
      if (started_ && end_ == nullptr) {
        if (!AcceptOrPin(leased.state)) continue;
        task = NextTask(s, *leased.state, wakes);
      }
      if (task) {
        s.making = true;
        if (leased.lease != nullptr) s.reading = leased.state->half;
        if (!s.first_frame) s.first_frame = Clock::now();
      } else if (end_ != nullptr) {
        ended = true;
      } else if (AwaitDeferred(s, wake)) {
        s.wake = wake;
        if (s.first_frame) s.idle_since = Clock::now();
      } else {
        again = true;
      }
    }
    for (const auto& other : wakes) other();
    if (again) continue;
    if (ended) return MakeEnd();
    if (!task) return std::optional<net::OutFrame>();
    const auto start = Clock::now();
    auto frame = MakeFrame(*task, std::move(leased));
    std::lock_guard lock(mu_);
    Stream& s = streams_[index];
    s.making = false;
    s.coding_seconds += SecondsSince(start);
    // A frame sent from memory of its own does not occupy the half.
    s.reading = task->half;
    if (!frame.ok()) return frame;
    if (task->elsewhere != nullptr) Defer(s, *task);
    if (!frame->has_value()) continue;
    if (task->whole) {
      s.handed_over = Clock::now();
      s.handed_bytes = (*frame)->payload.size();
    }
    return frame;
  }
}

LeasedState ServedPull::Lease() const {
  std::shared_ptr<const Published> pinned;
  {
    std::lock_guard lock(mu_);
    pinned = pinned_;
  }
  if (pinned == nullptr) return model_->Lease();
  return {pinned, model_->LeaseHalf(pinned->half, pinned->info.identity)};
}

bool ServedPull::AcceptOrPin(const std::shared_ptr<const Published>& state) {
  if (pinned_ != nullptr) return state == pinned_;
  if (first_ == nullptr) {
    first_ = state;
    first_serial_ = state->serial;
  }
  if (state == first_) return true;
  // Another stream may have seen a newer state between our lease and our lock.
  if (state->serial < first_serial_) return false;
  // Pinned, the pull no longer depends on the trainer's pace: at most, chunks are sent once before
  // and once after this point, so the pull ends within twice the time that the model takes on the
  // link.
  LogInfo("model {}: receiver {}: {} overtakes its pull of {}, which ends there {}", model_->name(),
          receiver_id(), ToString(state->info.id()), ToString(first_->info.id()),
          ToString(TraceOf(state->info.identity)));
  PinEnd(state);
  return true;
}

std::optional<ServedPull::Task> ServedPull::NextTask(Stream& s, const Published& now,
                                                     Callbacks& wakes) {
  if (auto deferred = NextDeferred(s, now)) return deferred;
  while (cursor_ < model_->chunks().size()) {
    const uint32_t c = cursor_++;
    if (!model_->owned().contains(c)) continue;
    if (!sent_ahead_.empty() && sent_ahead_[c] != 0) continue;
    if (auto task = Plan(s, c, now)) return task;
  }
  if (auto lift = NextLift(s, now)) return lift;
  // Streams may still have deferred chunks, or be about to defer one, or have to lift chunks that
  // they sent before the pull was overtaken.
  bool lifting = defers();
  for (Stream& other : streams_) {
    if (pinned_ == nullptr || other.lifted == other.early.size()) continue;
    lifting = true;
    if (other.wake) wakes.push_back(std::exchange(other.wake, nullptr));
  }
  if (lifting) return std::nullopt;
  end_ = pinned_ != nullptr ? pinned_ : first_;
  wakes = TakeWakes();
  if (refused_bases_ > 0 && held_.lineage == now.info.identity.lineage) {
    LogWarn("model {}: receiver {}: {} chunks had an unknown base and went whole", model_->name(),
            receiver_id(), refused_bases_);
  }
  return std::nullopt;
}

std::optional<ServedPull::Task> ServedPull::Plan(Stream& s, uint32_t c, const Published& now) {
  if (pinned_ == nullptr) s.early.push_back(c);
  ChunkPlan plan = PlanChunk(now.log, c, have_[c].version, have_[c].digest, (*now.digests)[c],
                             model_->chunks()[c].bytes);
  if (plan.base_refused) ++refused_bases_;
  if (plan.kind == ChunkPlan::Kind::kNothing) return std::nullopt;
  return Task{c, std::move(plan), HistoryOf(c, now)};
}

std::optional<ServedPull::Task> ServedPull::PlanLift(uint32_t c, const Published& now) const {
  ChunkPlan plan =
      deltawire::PlanLift(now.log, c, now.serial - first_serial_, model_->chunks()[c].bytes);
  if (plan.kind == ChunkPlan::Kind::kNothing) return std::nullopt;
  return Task{.chunk = c, .plan = std::move(plan), .history = {}, .lift = true};
}

std::optional<ServedPull::Task> ServedPull::NextLift(Stream& s, const Published& now) {
  if (pinned_ == nullptr) return std::nullopt;
  while (s.lifted < s.early.size()) {
    if (auto task = PlanLift(s.early[s.lifted++], now)) return task;
  }
  return std::nullopt;
}

ServedPull::Callbacks ServedPull::TakeWakes() {
  Callbacks wakes;
  for (Stream& other : streams_) {
    if (other.wake) wakes.push_back(std::exchange(other.wake, nullptr));
  }
  return wakes;
}

ServedPull::Callbacks ServedPull::Cuts() const {
  Callbacks cuts;
  for (const Stream& s : streams_) {
    if (s.open && s.cut) cuts.push_back(s.cut);
  }
  return cuts;
}

void ServedPull::FrameTaken(Stream& s) {
  if (!s.handed_over) return;
  const auto took = Clock::now() - *std::exchange(s.handed_over, std::nullopt);
  terms_.coding.link->AddFrame(s.handed_bytes, took >= terms_.late_after);
}

void ServedPull::Waited(uint16_t stream, uint64_t queued, uint64_t left) {
  // More than a receiver's kernel leaves unacknowledged of what has come: the link was at work all
  // the time.
  constexpr uint64_t kAtWork = uint64_t{64} << 10;
  std::lock_guard lock(mu_);
  Stream& s = streams_[stream];
  if (!s.idle_since) return;
  if (left > kAtWork) {
    s.idle_since.reset();
  } else {
    // Nobody knows how long these bytes took, so neither they nor the time tell of the link.
    s.idle_bytes += queued - std::min(queued, left);
  }
}

void ServedPull::EstimateLink() {
  double longest = 0, coding = 0;
  uint64_t idle = 0;
  for (const Stream& s : streams_) {
    if (!s.closed) return;
    idle += s.idle_bytes;
    longest = std::max(longest, s.seconds);
    coding += s.coding_seconds;
  }
  if (longest <= 0) return;
  const double threads = terms_.coding.encode_threads;
  const double coders = coding / threads + decode_seconds_;
  const uint64_t sent = bytes_sent_;
  terms_.coding.link->Add(sent - std::min(sent, idle), longest,
                          CodersBound(coding, threads, decode_seconds_, longest));
  LogDebug("model {}: receiver {}: {} in {}, {} while idle, coders {}: the link is taken for {}",
           model_->name(), receiver_id(), HumanBytes(sent), HumanSeconds(longest), HumanBytes(idle),
           HumanSeconds(coders), HumanRate(terms_.coding.link->bytes_per_s()));
}

void ServedPull::Cut(const Status& why) {
  Callbacks cuts;
  {
    std::lock_guard lock(mu_);
    if (failed_.ok()) {
      if (!Ended()) LogEnd(why);
      failed_ = why;
    }
    cuts = Cuts();
  }
  for (const auto& cut : cuts) cut();
}

bool ServedPull::CutIfReading(uint32_t half, std::string_view why) {
  {
    std::lock_guard lock(mu_);
    bool reading = false;
    for (const Stream& s : streams_) reading |= s.reading == half;
    if (!reading) return false;
  }
  Cut(Errorf(StatusCode::kAborted, "cut {}; pull again", why));
  return true;
}

std::chrono::milliseconds ServedPull::HaveTime() const {
  const uint64_t bytes = wire::HaveBytes(chunks(), wire::kMaxHistory);
  return std::chrono::milliseconds(bytes * 1000 / kSlowestHave);
}

bool ServedPull::CutIfLate(SteadyClock::time_point now) {
  std::chrono::milliseconds limit = terms_.ticket_life;
  {
    std::lock_guard lock(mu_);
    const bool all = std::all_of(streams_.begin(), streams_.end(),
                                 [](const Stream& s) { return s.open || s.closed; });
    if (all) limit += HaveTime();
    if (!failed_.ok() || (all && started_) || now - created_ <= limit) return false;
  }
  Cut(Errorf(
      StatusCode::kDeadlineExceeded,
      "model \"{}\": not all of the pull's {} streams came, with a Have on the first, within "
      "{} ms of its ticket; open another pull",
      model_->name(), terms_.streams, limit.count()));
  return true;
}

uint64_t ServedPull::bytes_sent() const { return bytes_sent_; }

FormCounts ServedPull::sent() const {
  FormCounts counts;
  for (size_t i = 0; i < kernels::kForms; ++i) {
    counts.chunks[i] = form_chunks_[i];
    counts.bytes[i] = form_bytes_[i];
  }
  return counts;
}

SteadyClock::time_point ServedPull::last_heard() const {
  std::lock_guard lock(mu_);
  return last_heard_;
}

bool ServedPull::Finished(SteadyClock::time_point now) const {
  std::lock_guard lock(mu_);
  bool all_closed = true;
  for (const Stream& s : streams_) {
    if (s.open) return false;
    all_closed &= s.closed;
  }
  return all_closed || !failed_.ok() || now - created_ > terms_.ticket_life;
}

}  // namespace deltawire
