// The watch command: prints one line for each new version of a sender, for each commit of a
// receiver, and for each version that one of its engines begins to serve.
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "cli/command.h"
#include "cli/connect.h"
#include "cli/output.h"
#include "common/base/human.h"
#include "common/base/trace.h"
#include "proto/convert.h"

namespace deltawire::cli {
namespace {

constexpr auto kRedialPause = std::chrono::milliseconds(500);

struct WatchOptions : Common {
  bool sender_named = false;
  bool receiver_named = false;
};

/// Prints lines from several streams, each line whole.
class Lines {
 public:
  explicit Lines(bool json) : json_(json) {}
  bool json() const { return json_; }
  void Out(const std::string& line) {
    std::lock_guard lock(mu_);
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
  void Out(const Json& json) {
    std::lock_guard lock(mu_);
    PrintJsonLine(json);
  }
  void Note(const std::string& line) {
    std::lock_guard lock(mu_);
    std::fprintf(stderr, "%s\n", line.c_str());
  }

 private:
  const bool json_;
  std::mutex mu_;
};

// Returns " of lineage edbee4f0" if the lineage has changed, else "".
std::string LineageNews(const Identity& now, const Identity& before) {
  if (now.lineage == before.lineage || now.lineage == Hash128()) return "";
  return " of lineage " + LineageText(now.lineage);
}

void Show(Lines& lines, const std::string& model, const v1::VersionInfo& v,
          const Identity& before) {
  if (lines.json()) {
    Json json = {{"event", v.rollback() ? "rolled back" : "published"}, {"model", model}};
    json.update(ToJson(v));
    return lines.Out(json);
  }
  lines.Out(fmt::format(
      "{}  {}  {}{} {}, root {}: {} changed, delta {} of {}, trainer waited {}  {}",
      ClockText(v.published_unix_nanos()), model, ToString(FromProto(v.id())),
      LineageNews(FromProto(v.id()), before), v.rollback() ? "rolled back" : "published",
      RootText(v.id().root()),
      Percent(static_cast<double>(v.changed_elements()), static_cast<double>(v.elements())),
      HumanBytes(v.delta_bytes() + v.full_bytes()), HumanBytes(v.model_bytes()),
      HumanSeconds(v.trainer_wait_seconds()), ToString(TraceOf(FromProto(v.id())))));
}

void Show(Lines& lines, const std::string& model, const v1::CommitInfo& c, const Identity& before) {
  if (lines.json()) {
    Json json = {{"event", "committed"}, {"model", model}};
    json.update(ToJson(c));
    return lines.Out(json);
  }
  const std::string times = PullTimesText(c.stats());
  lines.Out(fmt::format("{}  {}  {}{} committed, root {}: {} in {}{}  {}",
                        ClockText(c.committed_unix_nanos()), model, ToString(FromProto(c.id())),
                        LineageNews(FromProto(c.id()), before), RootText(c.id().root()),
                        HumanBytes(c.stats().payload_bytes()), HumanSeconds(c.stats().seconds()),
                        times.empty() ? "" : ": " + times, ToString(TraceOf(FromProto(c.id())))));
}

void Show(Lines& lines, const std::string& model, const v1::ServedInfo& s) {
  if (lines.json()) {
    Json json = {{"event", "served"}, {"model", model}};
    json.update(ToJson(s));
    return lines.Out(json);
  }
  lines.Out(fmt::format(
      "{}  {}  {} served by {} {}, root {}: paused for {}{}  {}", ClockText(s.served_unix_nanos()),
      model, ToString(FromProto(s.id())), s.kind(), s.engine(), RootText(s.id().root()),
      HumanSeconds(s.pause_seconds()), s.all().epoch() != 0 ? "; by all engines" : "",
      ToString(TraceOf(FromProto(s.id())))));
}

// Reads one stream to its end. `seen`, the last printed state, is not printed again.
template <typename Request, typename Message, typename Daemon>
Status FollowStream(Lines& lines, Daemon& daemon, const std::string& model, Identity* seen) {
  Request request;
  request.set_model(model);
  grpc::ClientContext context;
  auto stream = daemon.stub->WatchVersions(&context, request);
  Message message;
  while (stream->Read(&message)) {
    const Identity now = FromProto(message.id());
    if (now == *seen) continue;
    Show(lines, model, message, std::exchange(*seen, now));
  }
  return Check(stream->Finish(), Daemon::kName, daemon.address);
}

Status Follow(Lines& lines, Sender& sender, const std::string& model, Identity* seen) {
  return FollowStream<v1::WatchSenderVersionsRequest, v1::VersionInfo>(lines, sender, model, seen);
}

Status Follow(Lines& lines, Receiver& receiver, const std::string& model, Identity* seen) {
  return FollowStream<v1::WatchReceiverVersionsRequest, v1::CommitInfo>(lines, receiver, model,
                                                                        seen);
}

template <typename Daemon>
using Dial = std::function<StatusOr<Daemon>()>;

// Waits until the daemon has the model `o.model`. If none is named, waits until it has any, and
// chooses its only one.
template <typename Daemon>
StatusOr<std::string> WaitForModel(Lines& lines, Daemon& daemon, const WatchOptions& o) {
  for (bool said = false;; said = true) {
    auto model = ChooseModel(daemon, o.model, o.timeout());
    if (!o.model.empty()) {
      const Status there = GetStatus(daemon, o.model, o.timeout()).status();
      if (!there.ok()) model = there;
    }
    if (model.ok() || model.status().code() != StatusCode::kNotFound) return model;
    if (!said) lines.Note(fmt::format("{}; waiting", MessageOf(model.status())));
    std::this_thread::sleep_for(kRedialPause);
  }
}

// Follows without end, and dials again if a daemon goes away. Returns only on an error that a new
// dial cannot fix.
template <typename Daemon>
Status FollowForever(Lines& lines, Daemon daemon, const Dial<Daemon>& dial, const WatchOptions& o) {
  Identity seen;
  while (true) {
    const auto model = WaitForModel(lines, daemon, o);
    const Status ended = model.ok() ? Follow(lines, daemon, *model, &seen) : model.status();
    if (!ended.ok() && !IsUnreachable(ended)) return ended;
    lines.Note(
        fmt::format("{} {} no longer answers; waiting for it", Daemon::kName, daemon.address));
    auto again = dial();
    while (!again.ok()) {
      std::this_thread::sleep_for(kRedialPause);
      again = dial();
    }
    daemon = std::move(*again);
  }
}

/// A thread that follows the versions that a receiver's engines serve. It prints nothing about the
/// connection, because the stream of commits does. It ends if there are no engines.
class ServedWatch {
 public:
  ServedWatch(Lines& lines, const Dial<Receiver>& dial, const WatchOptions& o)
      : lines_(lines), dial_(dial), options_(o), thread_([this] { Run(); }) {}
  ~ServedWatch() {
    {
      std::lock_guard lock(mu_);
      stopping_ = true;
      if (running_ != nullptr) running_->TryCancel();
      cv_.notify_all();
    }
    thread_.join();
  }

 private:
  void Run() {
    while (true) {
      auto receiver = dial_();
      const auto model = receiver.ok() ? ChooseModel(*receiver, options_.model, options_.timeout())
                                       : StatusOr<std::string>(receiver.status());
      if (model.ok()) {
        const grpc::StatusCode code = Follow(*receiver, *model);
        if (code == grpc::StatusCode::FAILED_PRECONDITION) return;
        if (code == grpc::StatusCode::UNIMPLEMENTED) return;  // a receiver of an older release
      }
      std::unique_lock lock(mu_);
      if (cv_.wait_for(lock, kRedialPause, [this] { return stopping_; })) return;
    }
  }
  grpc::StatusCode Follow(Receiver& receiver, const std::string& model) {
    v1::WatchServedRequest request;
    request.set_model(model);
    grpc::ClientContext context;
    {
      std::lock_guard lock(mu_);
      if (stopping_) return grpc::StatusCode::CANCELLED;
      running_ = &context;
    }
    auto stream = receiver.stub->WatchServed(&context, request);
    v1::ServedInfo info;
    while (stream->Read(&info)) {
      Identity& seen = seen_[info.engine()];
      const Identity now = FromProto(info.id());
      if (!(std::exchange(seen, now) == now)) Show(lines_, model, info);
    }
    const grpc::Status ended = stream->Finish();
    std::lock_guard lock(mu_);
    running_ = nullptr;
    return ended.error_code();
  }

  Lines& lines_;
  const Dial<Receiver>& dial_;
  const WatchOptions& options_;
  std::map<std::string, Identity> seen_;  // by engine; not printed again after a reconnect
  std::mutex mu_;
  std::condition_variable cv_;
  bool stopping_ = false;
  grpc::ClientContext* running_ = nullptr;
  std::thread thread_;
};

StatusOr<Exit> Watch(const WatchOptions& o) {
  const Dial<Sender> dial_sender = [&o] { return DialSender(o.sender, o.timeout()); };
  const Dial<Receiver> dial_receiver = [&o] { return DialReceiver(o.receiver, o.timeout()); };
  // Daemons that were named must answer. If none was named, one is enough.
  const bool named = o.sender_named || o.receiver_named;
  StatusOr<Sender> sender = absl::UnknownError("not asked");
  StatusOr<Receiver> receiver = absl::UnknownError("not asked");
  if (!named || o.sender_named) sender = dial_sender();
  if (!named || o.receiver_named) receiver = dial_receiver();
  if (o.sender_named && !sender.ok()) return sender.status();
  if (o.receiver_named && !receiver.ok()) return receiver.status();
  if (!sender.ok() && !receiver.ok()) {
    return named ? sender.status() : NeitherAnswers(o, sender.status(), receiver.status());
  }

  Lines lines(o.json);
  Status sender_end, receiver_end;
  std::thread other;
  if (sender.ok()) {
    other = std::thread([&] {
      sender_end = FollowForever(lines, std::move(*sender), dial_sender, o);
      lines.Note(std::string(MessageOf(sender_end)));
    });
  }
  if (receiver.ok()) {
    const ServedWatch served(lines, dial_receiver, o);
    receiver_end = FollowForever(lines, std::move(*receiver), dial_receiver, o);
    lines.Note(std::string(MessageOf(receiver_end)));
  }
  if (other.joinable()) other.join();
  return sender_end.ok() ? receiver_end : sender_end;
}

}  // namespace

void DeclareWatch(CLI::App& app, Run* run) {
  auto o = std::make_shared<WatchOptions>();
  CLI::App* sub =
      app.add_subcommand("watch", "Print a line for each version published, committed and served");
  Common::AddCredentials(*sub);
  sub->add_option("--sender", o->sender, "Watch this sender")
      ->type_name("[HOST:PORT]")
      ->expected(0, 1)
      ->default_str(o->sender);
  sub->add_option("--receiver", o->receiver,
                  "Watch this receiver; default: whichever daemons answer")
      ->type_name("[HOST:PORT]")
      ->expected(0, 1)
      ->default_str(o->receiver);
  o->AddModel(*sub, "the only one there is");
  o->AddTimeout(*sub, 5, "Wait this long for the first answer");
  o->AddJson(*sub);
  sub->callback([o, run, sub] {
    o->sender_named = sub->count("--sender") > 0;
    o->receiver_named = sub->count("--receiver") > 0;
    *run = [o] { return Watch(*o); };
  });
}

}  // namespace deltawire::cli
