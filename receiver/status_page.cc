#include "receiver/status_page.h"

#include <algorithm>

#include "common/base/human.h"
#include "common/base/versions_behind.h"
#include "common/metrics/chart.h"
#include "common/metrics/fleet.h"
#include "common/metrics/page.h"
#include "receiver/daemon.h"

namespace deltawire::receiver {
namespace {

using metrics::Cell;
using metrics::Page;

void ShowState(const ReplicaStatus& s, const std::string& model, Page& page) {
  page.Heading(fmt::format("Model {}", model));
  const bool pulled = s.last_pull.seconds > 0;
  page.Facts(fmt::format("state-{}", model),
             {{"committed", Cell::Version(s.committed)},
              {"newest", Cell::Version(s.newest)},
              {"versions behind", Cell::Count(VersionsBehind(s.committed, s.newest))},
              {"phase", Cell::Word(ToString(s.phase))},
              {"model", Cell::Bytes(s.model_bytes)},
              {"weight files", Cell::Count(s.buffers)},
              {"last pull", pulled ? Cell::Bytes(s.last_pull.payload_bytes) : Cell::None()},
              {"took", pulled ? Cell::Seconds(s.last_pull.seconds) : Cell::None()},
              {"commits", Cell::Count(s.commits)},
              {"received", Cell::Bytes(s.bytes_received)},
              {"repaired chunks", Cell::Count(s.repaired_chunks)}});
  if (!s.message.empty()) page.Note(s.message);
  if (!s.readers.empty()) page.Note(fmt::format("An update waits for {}.", s.readers));
}

void Judge(const EngineDriver::View& e, const std::string& model, metrics::Verdict& verdict) {
  const std::string name = fmt::format("engine {} of {}", e.name, model);
  switch (e.state) {
    case EngineState::kWaiting:
      return;  // the model's own state says why
    case EngineState::kServing:
      return verdict.AddGood(fmt::format("{} serves {}", name, ToString(e.served)));
    case EngineState::kPreparing:
    case EngineState::kUpdating:
    case EngineState::kAsleep:
      return verdict.AddWait(fmt::format("{} is {}", name, ToString(e.state)));
    case EngineState::kUnreachable:
    case EngineState::kRetrying:
    case EngineState::kPaused:
    case EngineState::kBehind:
    case EngineState::kOut:
      return verdict.AddFailure(fmt::format("{} is {}{}", name, ToString(e.state),
                                            e.error.empty() ? "" : ": " + e.error));
  }
}

/// Adds the main news of a model.
void Judge(const ReplicaStatus& s, const std::string& model, metrics::Verdict& verdict) {
  const uint64_t behind = VersionsBehind(s.committed, s.newest);
  if (s.phase == ReceiverPhase::kFailed) {
    verdict.AddFailure(fmt::format("{}: {}", model, s.message));
  } else if (s.phase == ReceiverPhase::kWaitingForVersion) {
    verdict.AddWait(fmt::format("{}: {}", model, s.message));
  } else if (!s.attached) {
    verdict.AddWait(fmt::format("{} is not attached to its sender", model));
  } else if (!s.readers.empty()) {
    verdict.AddWait(fmt::format("an update of {} waits for {}", model, s.readers));
  } else if (s.committed.empty()) {
    verdict.AddWait(fmt::format("{} has no version here yet ({})", model, ToString(s.phase)));
  } else if (behind > 0) {
    verdict.AddWait(fmt::format("{} is {}, {} behind {}", model, ToString(s.phase),
                                behind == 1 ? "1 version" : fmt::format("{} versions", behind),
                                ToString(s.newest)));
  } else {
    verdict.AddGood(fmt::format("{} is at {}", model, ToString(s.committed)));
  }
}

void ShowUpstreams(const ReplicaStatus& s, const std::string& model, Page& page) {
  std::vector<metrics::Row> rows;
  for (const AgentView& a : s.agents) {
    rows.push_back({Cell::Word(a.address), Cell::Word(a.attached ? "attached" : "not attached"),
                    Cell::Version(a.newest), Cell::Bytes(a.owned_bytes),
                    Cell::Count(a.owned.size())});
  }
  page.Heading(fmt::format("Senders of {}", model));
  page.Table(fmt::format("senders-{}", model), {"sender", "state", "newest", "publishes", "chunks"},
             rows);
}

void ShowEngines(const Engines& engines, const ReplicaStatus& status, const std::string& model,
                 Page& page) {
  std::vector<metrics::Row> rows;
  for (const EngineDriver::View& e : engines.views()) {
    const bool says_so = e.state == EngineState::kPaused;
    rows.push_back({Cell::Word(e.name), Cell::Word(ToString(e.kind)),
                    Cell::Word(fmt::format("{}{}{}", ToString(e.state),
                                           e.served.empty() || e.verified ? "" : ", not verified",
                                           e.paused && !says_so ? ", paused" : "")),
                    Cell::Version(e.served),
                    Cell::Count(VersionsBehind(e.served, status.committed)), Cell::Count(e.updates),
                    Cell::Seconds(e.last_prepare_seconds), Cell::Seconds(e.last_pause_seconds),
                    Cell::Seconds(e.last_load_seconds), Cell::Count(e.failures),
                    Cell::Sentence(e.error.empty() ? "-" : e.error)});
  }
  page.Heading(fmt::format("Engines of {}", model));
  page.Table(fmt::format("engines-{}", model),
             {"engine", "kind", "state", "serves", "versions behind", "updates", "prepare", "pause",
              "load", "failures", "last failure"},
             rows);
}

void ShowServed(Relay& relay, const ReplicaStatus& status, const std::string& model, Page& page) {
  page.Heading(fmt::format("Receivers of {}", model));
  std::vector<metrics::FleetMember> members;
  for (const ReceiverView& view : relay.attachments().Receivers(model)) {
    members.push_back(metrics::FleetMemberOf(view));
  }
  ShowFleet(page, fmt::format("receivers-{}", model), status.committed, std::move(members));
}

void DrawCommits(const std::vector<Commit>& recent, Page& page) {
  metrics::Steps versions{"Versions", "version", {"committed"}, {{}}};
  metrics::Columns stages{"From the sender's notice to the commit",
                          {"queue", "transfer", "wait for readers", "apply", "commit"},
                          {}};
  metrics::Columns bytes{"Bytes received", {"deltas", "whole chunks"}, {}};
  for (const Commit& c : recent) {
    const std::string name = ToString(c.id), number = std::to_string(c.id.id.version);
    const CommitTimes& t = c.times;
    const uint64_t whole = c.stats.forms.bytes[FormCounts::kRaw];
    versions.steps[0].push_back({c.unix_nanos, c.id.id.version, name + " committed"});
    stages.columns.push_back({number, name, {t.queue, t.transfer, t.readers, t.apply, t.commit}});
    bytes.columns.push_back(
        {number,
         name,
         {static_cast<double>(c.stats.payload_bytes - whole), static_cast<double>(whole)}});
  }
  page.Charts({StepsChart(versions), SecondsChart(stages), BytesChart(bytes)});
}

void ShowCommits(const std::vector<Commit>& recent, const std::string& model, Page& page) {
  page.Heading(fmt::format("Versions of {}", model));
  if (recent.empty()) return page.Note("None was committed since this receiver started.");
  DrawCommits(recent, page);
  std::vector<metrics::Row> rows;
  for (auto c = recent.rbegin(); c != recent.rend(); ++c) {
    const CommitTimes& t = c->times;
    rows.push_back({Cell::Version(c->id), Cell::Bytes(c->stats.payload_bytes),
                    Cell::Count(c->stats.chunks_full), Cell::Count(c->stats.chunks_delta),
                    Cell::Seconds(t.queue), Cell::Seconds(t.ahead), Cell::Seconds(t.transfer),
                    Cell::Seconds(t.stage), Cell::Seconds(t.readers), Cell::Seconds(t.apply),
                    Cell::Seconds(t.commit), Cell::Seconds(c->stats.seconds), Cell::Trace(c->id)});
  }
  page.Table(fmt::format("commits-{}", model),
             {"version", "received", "whole chunks", "delta chunks", "queue", "ahead", "transfer",
              "stage", "readers", "apply", "commit", "pull", "trace"},
             rows);
}

}  // namespace

std::function<std::string()> StatusPage(const Daemon& daemon) {
  return [&daemon, started = SteadyClock::now()] {
    metrics::Verdict verdict;
    for (const Replica* replica : daemon.Replicas()) {
      const std::string& model = replica->options().model;
      Judge(replica->status(), model, verdict);
      const Engines* const engines = daemon.EnginesOf(model);
      if (engines == nullptr) continue;
      for (const EngineDriver::View& e : engines->views()) Judge(e, model, verdict);
    }
    Page page(fmt::format("deltawire receiver {}", daemon.receiver_id()), SecondsSince(started),
              verdict);
    for (const Replica* replica : daemon.Replicas()) {
      const std::string& model = replica->options().model;
      const ReplicaStatus status = replica->status();
      ShowState(status, model, page);
      ShowUpstreams(status, model, page);
      const Engines* const engines = daemon.EnginesOf(model);
      if (engines != nullptr) ShowEngines(*engines, status, model, page);
      if (daemon.relay() != nullptr) ShowServed(*daemon.relay(), status, model, page);
      ShowCommits(replica->commits().recent(), model, page);
    }
    return page.Finish();
  };
}

}  // namespace deltawire::receiver
