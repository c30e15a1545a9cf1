#include "sender/agent/status_page.h"

#include <algorithm>

#include "common/base/human.h"
#include "common/base/versions_behind.h"
#include "common/metrics/chart.h"
#include "common/metrics/fleet.h"
#include "common/metrics/page.h"
#include "sender/agent/layer_density.h"

namespace deltawire::sender {
namespace {

using metrics::Cell;
using metrics::Page;
using Entry = VersionHistory::Entry;

Cell Changed(const VersionInfo& v) {
  return Cell::Share(static_cast<double>(v.changed_elements), static_cast<double>(v.elements));
}

void ShowNewest(const Model& model, const VersionInfo& v, const Agent& agent, Page& page) {
  const PullDesk::Counts pulls = agent.desk().CountsOf(model.name());
  std::vector<std::pair<std::string, Cell>> facts = {
      {"newest", Cell::Version(v.identity)},
      {"published", Cell::Seconds(std::max(
                        0.0, 1e-9 * static_cast<double>(UnixNanos() - v.published_unix_nanos)))},
      {"changed", Changed(v)},
      {"delta", Cell::Bytes(v.delta_bytes)},
      {"whole chunks", Cell::Bytes(v.full_bytes)},
      {"model", Cell::Bytes(v.model_bytes)},
      {"delta log", Cell::Bytes(model.store().log_bytes())},
      {"pulls now", Cell::Count(pulls.active)},
      {"sent", Cell::Bytes(pulls.bytes_sent)}};
  facts[1].second.text += " ago";
  page.Facts(fmt::format("newest-{}", model.name()), facts);
  if (model.damaged_chunks() > 0) {
    page.Note(
        fmt::format("{} chunks are corrupt in this sender's memory and are not sent until a "
                    "version in which the trainer writes their tensors.",
                    model.damaged_chunks()));
  }
}

/// Adds a model's verdict.
void Judge(const Model& model, const Agent& agent, metrics::Verdict& verdict) {
  const std::string& name = model.name();
  const auto state = model.published();
  if (state == nullptr) return verdict.AddWait(fmt::format("{} has no version yet", name));
  const Identity& newest = state->info.identity;
  if (model.damaged_chunks() > 0) {
    verdict.AddFailure(fmt::format("{}: {} chunks are corrupt", name, model.damaged_chunks()));
  }
  const std::vector<ReceiverView> receivers = agent.desk().attachments().Receivers(name);
  size_t behind = 0;
  for (const ReceiverView& view : receivers) {
    if (view.report.phase == ReceiverPhase::kFailed) {
      verdict.AddFailure(fmt::format("receiver {}: {}", view.id, view.report.message));
    } else if (VersionsBehind(view.report.committed, newest) > 0) {
      ++behind;
    }
  }
  if (receivers.empty()) {
    verdict.AddWait(
        fmt::format("{} is at {}, and no receiver is attached", name, ToString(newest)));
  } else if (behind > 0) {
    verdict.AddWait(fmt::format("{} of {} receivers of {} have yet to commit {}", behind,
                                receivers.size(), name, ToString(newest)));
  } else {
    verdict.AddGood(fmt::format(
        "{} is at {} here and at {}", name, ToString(newest),
        receivers.size() == 1 ? "1 receiver" : fmt::format("{} receivers", receivers.size())));
  }
}

std::string VersionsChart(const std::vector<Entry>& recent) {
  metrics::Steps chart{
      "Versions", "version", {"published", "committed by the last receiver"}, {{}, {}}};
  for (const Entry& e : recent) {
    const uint64_t number = e.info.id().version;
    const std::string name = ToString(e.info.id());
    chart.steps[0].push_back({e.info.published_unix_nanos, number, name + " published"});
    if (e.receivers == 0) continue;
    const auto delivered = static_cast<int64_t>(e.delivered_seconds * 1e9);
    chart.steps[1].push_back({e.info.ready_unix_nanos + delivered, number,
                              fmt::format("{} committed by {} receivers after {}", name,
                                          e.receivers, HumanSeconds(e.delivered_seconds))});
  }
  // A slow receiver may commit a version after a fast one has committed the next.
  std::stable_sort(chart.steps[1].begin(), chart.steps[1].end(),
                   [](const auto& a, const auto& b) { return a.unix_nanos < b.unix_nanos; });
  return StepsChart(chart);
}

std::string BytesOf(const std::vector<Entry>& recent) {
  metrics::Columns chart{"Bytes to send", {"delta", "whole chunks", "the whole model"}, {}};
  for (const Entry& e : recent) {
    const VersionInfo& v = e.info;
    chart.columns.push_back({std::to_string(v.id().version),
                             ToString(v.id()),
                             {static_cast<double>(v.delta_bytes), static_cast<double>(v.full_bytes),
                              static_cast<double>(v.model_bytes)}});
  }
  return BytesChart(chart);
}

std::string StagesOf(const std::vector<Entry>& recent) {
  metrics::Columns chart{"Ready to committed, by the last receiver",
                         {"diff", "rest of publish", "on the way", "transfer", "apply and commit"},
                         {}};
  for (const Entry& e : recent) {
    const VersionInfo& v = e.info;
    const PullStats& pull = e.slowest;
    // Events, the pull's opening, and the report of the commit.
    const double way =
        e.delivered_seconds - v.publish_seconds - pull.transfer_seconds - pull.apply_seconds;
    chart.columns.push_back(
        {std::to_string(v.id().version),
         ToString(v.id()),
         {v.diff_seconds, std::max(0.0, v.publish_seconds - v.diff_seconds),
          e.receivers == 0 ? 0 : std::max(0.0, way), pull.transfer_seconds, pull.apply_seconds}});
  }
  return SecondsChart(chart);
}

std::string DensityChart(const LayerDensity& density, const StateId& id) {
  metrics::Heat chart{fmt::format("Changed elements, {}", ToString(id)),
                      "layer",
                      density.parts,
                      {},
                      density.ratios};
  for (uint32_t i = 0; i < density.layers; ++i) chart.columns.push_back(std::to_string(i));
  return HeatChart(chart);
}

LayerDensity DensityOf(const Model& model, const Published& state) {
  std::vector<TensorDensity> tensors;
  for (size_t t = 0; state.tensors != nullptr && t < state.tensors->size(); ++t) {
    const ChunkRange chunks{model.chunks().first_of_tensor(t), model.chunks().end_of_tensor(t)};
    if (!model.owned().Meets(chunks)) continue;
    const TensorMeta& meta = model.layout().tensor(t);
    tensors.push_back({meta.name, (*state.tensors)[t].changed_elements,
                       model.layout().bytes(t) / DTypeBytes(meta.dtype)});
  }
  return DensityByLayer(tensors);
}

void ShowVersions(const Model& model, const std::vector<Entry>& recent, Page& page) {
  std::vector<metrics::Row> rows;
  for (auto e = recent.rbegin(); e != recent.rend(); ++e) {
    const VersionInfo& v = e->info;
    const bool delivered = e->receivers > 0;
    rows.push_back(
        {Cell::Word(fmt::format("{}{}", ToString(v.id()), v.rollback ? ", rolled back" : "")),
         Changed(v), Cell::Bytes(v.delta_bytes), Cell::Bytes(v.full_bytes),
         Cell::Seconds(v.trainer_wait_seconds), Cell::Seconds(v.offload_seconds),
         Cell::Seconds(v.diff_seconds), Cell::Seconds(v.publish_seconds), Cell::Count(e->receivers),
         delivered ? Cell::Seconds(e->delivered_seconds) : Cell::None(), Cell::Trace(v.identity)});
  }
  page.Table(fmt::format("versions-{}", model.name()),
             {"version", "changed", "delta", "whole chunks", "trainer waited", "offload", "diff",
              "publish", "receivers", "ready to committed", "trace"},
             rows);
}

void ShowModel(const Model& model, const Agent& agent, Page& page) {
  page.Heading(fmt::format("Model {}", model.name()));
  const auto state = model.published();
  if (state == nullptr) {
    page.Note("No version is published yet.");
  } else {
    ShowNewest(model, state->info, agent, page);
  }
  page.Heading(fmt::format("Receivers of {}", model.name()));
  std::vector<metrics::FleetMember> members;
  for (const ReceiverView& view : agent.desk().attachments().Receivers(model.name())) {
    members.push_back(metrics::FleetMemberOf(view));
  }
  ShowFleet(page, fmt::format("receivers-{}", model.name()),
            state == nullptr ? Identity{} : state->info.identity, std::move(members));
  if (state == nullptr) return;

  page.Heading(fmt::format("Versions of {}", model.name()));
  const std::vector<Entry> recent = model.publisher().history().recent();
  if (recent.empty()) return page.Note("None was published since this sender started.");
  const LayerDensity density = DensityOf(model, *state);
  page.Charts({VersionsChart(recent), StagesOf(recent), BytesOf(recent),
               DensityChart(density, state->info.id())});
  if (density.more_parts > 0) {
    page.Note(fmt::format("Layers have {} more parts.", density.more_parts));
  }
  ShowVersions(model, recent, page);
}

}  // namespace

std::function<std::string()> StatusPage(const Agent& agent, std::string address) {
  return [&agent, address = std::move(address), started = SteadyClock::now()] {
    const auto models = agent.models().All();
    metrics::Verdict verdict;
    if (models.empty()) verdict.AddWait("no model is registered yet");
    for (const auto& model : models) Judge(*model, agent, verdict);
    Page page(fmt::format("deltawire sender {}", address), SecondsSince(started), verdict);
    if (models.empty()) {
      page.Note("No model is registered yet: a trainer or `deltawire publish` registers one.");
    }
    for (const auto& model : models) ShowModel(*model, agent, page);
    return page.Finish();
  };
}

}  // namespace deltawire::sender
