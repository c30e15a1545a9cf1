// The status command: shows the state and activity of the two daemons.
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/connect.h"
#include "cli/output.h"
#include "cli/status_text.h"

namespace deltawire::cli {
namespace {

struct StatusOptions : Common {
  bool watch = false;
  double interval = 1;
  bool changes = false;
  bool wide = false;
  bool sender_named = false;
  bool receiver_named = false;
};

Status AskSender(const StatusOptions& o, DaemonAnswers& out) {
  DW_ASSIGN_OR_RETURN(Sender sender, DialSender(o.sender, o.timeout()));
  out.sender = GetStatus(sender, o.model, o.timeout(), o.changes);
  if (!out.sender.ok()) return out.sender.status();
  DW_ASSIGN_OR_RETURN(out.attached, ListReceivers(sender, o.model, o.timeout()));
  return absl::OkStatus();
}

Status AskReceiver(const StatusOptions& o, DaemonAnswers& out) {
  DW_ASSIGN_OR_RETURN(Receiver receiver, DialReceiver(o.receiver, o.timeout()));
  out.receiver = GetStatus(receiver, o.model, o.timeout());
  return out.receiver.status();
}

DaemonAnswers Ask(const StatusOptions& o) {
  DaemonAnswers s{.sender_address = o.sender, .receiver_address = o.receiver};
  s.sender_named = o.sender_named;
  s.receiver_named = o.receiver_named;
  s.with_changes = o.changes;
  if (const Status asked = AskSender(o, s); !asked.ok()) s.sender = asked;
  if (const Status asked = AskReceiver(o, s); !asked.ok()) s.receiver = asked;
  return s;
}

Json AnswersJson(const DaemonAnswers& s) {
  Json json;
  Json& sender = json["sender"];
  sender["address"] = s.sender_address;
  sender["reachable"] = s.sender.ok();
  if (s.sender.ok()) {
    sender.update(ToJson(*s.sender));
    sender["receivers"] = ToJson(s.attached)["receivers"];
  } else {
    sender["error"] = std::string(MessageOf(s.sender.status()));
  }
  Json& receiver = json["receiver"];
  receiver["address"] = s.receiver_address;
  receiver["reachable"] = s.receiver.ok();
  if (s.receiver.ok()) {
    receiver.update(ToJson(*s.receiver));
  } else {
    receiver["error"] = std::string(MessageOf(s.receiver.status()));
  }
  json["warnings"] = StatusWarnings(s);
  return json;
}

// Returns an error if no daemon answered, or if a daemon that was named did not.
std::optional<Status> Failure(const StatusOptions& o, const DaemonAnswers& s) {
  if (o.sender_named && !s.sender.ok()) return s.sender.status();
  if (o.receiver_named && !s.receiver.ok()) return s.receiver.status();
  if (s.sender.ok() || s.receiver.ok()) return std::nullopt;
  return NeitherAnswers(o, s.sender.status(), s.receiver.status());
}

// Fits the text to a terminal's width. Elsewhere the width is unlimited.
std::string FittedText(const StatusOptions& o, const DaemonAnswers& s) {
  return StatusText(s, o.wide ? 0 : StdoutWidth());
}

StatusOr<Exit> Show(const StatusOptions& o) {
  while (true) {
    const DaemonAnswers s = Ask(o);
    const auto failure = Failure(o, s);
    if (!o.watch && failure) {
      if (o.json) PrintJson(AnswersJson(s));
      // The daemon that answers may know why the other one does not.
      if (!o.json && (s.sender.ok() || s.receiver.ok()))
        std::fputs(FittedText(o, s).c_str(), stdout);
      return *failure;
    }
    if (o.json) {
      o.watch ? PrintJsonLine(AnswersJson(s)) : PrintJson(AnswersJson(s));
    } else {
      if (o.watch && StdoutIsTerminal()) std::fputs("\033[H\033[2J", stdout);
      std::fputs(FittedText(o, s).c_str(), stdout);
      if (o.watch && !StdoutIsTerminal()) std::fputs("\n", stdout);
      std::fflush(stdout);
    }
    if (!o.watch) return StatusWarnings(s).empty() ? Exit::kOk : Exit::kDiffers;
    std::this_thread::sleep_for(std::chrono::duration<double>(o.interval));
  }
}

}  // namespace

void DeclareStatus(CLI::App& app, Run* run) {
  auto o = std::make_shared<StatusOptions>();
  CLI::App* sub = app.add_subcommand("status", "Show what the sender and the receiver hold and do");
  CLI::Option* const watch = sub->add_flag("--watch", o->watch, "Repeat until interrupted");
  AddSeconds(*sub, "--interval", o->interval, "Seconds between updates with --watch", 0.05, 3600)
      ->needs(watch);
  sub->add_flag("--wide", o->wide, "Print full-width tables, also on a narrow terminal");
  sub->add_flag("--changes", o->changes, "List the newest version's changes per tensor");
  o->AddSender(*sub);
  o->AddReceiver(*sub);
  o->AddModel(*sub, "all");
  o->AddTimeout(*sub, 5, "Wait this long for an answer");
  o->AddJson(*sub);
  sub->callback([o, run, sub] {
    o->sender_named = sub->count("--sender") > 0;
    o->receiver_named = sub->count("--receiver") > 0;
    *run = [o] { return Show(*o); };
  });
}

}  // namespace deltawire::cli
