#include "receiver/status_page.h"

#include <algorithm>

#include "common/base/human.h"
#include "common/base/trace.h"
#include "common/base/versions_behind.h"
#include "common/metrics/page.h"
#include "receiver/daemon.h"

namespace deltawire::receiver {
namespace {

using metrics::Page;
using Cell = Page::Cell;

std::string TraceText(const Identity& id) { return fmt::format("{:016x}", TraceOf(id).value); }

void ShowState(const ReplicaStatus& s, const std::string& model, Page& page) {
  page.Table(fmt::format("state-{}", model),
             {"committed", "trace", "newest", "versions behind", "phase", "attached", "size",
              "buffers", "commits", "received", "repaired chunks", "failed pulls"},
             {{Page::Text(ToString(s.committed)), Page::Text(TraceText(s.committed)),
               Page::Text(ToString(s.newest)), Page::Count(VersionsBehind(s.committed, s.newest)),
               Page::Text(std::string(ToString(s.phase))), Page::Text(s.attached ? "yes" : "no"),
               Page::Bytes(s.model_bytes), Page::Count(s.buffers), Page::Count(s.commits),
               Page::Bytes(s.bytes_received), Page::Count(s.repaired_chunks),
               Page::Count(s.pull_failures)}});
  if (!s.message.empty()) page.Note(s.message);
  if (!s.readers.empty()) page.Note(fmt::format("An update waits for {}", s.readers));
}

void ShowCommits(const Replica& replica, Page& page) {
  const std::vector<Commit> recent = replica.recent();
  if (recent.empty()) return page.Note("Nothing was committed since the receiver started.");
  std::vector<Page::Column> stages, bytes;
  std::vector<std::vector<Cell>> rows;
  for (const Commit& c : recent) {
    const std::string name = ToString(c.id);
    const CommitTimes& t = c.times;
    stages.push_back({name, {t.queue, t.transfer, t.readers, t.apply, t.commit}});
    const uint64_t whole = c.stats.forms.bytes[FormCounts::kRaw];
    bytes.push_back(
        {name, {static_cast<double>(c.stats.payload_bytes - whole), static_cast<double>(whole)}});
    rows.push_back({Page::Text(name), Page::Text(TraceText(c.id)),
                    Page::Bytes(c.stats.payload_bytes), Page::Count(c.stats.chunks_full),
                    Page::Count(c.stats.chunks_delta), Page::Seconds(t.queue),
                    Page::Seconds(t.transfer), Page::Seconds(t.stage), Page::Seconds(t.readers),
                    Page::Seconds(t.apply), Page::Seconds(t.commit),
                    Page::Seconds(c.stats.seconds)});
  }
  page.Bars("First heard of to committed", {"queue", "transfer", "readers", "apply", "commit"},
            stages, Page::Unit::kSeconds);
  page.Bars("What came", {"deltas", "whole chunks"}, bytes, Page::Unit::kBytes);
  std::reverse(rows.begin(), rows.end());
  page.Table(fmt::format("commits-{}", replica.options().model),
             {"version", "trace", "came", "whole chunks", "by delta", "queue", "transfer", "stage",
              "readers", "apply", "commit", "pull"},
             rows);
}

void ShowEngines(const Engines& engines, const ReplicaStatus& status, const std::string& model,
                 Page& page) {
  std::vector<std::vector<Cell>> rows;
  for (const EngineDriver::View& e : engines.views()) {
    rows.push_back({Page::Text(e.name), Page::Text(std::string(ToString(e.kind))),
                    Page::Text(fmt::format("{}{}", ToString(e.state), e.paused ? ", paused" : "")),
                    Page::Text(ToString(e.served)),
                    Page::Count(VersionsBehind(e.served, status.committed)), Page::Count(e.updates),
                    Page::Count(e.failures), Page::Seconds(e.last_prepare_seconds),
                    Page::Seconds(e.last_pause_seconds), Page::Seconds(e.last_load_seconds),
                    Page::Text(e.error)});
  }
  page.Heading(fmt::format("Engines of {}", model));
  page.Table(fmt::format("engines-{}", model),
             {"engine", "kind", "state", "serves", "versions behind", "updates", "failures",
              "prepare", "pause", "load", "last failure"},
             rows);
}

}  // namespace

std::function<std::string()> StatusPage(const Daemon& daemon) {
  return [&daemon] {
    Page page(fmt::format("deltawire receiver {}", daemon.receiver_id()));
    page.Note(fmt::format("deltawire {}. Reload for newer figures.", DELTAWIRE_VERSION));
    for (const Replica* replica : daemon.Replicas()) {
      const std::string& model = replica->options().model;
      const ReplicaStatus status = replica->status();
      page.Heading(fmt::format("Model {}", model));
      ShowState(status, model, page);
      ShowCommits(*replica, page);
      const Engines* const engines = daemon.EnginesOf(model);
      if (engines != nullptr) ShowEngines(*engines, status, model, page);
    }
    return page.Finish();
  };
}

}  // namespace deltawire::receiver
