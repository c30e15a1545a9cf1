// The sync command: updates a receiver, or all of a sender, to the newest version.
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "cli/command.h"
#include "cli/connect.h"
#include "cli/output.h"
#include "common/base/human.h"
#include "common/base/receiver_phase.h"
#include "proto/convert.h"

namespace deltawire::cli {
namespace {

struct SyncOptions : Common {
  bool full = false;
  std::string group;
  bool via_sender = false;
  std::vector<std::string> ids;
};

std::string Describe(const v1::PullStats& s) {
  if (s.payload_bytes() == 0) return fmt::format("nothing to move ({})", HumanSeconds(s.seconds()));
  return fmt::format("{} in {} ({} chunks whole, {} by delta, {} repaired)",
                     HumanBytes(s.payload_bytes()), HumanSeconds(s.seconds()), s.chunks_full(),
                     s.chunks_delta(), s.repaired_chunks());
}

// Makes one Sync call. On success `last` is its final update.
Status SyncOnce(const SyncOptions& o, Receiver& receiver, const std::string& model,
                const TimeBudget& budget, Progress& progress, v1::SyncUpdate* last) {
  v1::SyncRequest request;
  request.set_model(model);
  request.set_force_full(o.full);
  grpc::ClientContext context;
  SetDeadline(context, budget.left());
  auto stream = receiver.stub->Sync(&context, request);
  v1::SyncUpdate update;
  while (stream->Read(&update)) {
    progress.Set(update.bytes_done(), update.bytes_total());
    *last = update;
  }
  return Check(stream->Finish(), Receiver::kName, receiver.address);
}

StatusOr<Exit> SyncReceiver(const SyncOptions& o) {
  // A receiver attaches within seconds after its own or its sender's start.
  constexpr std::chrono::milliseconds kAttachGrace{5000};
  constexpr std::chrono::milliseconds kPause{200};
  const TimeBudget budget(o.timeout());
  DW_ASSIGN_OR_RETURN(Receiver receiver, DialReceiver(o.receiver, budget.left()));
  DW_ASSIGN_OR_RETURN(const std::string model, ChooseModel(receiver, o.model, budget.left()));
  v1::SyncUpdate last;
  {
    Progress progress(fmt::format("sync {}", model));
    const auto start = std::chrono::steady_clock::now();
    while (true) {
      const Status done = SyncOnce(o, receiver, model, budget, progress, &last);
      if (done.ok()) break;
      const bool wait = IsUnreachable(done) && last.phase().empty() &&
                        std::chrono::steady_clock::now() - start < kAttachGrace &&
                        (o.timeout().count() == 0 || budget.left() > kPause);
      if (!wait) return done;
      std::this_thread::sleep_for(kPause);
    }
  }
  if (o.json) {
    Json json = {{"model", model}};
    json.update(ToJson(last));
    PrintJson(json);
  } else {
    std::printf("%s: %s committed: %s\n", model.c_str(),
                DescribeFully(FromProto(last.target())).c_str(), Describe(last.stats()).c_str());
  }
  return Exit::kOk;
}

bool Committed(const v1::SyncProgress& p) {
  return ParseReceiverPhase(p.phase()) == ReceiverPhase::kCommitted;
}

std::string Describe(const v1::GroupOutcome& g) {
  if (!g.committed())
    return fmt::format("group {}: no member committed: {}", g.name(), g.message());
  std::string text = fmt::format(
      "group {}: {} of {} members committed {}: prepared in {}, "
      "the last commit {} after the order, {} after the first",
      g.name(), g.members() - g.late(), g.members(), VersionText(g.target()),
      HumanSeconds(g.prepare_seconds()), HumanSeconds(g.word_seconds()),
      HumanSeconds(g.spread_seconds()));
  return g.message().empty() ? text : text + "; " + g.message();
}

void ShowReceivers(const std::map<std::string, v1::SyncProgress>& latest) {
  Table table({{"RECEIVER"}, {"VERSION", Align::kRight}, {"RESULT"}, {"MOVED"}});
  for (const auto& [id, p] : latest) {
    const bool committed = Committed(p);
    table.Add(
        {id, VersionText(p.target()), p.phase(), committed ? Describe(p.stats()) : p.message()});
  }
  std::fputs(table.Text().c_str(), stdout);
}

StatusOr<Exit> SyncViaSender(const SyncOptions& o) {
  const TimeBudget budget(o.timeout());
  DW_ASSIGN_OR_RETURN(Sender sender, DialSender(o.sender, budget.left()));
  v1::TriggerSyncRequest request;
  DW_ASSIGN_OR_RETURN(*request.mutable_model(), ChooseModel(sender, o.model, budget.left()));
  for (const std::string& id : o.ids) request.add_receiver_ids(id);
  request.set_force_full(o.full);
  request.set_group(o.group);
  grpc::ClientContext context;
  SetDeadline(context, budget.left());
  std::map<std::string, v1::SyncProgress> latest;
  std::optional<v1::GroupOutcome> group;
  Status ended;
  {
    Progress progress(fmt::format("sync {}", request.model()));
    auto stream = sender.stub->TriggerSync(&context, request);
    v1::SyncProgress update;
    while (stream->Read(&update)) {
      if (update.has_group()) {
        group = update.group();
        continue;
      }
      latest[update.receiver_id()] = update;
      uint64_t done = 0, total = 0;
      for (const auto& [id, p] : latest) {
        done += p.bytes_done();
        total += p.bytes_total();
      }
      progress.Set(done, total);
    }
    ended = Check(stream->Finish(), Sender::kName, sender.address);
  }
  if (!ended.ok() && !group) return ended;
  size_t failed = 0;
  Json list = Json::array();
  for (const auto& [id, p] : latest) {
    failed += !Committed(p);
    Json item = ToJson(p);
    item.erase("group");  // the whole group's outcome, printed once
    list.push_back(std::move(item));
  }
  if (o.json) {
    Json json = {{"model", request.model()}, {"receivers", list}};
    if (group) json["group"] = ToJson(*group);
    PrintJson(json);
  } else {
    ShowReceivers(latest);
    if (group) std::printf("%s\n", Describe(*group).c_str());
  }
  DW_RETURN_IF_ERROR(ended);
  if (failed == 0) return Exit::kOk;
  return Errorf(StatusCode::kAborted,
                "{} of {} receivers did not commit; `deltawire status` shows "
                "their state",
                failed, latest.size());
}

}  // namespace

void DeclareSync(CLI::App& app, Run* run) {
  auto o = std::make_shared<SyncOptions>();
  CLI::App* sub = app.add_subcommand(
      "sync", "Bring a receiver to the newest version now, and wait until it is committed");
  sub->add_flag("--full", o->full, "Fetch every chunk whole; also goes back to an older version");
  sub->add_flag("--via-sender", o->via_sender, "Sync the receivers that are attached to --sender");
  sub->add_option("--id", o->ids, "With --via-sender: only these receivers")->type_name("ID");
  sub->add_option("--group", o->group,
                  "All members of this group of --sender commit together, or none does; with --id "
                  "a group of these receivers")
      ->type_name("NAME");
  o->AddReceiver(*sub);
  o->AddSender(*sub);
  o->AddModel(*sub, "the only one there is");
  o->AddTimeout(*sub, 0, "Give up after this long; 0: never");
  o->AddJson(*sub);
  sub->callback([o, run, sub] {
    *run = [o, sub]() -> StatusOr<Exit> {
      const bool via_sender = o->via_sender || !o->group.empty();
      // As in `wait`, only one of the two daemons is asked.
      if (!via_sender && sub->count("--sender") != 0) {
        return UsageError(
            "--sender needs --via-sender or --group; pass --receiver to sync one receiver");
      }
      if (via_sender && sub->count("--receiver") != 0) {
        return UsageError("--receiver excludes --via-sender and --group; these ask --sender");
      }
      if (!via_sender && !o->ids.empty()) {
        return UsageError("--id needs --via-sender or --group");
      }
      if (!o->group.empty() && o->full) return UsageError("--full and --group exclude each other");
      return via_sender ? SyncViaSender(*o) : SyncReceiver(*o);
    };
  });
}

}  // namespace deltawire::cli
