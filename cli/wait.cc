// deltawire wait: ends when a receiver has committed a version, or when all its engines serve it.
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/connect.h"
#include "cli/output.h"
#include "proto/convert.h"

namespace deltawire::cli {
namespace {

struct WaitOptions : Common {
  uint64_t version = 0;  // 0: the receiver's newest
  bool served = false;
};

StatusOr<uint64_t> NewestVersion(Receiver& receiver, const std::string& model,
                                 const WaitOptions& o) {
  DW_ASSIGN_OR_RETURN(const auto status, GetStatus(receiver, model, o.timeout()));
  const v1::ReceiverModelStatus& m = status.models(0);
  const v1::Identity& newest = m.newest().epoch() != 0 ? m.newest() : m.committed();
  if (newest.epoch() != 0) return newest.version();
  return Errorf(StatusCode::kFailedPrecondition,
                "{}: the receiver knows of no version yet; name one with --version", model);
}

// Reads `stream` until `reached` says so of a message.
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
  return Check(stream.Finish(), Receiver::kName, address);
}

StatusOr<Exit> Wait(const WaitOptions& o) {
  DW_ASSIGN_OR_RETURN(Receiver receiver, DialReceiver(o.receiver, o.timeout()));
  DW_ASSIGN_OR_RETURN(const std::string model, ChooseModel(receiver, o.model, o.timeout()));
  uint64_t version = o.version;
  if (version == 0) {
    DW_ASSIGN_OR_RETURN(version, NewestVersion(receiver, model, o));
  }
  grpc::ClientContext context;
  SetDeadline(context, o.timeout());
  Identity reached;
  bool by_later = false;  // some engine serves a later version
  const auto enough = [&](const v1::Identity& id) {
    reached = FromProto(id);
    return !reached.empty() && reached.id.version >= version;
  };
  if (o.served) {
    v1::WatchServedRequest request;
    request.set_model(model);
    const auto stream = receiver.stub->WatchServed(&context, request);
    const auto by_each = [&](const v1::ServedInfo& s) {
      by_later = s.all().epoch() == 0;
      return enough(s.oldest());
    };
    DW_RETURN_IF_ERROR(Until(*stream, context, by_each, o.receiver));
  } else {
    v1::WatchReceiverVersionsRequest request;
    request.set_model(model);
    const auto stream = receiver.stub->WatchVersions(&context, request);
    DW_RETURN_IF_ERROR(Until(
        *stream, context, [&](const v1::CommitInfo& c) { return enough(c.id()); }, o.receiver));
  }
  if (o.json) {
    PrintJson({{"model", model},
               {"event", o.served ? "served" : "committed"},
               {"id", IdentityJson(reached)}});
  } else {
    std::printf("%s: %s%s %s\n", model.c_str(), DescribeFully(reached).c_str(),
                by_later ? ", or a later one," : "",
                o.served ? "served by all engines" : "committed");
  }
  return Exit::kOk;
}

}  // namespace

void DeclareWait(CLI::App& app, Run* run) {
  auto o = std::make_shared<WaitOptions>();
  CLI::App* sub = app.add_subcommand(
      "wait", "Wait until a receiver has committed a version, or engines serve it");
  sub->add_option("--version", o->version,
                  "This version or a later one; default: the newest that the receiver knows of")
      ->type_name("N")
      ->check(Quiet(CLI::PositiveNumber));
  sub->add_flag("--served", o->served,
                "Until each engine of the receiver serves it, or a later one");
  o->AddReceiver(*sub);
  o->AddModel(*sub, "the only one there is");
  o->AddTimeout(*sub, 0, "Give up after this long; 0: never");
  o->AddJson(*sub);
  sub->callback([o, run] { *run = [o] { return Wait(*o); }; });
}

}  // namespace deltawire::cli
