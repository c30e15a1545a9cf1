#include "sender/agent/status_page.h"

#include <algorithm>
#include <map>
#include <optional>

#include "common/base/human.h"
#include "common/base/trace.h"
#include "common/base/versions_behind.h"
#include "common/metrics/page.h"

namespace deltawire::sender {
namespace {

using metrics::Page;
using Cell = Page::Cell;

// More rows than anybody reads; a fleet may have thousands of receivers.
constexpr size_t kMostReceivers = 1000;

std::string TraceText(const Identity& id) { return fmt::format("{:016x}", TraceOf(id).value); }

double Density(const VersionInfo& info) {
  return info.elements == 0
             ? 0
             : static_cast<double>(info.changed_elements) / static_cast<double>(info.elements);
}

void ShowNewest(const Model& model, const Agent& agent, Page& page) {
  const auto state = model.published();
  if (state == nullptr) return page.Note("Nothing is published yet.");
  const VersionInfo& info = state->info;
  const Agent::PullCounts pulls = agent.Pulls(model.name());
  page.Table(
      fmt::format("newest-{}", model.name()),
      {"version", "trace", "size", "changed", "delta", "whole chunks", "delta log", "active pulls",
       "sent", "damaged chunks"},
      {{Page::Text(ToString(info.id())), Page::Text(TraceText(info.identity)),
        Page::Bytes(info.model_bytes), Page::Ratio(Density(info)), Page::Bytes(info.delta_bytes),
        Page::Bytes(info.full_bytes), Page::Bytes(model.log_bytes()), Page::Count(pulls.active),
        Page::Bytes(pulls.bytes_sent), Page::Count(model.damaged_chunks())}});
}

void ShowVersions(const Model& model, Page& page) {
  const auto recent = model.history().recent();
  if (recent.empty()) {
    return page.Note("No version was published since the sender started.");
  }
  std::vector<Page::Column> stages, bytes;
  std::vector<std::vector<Cell>> rows;
  for (const VersionHistory::Entry& e : recent) {
    const VersionInfo& v = e.info;
    const PullStats& pull = e.slowest;
    const std::string name = ToString(v.id());
    // What is between the publish, the pull and the receiver's word of it.
    const double pulled = pull.transfer_seconds + pull.apply_seconds;
    const double between = std::max(0.0, e.delivered_seconds - v.publish_seconds - pulled);
    stages.push_back({name,
                      {v.diff_seconds, v.publish_seconds - v.diff_seconds,
                       e.receivers == 0 ? 0 : between, pull.transfer_seconds, pull.apply_seconds}});
    bytes.push_back(
        {name, {static_cast<double>(v.delta_bytes), static_cast<double>(v.full_bytes)}});
    rows.push_back({Page::Text(fmt::format("{}{}", name, v.rollback ? ", rolled back" : "")),
                    Page::Text(TraceText(v.identity)), Page::Ratio(Density(v)),
                    Page::Bytes(v.delta_bytes), Page::Bytes(v.full_bytes),
                    Page::Seconds(v.trainer_wait_seconds), Page::Seconds(v.offload_seconds),
                    Page::Seconds(v.diff_seconds), Page::Seconds(v.publish_seconds),
                    Page::Count(e.receivers), Page::Seconds(e.delivered_seconds)});
  }
  page.Bars("Ready to committed, at the receiver that was last",
            {"diff", "publish", "on the way", "transfer", "apply and commit"}, stages,
            Page::Unit::kSeconds);
  page.Bars("What a version takes", {"delta", "whole chunks"}, bytes, Page::Unit::kBytes);
  std::reverse(rows.begin(), rows.end());
  page.Table(fmt::format("versions-{}", model.name()),
             {"version", "trace", "changed", "delta", "whole chunks", "trainer waited", "offload",
              "diff", "publish", "receivers", "ready to committed"},
             rows);
}

/// A tensor's layer by its name, "model.layers.17.mlp.up_proj.weight": 17 and "mlp".
struct Place {
  uint32_t layer = 0;
  std::string part;
};
std::optional<Place> PlaceOf(const std::string& tensor) {
  constexpr std::string_view kLayers = "layers.";
  const size_t at = tensor.find(kLayers);
  if (at == std::string::npos) return std::nullopt;
  size_t end = at + kLayers.size();
  Place place;
  const size_t first = end;
  for (; end < tensor.size() && tensor[end] >= '0' && tensor[end] <= '9' && end < first + 6;
       ++end) {
    place.layer = place.layer * 10 + static_cast<uint32_t>(tensor[end] - '0');
  }
  if (end == first || end == tensor.size() || tensor[end] != '.') return std::nullopt;
  place.part = tensor.substr(end + 1, tensor.find('.', end + 1) - end - 1);
  return place;
}

void ShowLayers(const Model& model, Page& page) {
  constexpr uint32_t kMostLayers = 512;
  constexpr size_t kMostParts = 12;
  const auto state = model.published();
  if (state == nullptr || state->tensors == nullptr) return;
  struct Sum {
    double changed = 0, all = 0;
  };
  std::map<std::string, std::map<uint32_t, Sum>> parts;
  uint32_t layers = 0;
  for (size_t t = 0; t < state->tensors->size(); ++t) {
    const TensorMeta& meta = model.layout().tensor(t);
    const auto place = PlaceOf(meta.name);
    if (!place || place->layer >= kMostLayers) continue;
    if (parts.size() >= kMostParts && !parts.contains(place->part)) continue;
    Sum& sum = parts[place->part][place->layer];
    sum.changed += static_cast<double>((*state->tensors)[t].changed_elements);
    sum.all += static_cast<double>(model.layout().bytes(t) / DTypeBytes(meta.dtype));
    layers = std::max(layers, place->layer + 1);
  }
  if (layers < 2) return;
  std::vector<std::string> rows, columns;
  std::vector<double> ratios;
  for (uint32_t layer = 0; layer < layers; ++layer)
    columns.push_back(fmt::format("layer {}", layer));
  for (const auto& [part, sums] : parts) {
    rows.push_back(part);
    for (uint32_t layer = 0; layer < layers; ++layer) {
      const auto sum = sums.find(layer);
      const bool there = sum != sums.end() && sum->second.all > 0;
      ratios.push_back(there ? sum->second.changed / sum->second.all : -1);
    }
  }
  page.HeatMap(fmt::format("Changed elements by layer, {}", ToString(state->info.id())), rows,
               columns, ratios);
}

void ShowReceivers(const Model& model, const Agent& agent, Page& page) {
  const auto receivers = agent.attachments().Receivers(model.name());
  if (receivers.empty()) return page.Note("No receiver is attached.");
  const auto state = model.published();
  const Identity newest = state == nullptr ? Identity{} : state->info.identity;
  std::vector<std::vector<Cell>> rows;
  for (const ReceiverView& r : receivers) {
    if (rows.size() == kMostReceivers) break;
    const PullStats& pull = r.report.last_pull;
    rows.push_back({Page::Text(r.id), Page::Text(r.peer), Page::Text(ToString(r.report.committed)),
                    Page::Count(VersionsBehind(r.report.committed, newest)),
                    Page::Text(std::string(ToString(r.report.phase))),
                    Page::Seconds(r.attached_seconds), Page::Bytes(pull.payload_bytes),
                    Page::Seconds(pull.transfer_seconds), Page::Seconds(pull.apply_seconds),
                    Page::Text(r.report.message)});
  }
  page.Table(fmt::format("receivers-{}", model.name()),
             {"receiver", "from", "holds", "versions behind", "phase", "attached for", "last pull",
              "transfer", "apply", "last failure"},
             rows);
  if (receivers.size() > rows.size()) {
    page.Note(fmt::format("And {} more receivers: `deltawire status` lists them all.",
                          receivers.size() - rows.size()));
  }
}

}  // namespace

std::function<std::string()> StatusPage(const Agent& agent) {
  return [&agent] {
    Page page("deltawire sender");
    page.Note(fmt::format("deltawire {}. Reload for newer figures.", DELTAWIRE_VERSION));
    const auto models = agent.Models();
    if (models.empty()) page.Note("No model is registered yet.");
    for (const auto& model : models) {
      page.Heading(fmt::format("Model {}", model->name()));
      ShowNewest(*model, agent, page);
      ShowVersions(*model, page);
      ShowLayers(*model, page);
      page.Heading(fmt::format("Receivers of {}", model->name()));
      ShowReceivers(*model, agent, page);
    }
    return page.Finish();
  };
}

}  // namespace deltawire::sender
