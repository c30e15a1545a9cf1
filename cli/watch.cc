// deltawire watch: one line for each new version of a sender, each commit of a receiver.
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "cli/command.h"
#include "cli/connect.h"
#include "cli/output.h"
#include "common/base/human.h"
#include "proto/convert.h"

namespace deltawire::cli {
namespace {

constexpr auto kRedialPause = std::chrono::milliseconds(500);

struct WatchOptions : Common {
  bool sender_named = false;
  bool receiver_named = false;
};

/// Lines from two streams, each whole.
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

void Show(Lines& lines, const std::string& model, const v1::VersionInfo& v) {
  if (lines.json()) {
    Json json = {{"event", v.rollback() ? "rolled back" : "published"}, {"model", model}};
    json.update(ToJson(v));
    return lines.Out(json);
  }
  lines.Out(fmt::format(
      "{}  {}  {} {}: {} changed, delta {} of {}, trainer waited {}",
      ClockText(v.published_unix_nanos()), model, ToString(FromProto(v.id())),
      v.rollback() ? "rolled back" : "published",
      Percent(static_cast<double>(v.changed_elements()), static_cast<double>(v.elements())),
      HumanBytes(v.delta_bytes() + v.full_bytes()), HumanBytes(v.model_bytes()),
      HumanSeconds(v.trainer_wait_seconds())));
}

void Show(Lines& lines, const std::string& model, const v1::CommitInfo& c) {
  if (lines.json()) {
    Json json = {{"event", "committed"}, {"model", model}};
    json.update(ToJson(c));
    return lines.Out(json);
  }
  lines.Out(fmt::format("{}  {}  {} committed: {} in {}", ClockText(c.committed_unix_nanos()),
                        model, ToString(FromProto(c.id())), HumanBytes(c.stats().payload_bytes()),
                        HumanSeconds(c.stats().seconds())));
}

// Reads one stream to its end. `seen` keeps a reconnect from saying the newest state twice.
Status Follow(Lines& lines, Sender& sender, const std::string& model, StateId* seen) {
  v1::WatchSenderVersionsRequest request;
  request.set_model(model);
  grpc::ClientContext context;
  auto stream = sender.stub->WatchVersions(&context, request);
  v1::VersionInfo v;
  while (stream->Read(&v)) {
    if (FromProto(v.id()) == *seen) continue;
    *seen = FromProto(v.id());
    Show(lines, model, v);
  }
  return Check(stream->Finish(), Sender::kName, sender.address);
}

Status Follow(Lines& lines, Receiver& receiver, const std::string& model, StateId* seen) {
  v1::WatchReceiverVersionsRequest request;
  request.set_model(model);
  grpc::ClientContext context;
  auto stream = receiver.stub->WatchVersions(&context, request);
  v1::CommitInfo c;
  while (stream->Read(&c)) {
    if (FromProto(c.id()) == *seen) continue;
    *seen = FromProto(c.id());
    Show(lines, model, c);
  }
  return Check(stream->Finish(), Receiver::kName, receiver.address);
}

// Follows for good: a daemon that goes away is dialled again. Returns only with an error that
// waiting does not mend.
template <typename Daemon>
Status FollowForever(Lines& lines, Daemon daemon, const std::string& model,
                     const std::function<StatusOr<Daemon>()>& dial) {
  StateId seen;
  while (true) {
    const Status ended = Follow(lines, daemon, model, &seen);
    if (!ended.ok() && !IsUnreachable(ended)) return ended;
    lines.Note(fmt::format("{} {} went away; waiting for it", Daemon::kName, daemon.address));
    while (true) {
      std::this_thread::sleep_for(kRedialPause);
      auto again = dial();
      if (!again.ok()) continue;
      daemon = std::move(*again);
      break;
    }
  }
}

template <typename Daemon>
struct Source {
  StatusOr<Daemon> daemon = absl::UnknownError("not asked");
  std::string model;

  Status Open(const std::function<StatusOr<Daemon>()>& dial, const WatchOptions& o) {
    daemon = dial();
    if (!daemon.ok()) return daemon.status();
    auto chosen = ChooseModel(*daemon, o.model, o.timeout());
    if (!chosen.ok()) {
      daemon = chosen.status();
      return chosen.status();
    }
    model = *chosen;
    return absl::OkStatus();
  }
};

StatusOr<Exit> Watch(const WatchOptions& o) {
  const std::function<StatusOr<Sender>()> dial_sender = [&] {
    return DialSender(o.sender, o.timeout());
  };
  const std::function<StatusOr<Receiver>()> dial_receiver = [&] {
    return DialReceiver(o.receiver, o.timeout());
  };
  const bool both = o.sender_named == o.receiver_named;
  Source<Sender> sender;
  Source<Receiver> receiver;
  Status failed;
  if (both || o.sender_named) failed.Update(sender.Open(dial_sender, o));
  if (both || o.receiver_named) failed.Update(receiver.Open(dial_receiver, o));
  // Those named must be there; of those not named one is enough.
  const bool any = sender.daemon.ok() || receiver.daemon.ok();
  if (!failed.ok() && (!any || o.sender_named || o.receiver_named)) return failed;

  Lines lines(o.json);
  const auto end = [&lines](const Status& s) {
    lines.Note("deltawire watch: " + std::string(MessageOf(s)));
    return s;
  };
  Status sender_end, receiver_end;
  std::thread other;
  if (sender.daemon.ok()) {
    other = std::thread([&] {
      sender_end = end(FollowForever(lines, std::move(*sender.daemon), sender.model, dial_sender));
    });
  }
  if (receiver.daemon.ok()) {
    receiver_end =
        end(FollowForever(lines, std::move(*receiver.daemon), receiver.model, dial_receiver));
  }
  if (other.joinable()) other.join();
  return Exit::kFailed;
}

}  // namespace

void DeclareWatch(CLI::App& app, Run* run) {
  auto o = std::make_shared<WatchOptions>();
  CLI::App* sub =
      app.add_subcommand("watch", "Print a line for each version published and each committed");
  sub->add_option("--sender", o->sender, "Watch this sender")
      ->type_name("[HOST:PORT]")
      ->expected(0, 1)
      ->default_str(o->sender);
  sub->add_option("--receiver", o->receiver, "Watch this receiver; neither: those that answer")
      ->type_name("[HOST:PORT]")
      ->expected(0, 1)
      ->default_str(o->receiver);
  o->AddModel(*sub, "the only one there is");
  o->AddTimeout(*sub, 5, "Wait so long for the first answer");
  o->AddJson(*sub);
  sub->callback([o, run, sub] {
    o->sender_named = sub->count("--sender") > 0;
    o->receiver_named = sub->count("--receiver") > 0;
    *run = [o] { return Watch(*o); };
  });
}

}  // namespace deltawire::cli
