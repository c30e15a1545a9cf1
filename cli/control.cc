// The commands pause and resume (of a receiver), rollback and unregister (at the sender).
#include <cstdio>
#include <memory>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/connect.h"
#include "cli/left_out.h"
#include "cli/output.h"
#include "common/base/human.h"
#include "proto/convert.h"

namespace deltawire::cli {
namespace {

struct RollbackOptions : Common {
  uint64_t version = 0;
};

StatusOr<Exit> SetPaused(const Common& o, bool paused) {
  DW_ASSIGN_OR_RETURN(Receiver receiver, DialReceiver(o.receiver, o.timeout()));
  DW_ASSIGN_OR_RETURN(const std::string model, ChooseModel(receiver, o.model, o.timeout()));
  const auto ask = [&](auto rpc, auto request) {
    request.set_model(model);
    return Ask(receiver, rpc, request, o.timeout()).status();
  };
  DW_RETURN_IF_ERROR(paused ? ask(&Receiver::Stub::Pause, v1::PauseRequest())
                            : ask(&Receiver::Stub::Resume, v1::ResumeRequest()));
  if (o.json) {
    PrintJson({{"model", model}, {"paused", paused}});
  } else {
    std::printf("%s: %s\n", model.c_str(),
                paused ? "paused; new versions wait for `deltawire resume` (sync still works)"
                       : "following new versions again");
  }
  return Exit::kOk;
}

StatusOr<Exit> Rollback(const RollbackOptions& o) {
  DW_ASSIGN_OR_RETURN(Sender sender, DialSender(o.sender, o.timeout()));
  v1::RollbackRequest request;
  DW_ASSIGN_OR_RETURN(*request.mutable_model(), ChooseModel(sender, o.model, o.timeout()));
  request.set_version(o.version);
  DW_ASSIGN_OR_RETURN(const v1::RollbackResponse response,
                      Ask(sender, &Sender::Stub::Rollback, request, o.timeout()));
  const v1::VersionInfo& v = response.info();
  if (o.json) {
    PrintJson({{"model", request.model()}, {"info", ToJson(v)}});
  } else {
    std::printf("%s: rolled back to %s: delta %s of %s\n", request.model().c_str(),
                DescribeFully(FromProto(v.id())).c_str(),
                HumanBytes(v.delta_bytes() + v.full_bytes()).c_str(),
                HumanBytes(v.model_bytes()).c_str());
  }
  return Exit::kOk;
}

StatusOr<Exit> Unregister(const Common& o) {
  DW_ASSIGN_OR_RETURN(Sender sender, DialSender(o.sender, o.timeout()));
  v1::UnregisterModelRequest request;
  request.set_model(o.model);
  DW_ASSIGN_OR_RETURN(const v1::UnregisterModelResponse response,
                      Ask(sender, &Sender::Stub::UnregisterModel, request, o.timeout()));
  const std::vector<std::string> left(response.left().begin(), response.left().end());
  if (o.json) {
    PrintJson({{"model", o.model},
               {"directory", response.directory()},
               {"freed_bytes", response.freed_bytes()},
               {"left", left}});
    return Exit::kOk;
  }
  std::printf("%s: unregistered, %s freed\n", o.model.c_str(),
              HumanBytes(response.freed_bytes()).c_str());
  if (!left.empty()) {
    std::printf("%s stays, since it holds files that are not the sender's: %s\n",
                response.directory().c_str(), NamesText(left).c_str());
  }
  return Exit::kOk;
}

void DeclareUnregister(CLI::App& app, Run* run) {
  auto o = std::make_shared<Common>();
  CLI::App* sub = app.add_subcommand(
      "unregister", "End a model at the sender and free its memory; receivers keep what they hold");
  sub->add_option("MODEL", o->model, "The model's name")->required()->type_name("");
  o->AddSender(*sub);
  o->AddTimeout(*sub, 60, "Wait this long for an answer; 0: for ever");
  o->AddJson(*sub);
  sub->callback([o, run] { *run = [o] { return Unregister(*o); }; });
}

void DeclarePause(CLI::App& app, Run* run, bool paused) {
  auto o = std::make_shared<Common>();
  CLI::App* sub = paused
                      ? app.add_subcommand("pause", "Stop a receiver from following new versions")
                      : app.add_subcommand("resume", "Let a receiver follow new versions again");
  o->AddReceiver(*sub);
  o->AddModel(*sub, "the only one there is");
  o->AddTimeout(*sub, 10, "Wait this long for an answer");
  o->AddJson(*sub);
  sub->callback([o, run, paused] { *run = [o, paused] { return SetPaused(*o, paused); }; });
}

}  // namespace

void DeclareControl(CLI::App& app, Run* run) {
  DeclarePause(app, run, true);
  DeclarePause(app, run, false);
  auto o = std::make_shared<RollbackOptions>();
  CLI::App* sub = app.add_subcommand(
      "rollback", "Publish an earlier version again, made from the sender's delta log");
  AddWhole(*sub, "--version", o->version, "The version to go back to", 1)->required();
  o->AddSender(*sub);
  o->AddModel(*sub, "the only one there is");
  o->AddTimeout(*sub, 120, "Give up after this long; 0: never");
  o->AddJson(*sub);
  sub->callback([o, run] { *run = [o] { return Rollback(*o); }; });
  DeclareUnregister(app, run);
}

}  // namespace deltawire::cli
