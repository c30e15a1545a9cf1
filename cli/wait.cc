// The wait command: returns when a receiver, or all that are attached to a sender, have committed a
// version, or when all their engines serve it.
#include <cstdio>
#include <memory>
#include <vector>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/connect.h"
#include "cli/output.h"
#include "common/base/human.h"
#include "proto/convert.h"

namespace deltawire::cli {
namespace {

struct WaitOptions : Common {
  uint64_t version = 0;  // 0: the receiver's newest
  std::string lineage;   // its first digits; empty: any
  std::string root;      // the first digits of that version's root
  bool served = false;
  bool all = false;
  uint32_t at_least = 1;  // receivers, with `all`
};

StatusOr<uint64_t> NewestVersion(const v1::ReceiverModelStatus& m, const std::string& model) {
  const v1::Identity& newest = m.newest().epoch() != 0 ? m.newest() : m.committed();
  if (newest.epoch() != 0) return newest.version();
  return Errorf(StatusCode::kFailedPrecondition,
                "{}: the receiver knows no version yet; pass --version", model);
}

// Returns whether the receiver knew at the start that the history of `id` has ended. A rollback or
// a model that is registered anew uses numbers again, so a version of the old history does not end
// the wait.
bool IsOver(const Identity& id, const v1::ReceiverModelStatus& at_start) {
  const Identity newest = FromProto(at_start.newest());
  if (newest.empty()) return false;
  if (id.lineage == newest.lineage) return id.id.epoch < newest.id.epoch;
  return id.lineage == FromProto(at_start.committed()).lineage;
}

// Reads `stream` until `reached` accepts a message.
template <typename Info, typename Reached>
Status Until(grpc::ClientReader<Info>& stream, grpc::ClientContext& context, const Reached& reached,
             const std::string& address) {
  Info info;
  while (stream.Read(&info)) {
    if (!reached(info)) continue;
    context.TryCancel();
    while (stream.Read(&info)) {
    }
    (void)stream.Finish();
    return absl::OkStatus();
  }
  DW_RETURN_IF_ERROR(Check(stream.Finish(), Receiver::kName, address));
  // A script continues after success, so an end without the version is an error.
  return Errorf(StatusCode::kUnavailable, "the receiver at {} ended the watch", address);
}

// Returns the error for a wait for `version` that has run out of time.
Status NotInTime(Receiver& receiver, const std::string& model, uint64_t version,
                 const WaitOptions& o, const Status& late) {
  const auto status = GetStatus(receiver, model, std::chrono::seconds(1));
  if (!status.ok() || status->models_size() != 1) return late;
  const v1::ReceiverModelStatus& m = status->models(0);
  const auto number = [](const v1::Identity& id) {
    return id.epoch() == 0 ? std::string("none") : std::to_string(id.version());
  };
  std::string text = fmt::format(
      "{}: version {} was not {} within {}: committed here: {}, the newest of {}: {}, phase {}",
      model, version, o.served ? "served" : "committed", HumanSeconds(o.timeout_seconds),
      number(m.committed()), m.sender(), number(m.newest()), m.phase());
  if (!m.attached()) text += ", not attached";
  if (!m.message().empty()) text += fmt::format("; {}", m.message());
  return Status(late.code(), text);
}

// Warns the user that the receiver gets no news of versions at present.
void WarnIfDetached(const v1::ReceiverModelStatus& m) {
  if (m.attached()) return;
  std::fprintf(stderr,
               "deltawire wait: %s: the receiver is not attached to its sender %s, so it does not "
               "hear of newer versions%s%s\n",
               m.model().c_str(), m.sender().c_str(), m.message().empty() ? "" : ": ",
               m.message().c_str());
}

StatusOr<Exit> Wait(const WaitOptions& o) {
  const TimeBudget budget(o.timeout());
  DW_ASSIGN_OR_RETURN(Receiver receiver, DialReceiver(o.receiver, budget.left()));
  DW_ASSIGN_OR_RETURN(const std::string model, ChooseModel(receiver, o.model, budget.left()));
  DW_ASSIGN_OR_RETURN(const auto status, GetStatus(receiver, model, budget.left()));
  const v1::ReceiverModelStatus& at_start = status.models(0);
  uint64_t version = o.version;
  if (version == 0) {
    DW_ASSIGN_OR_RETURN(version, NewestVersion(at_start, model));
  }
  // A named version that is committed already needs no sender.
  const bool here = o.version != 0 && !o.served && at_start.committed().epoch() != 0 &&
                    at_start.committed().version() >= o.version && o.lineage.empty() &&
                    o.root.empty();
  if (!here) WarnIfDetached(at_start);
  grpc::ClientContext context;
  SetDeadline(context, budget.left());
  Identity reached;
  bool by_later = false;  // some engine serves a later version
  const auto enough = [&](const v1::Identity& id) {
    reached = FromProto(id);
    const bool named =
        id.lineage().starts_with(o.lineage) &&
        (reached.id.version != version || fmt::format("{:016x}", id.root()).starts_with(o.root));
    return !reached.empty() && reached.id.version >= version && named && !IsOver(reached, at_start);
  };
  const Status done = [&] {
    if (o.served) {
      v1::WatchServedRequest request;
      request.set_model(model);
      const auto stream = receiver.stub->WatchServed(&context, request);
      const auto by_each = [&](const v1::ServedInfo& info) {
        by_later = info.all().epoch() == 0;
        return enough(info.oldest());
      };
      return Until(*stream, context, by_each, o.receiver);
    }
    v1::WatchReceiverVersionsRequest request;
    request.set_model(model);
    const auto stream = receiver.stub->WatchVersions(&context, request);
    const auto committed = [&](const v1::CommitInfo& info) { return enough(info.id()); };
    return Until(*stream, context, committed, o.receiver);
  }();
  if (absl::IsDeadlineExceeded(done)) return NotInTime(receiver, model, version, o, done);
  DW_RETURN_IF_ERROR(done);
  if (o.json) {
    PrintJson({{"model", model},
               {"event", o.served ? "served" : "committed"},
               {"id", IdentityJson(reached)},
               {"attached", at_start.attached()}});
  } else {
    std::printf("%s: %s%s %s\n", model.c_str(), DescribeFully(reached).c_str(),
                by_later ? ", or a later one," : "",
                o.served ? "served by all engines" : "committed");
  }
  return Exit::kOk;
}

std::string Describe(const v1::WaitCommittedUpdate& u, uint32_t at_least) {
  std::string text = u.served()
                         ? fmt::format(
                               "the engines of {} of {} attached receivers that drive any serve "
                               "version {}",
                               u.committed(), u.attached(), u.version())
                         : fmt::format("{} of {} attached receivers have committed version {}",
                                       u.committed(), u.attached(), u.version());
  if (u.attached() < at_least) text += fmt::format(", and {} are waited for", at_least);
  if (u.behind().empty()) return text;
  const std::vector<std::string> behind(u.behind().begin(), u.behind().end());
  const size_t more = u.attached() - u.committed() - behind.size();
  text += fmt::format("; behind: {}", fmt::join(behind, ", "));
  return more == 0 ? text : text + fmt::format(" and {} more", more);
}

StatusOr<Exit> WaitForAll(const WaitOptions& o) {
  const TimeBudget budget(o.timeout());
  DW_ASSIGN_OR_RETURN(Sender sender, DialSender(o.sender, budget.left()));
  v1::WaitCommittedRequest request;
  DW_ASSIGN_OR_RETURN(*request.mutable_model(), ChooseModel(sender, o.model, budget.left()));
  request.set_version(o.version);
  request.set_at_least(o.at_least);
  request.set_served(o.served);
  grpc::ClientContext context;
  SetDeadline(context, budget.left());
  const auto stream = sender.stub->WaitCommitted(&context, request);
  v1::WaitCommittedUpdate last;
  while (stream->Read(&last)) {
    if (last.served() == o.served) continue;
    context.TryCancel();
    (void)stream->Finish();
    return Errorf(StatusCode::kFailedPrecondition,
                  "the sender at {} is of an older release, which does not report served versions; "
                  "update it, or wait at each receiver: `deltawire wait --served --receiver "
                  "HOST:PORT`",
                  sender.address);
  }
  const grpc::Status end = stream->Finish();
  if (end.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return Errorf(StatusCode::kDeadlineExceeded, "{}: {} after {}", request.model(),
                  Describe(last, o.at_least), HumanSeconds(o.timeout_seconds));
  }
  DW_RETURN_IF_ERROR(Check(end, Sender::kName, sender.address));
  if (o.json) {
    PrintJson({{"model", request.model()},
               {"event", o.served ? "served by all" : "committed by all"},
               {"id", IdentityJson(FromProto(last.newest()))},
               {"version", last.version()},
               {"receivers", last.attached()}});
  } else {
    std::printf("%s: version %llu or a later one %s %u receivers\n", request.model().c_str(),
                static_cast<unsigned long long>(last.version()),
                o.served ? "served by all engines of" : "committed by", last.attached());
  }
  return Exit::kOk;
}

}  // namespace

void DeclareWait(CLI::App& app, Run* run) {
  auto o = std::make_shared<WaitOptions>();
  CLI::App* sub = app.add_subcommand(
      "wait", "Wait until receivers have committed a version, or engines serve it");
  AddWhole(*sub, "--version", o->version,
           "This version or a later one; default: the newest that the daemon knows", 1);
  AddHex(*sub, "--lineage", o->lineage,
         "Of this history, as publish prints it: an earlier run may have left the number", 32);
  AddHex(*sub, "--root", o->root, "With --version: that version must have these bytes", 16);
  sub->add_flag("--served", o->served,
                "Wait until each engine of the receiver serves it, or a later one; with --all "
                "each engine of all receivers");
  sub->add_flag(
      "--all", o->all,
      "Wait until each receiver that is attached to --sender has committed it, or a later one");
  AddWhole(*sub, "--at-least", o->at_least, "With --all: wait for this many receivers at least", 1)
      ->capture_default_str();
  o->AddReceiver(*sub);
  o->AddSender(*sub);
  o->AddModel(*sub, "the only one there is");
  o->AddTimeout(*sub, 0, "Give up after this long; 0: never");
  o->AddJson(*sub);
  sub->callback([o, run, sub] {
    *run = [o, sub]() -> StatusOr<Exit> {
      if (!o->all && sub->count("--at-least") != 0) return UsageError("--at-least needs --all");
      // Only one of the two daemons is asked. An address of the other one would be ignored
      // silently, and the wait would be for something else than the user meant.
      if (!o->all && sub->count("--sender") != 0) {
        return UsageError("--sender needs --all; pass --receiver to wait for one receiver");
      }
      if (o->all && sub->count("--receiver") != 0) {
        return UsageError("--receiver and --all exclude each other; --all asks --sender");
      }
      if (o->all && !(o->lineage.empty() && o->root.empty())) {
        return UsageError("--all goes by the sender's lineage: leave out --lineage and --root");
      }
      return o->all ? WaitForAll(*o) : Wait(*o);
    };
  });
}

}  // namespace deltawire::cli
