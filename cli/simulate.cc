// The simulate command: computes how long a version takes from the trainer to every receiver of a
// fleet, the traffic on each link, the bottleneck, and the cost. It starts nothing and dials no
// daemon.
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/output.h"
#include "common/base/human.h"
#include "common/plan/predict.h"

namespace deltawire::cli {
namespace {

using plan::Fleet;
using plan::Forecast;
using plan::Hop;
using plan::Prediction;

struct SimulateOptions : Common {
  std::string file;
  bool whole = false;
};

uint64_t Whole(double n) { return static_cast<uint64_t>(n + 0.5); }

std::string From(const Prediction& p, const Hop& hop) {
  return hop.upstream < 0 ? "trainer" : p.hops[static_cast<size_t>(hop.upstream)].name;
}

Json StageJson(const plan::StageTime& s) {
  return {{"stage", std::string(ToString(s.stage))},
          {"at", s.at},
          {"begin_seconds", s.begin},
          {"seconds", s.seconds},
          {"bound_by", s.bound_by}};
}

Json StagesJson(const std::vector<plan::StageTime>& stages) {
  Json all = Json::array();
  for (const plan::StageTime& s : stages) all.push_back(StageJson(s));
  return all;
}

Json ReceiversJson(const Prediction& p, const Forecast& f) {
  Json all = Json::array();
  for (size_t h = 0; h < p.hops.size(); ++h) {
    const Hop& hop = p.hops[h];
    const plan::PullCost& pull = f.pulls[h];
    Json chunks, bytes;
    for (size_t form = 0; form < kernels::kForms; ++form) {
      chunks[kernels::kFormNames[form]] = Whole(pull.chunks[form]);
      bytes[kernels::kFormNames[form]] = Whole(pull.bytes[form]);
    }
    all.push_back({{"name", hop.name},
                   {"upstream", From(p, hop)},
                   {"receivers", Whole(hop.members)},
                   {"depth", hop.depth},
                   {"committed_seconds", f.timeline.hops[h].committed},
                   {"payload_bytes", Whole(pull.payload_bytes)},
                   {"wire_bytes", Whole(pull.wire_bytes)},
                   {"link_bytes_per_second", f.link_bytes_per_s[h]},
                   {"chunks", chunks},
                   {"bytes", bytes},
                   {"stages", StagesJson(f.timeline.hops[h].stages)}});
  }
  return all;
}

Json ForecastJson(const Prediction& p, const Forecast& f) {
  Json links = Json::array(), nodes = Json::array();
  for (const plan::LinkUse& l : f.timeline.links) {
    links.push_back({{"name", l.name},
                     {"count", Whole(l.count)},
                     {"payload_bytes_per_second", l.rate},
                     {"bytes", Whole(l.bytes)},
                     {"busy_seconds", l.busy_seconds},
                     {"price", l.price}});
  }
  for (const plan::NodeUse& n : f.timeline.nodes) {
    nodes.push_back({{"name", n.name},
                     {"count", Whole(n.count)},
                     {"cores", n.cores},
                     {"core_seconds", n.core_seconds}});
  }
  return {{"seconds", f.timeline.seconds},
          {"changed_elements", Whole(f.pulls.empty() ? 0 : f.pulls[0].changed_elements)},
          {"last", p.hops[f.timeline.last].name},
          {"critical", StageJson(f.path[f.critical])},
          {"path", StagesJson(f.path)},
          {"receivers", ReceiversJson(p, f)},
          {"links", links},
          {"nodes", nodes},
          {"price", f.price}};
}

void PrintPrediction(const Fleet& fleet, const Prediction& p) {
  PrintJson({{"model",
              {{"name", fleet.model.name},
               {"bytes", Whole(p.model.bytes)},
               {"elements", Whole(p.model.elements)},
               {"tensors", fleet.model.tensors},
               {"chunks", p.model.chunks}}},
             {"density", fleet.changes.density},
             {"delta", ForecastJson(p, p.delta)},
             {"full", ForecastJson(p, p.full)}});
}

/// Returns "fast", or "fast 96 %, raw 4 %" by chunks.
std::string FormsText(const plan::PullCost& pull) {
  std::string text;
  for (size_t form = 0; form < kernels::kForms; ++form) {
    if (pull.chunks[form] <= 0) continue;
    const std::string name = kernels::kFormNames[form];
    if (pull.chunks[form] >= pull.frames) return name;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name,
                        Percent(pull.chunks[form], pull.frames));
  }
  return text.empty() ? "-" : text;
}

std::string ForecastStagesText(const Forecast& f) {
  Table table(
      {{"STAGE"}, {"AT"}, {"BEGINS", Align::kRight}, {"TAKES", Align::kRight}, {"BOUND BY"}});
  for (size_t i = 0; i < f.path.size(); ++i) {
    const plan::StageTime& s = f.path[i];
    table.Add({std::string(ToString(s.stage)), s.at, HumanSeconds(s.begin),
               HumanSeconds(s.seconds) + (i == f.critical ? " *" : "  "),
               s.bound_by.empty() ? "-" : s.bound_by});
  }
  return table.Text();
}

std::string ForecastReceiversText(const Prediction& p, const Forecast& f) {
  Table table({{"RECEIVERS"},
               {"NUMBER", Align::kRight},
               {"FROM"},
               {"EACH PULLS", Align::kRight},
               {"AS"},
               {"COMMITTED", Align::kRight}});
  for (size_t h = 0; h < p.hops.size(); ++h) {
    table.Add({p.hops[h].name, Grouped(Whole(p.hops[h].members)), From(p, p.hops[h]),
               HumanBytes(Whole(f.pulls[h].payload_bytes)), FormsText(f.pulls[h]),
               HumanSeconds(f.timeline.hops[h].committed)});
  }
  return table.Text();
}

std::string ForecastLinksText(const Forecast& f) {
  Table table({{"LINK"},
               {"NUMBER", Align::kRight},
               {"PAYLOAD RATE", Align::kRight},
               {"EACH CARRIES", Align::kRight},
               {"BUSY FOR", Align::kRight},
               {"PRICE OF ALL", Align::kRight}});
  for (const plan::LinkUse& l : f.timeline.links) {
    table.Add({l.name, Grouped(Whole(l.count)), HumanRate(l.rate), HumanBytes(Whole(l.bytes)),
               HumanSeconds(l.busy_seconds), l.price > 0 ? fmt::format("{:.4g}", l.price) : "-"});
  }
  return table.rows() == 0 ? "" : "\n" + table.Text();
}

std::string ForecastNodesText(const Fleet& fleet, const Forecast& f) {
  Table table({{"NODES"},
               {"NUMBER", Align::kRight},
               {"CORES", Align::kRight},
               {"EACH COMPUTES", Align::kRight},
               {"OF A STEP'S CORES", Align::kRight}});
  for (const plan::NodeUse& n : f.timeline.nodes) {
    table.Add({n.name, Grouped(Whole(n.count)), std::to_string(n.cores),
               HumanSeconds(n.core_seconds),
               Percent(n.core_seconds, fleet.step_seconds * n.cores)});
  }
  return table.Text();
}

std::string MostText(const Forecast& f) {
  const plan::StageTime& most = f.path[f.critical];
  return fmt::format("{} at {}, {}{}", ToString(most.stage), most.at, HumanSeconds(most.seconds),
                     most.bound_by.empty() ? "" : ", bound by " + most.bound_by);
}

void Show(const Fleet& fleet, const Prediction& p, const Forecast& f) {
  std::printf("%s from ready to the last commit, at %s\nMost of it: %s\n\n",
              HumanSeconds(f.timeline.seconds).c_str(), p.hops[f.timeline.last].name.c_str(),
              MostText(f).c_str());
  std::printf("%s\n%s%s\n%s", ForecastStagesText(f).c_str(), ForecastReceiversText(p, f).c_str(),
              ForecastLinksText(f).c_str(), ForecastNodesText(fleet, f).c_str());
  if (f.price <= 0) return;
  std::printf("\nA version's traffic costs %.4g", f.price);
  if (fleet.step_seconds > 0) {
    constexpr double kDay = 86400;
    std::printf(", a day's %.4g", f.price * kDay / fleet.step_seconds);
  }
  std::printf("\n");
}

StatusOr<Exit> Simulate(const SimulateOptions& o) {
  DW_ASSIGN_OR_RETURN(const Fleet fleet, plan::ReadFleet(o.file));
  DW_ASSIGN_OR_RETURN(const Prediction p, plan::Predict(fleet));
  if (o.json) {
    PrintPrediction(fleet, p);
    return Exit::kOk;
  }
  std::printf("%s: %s in %s chunks; %s of its elements change\n", fleet.model.name.c_str(),
              HumanBytes(Whole(p.model.bytes)).c_str(), Grouped(p.model.chunks).c_str(),
              Percent(fleet.changes.density, 1).c_str());
  std::printf("\nA delta: ");
  Show(fleet, p, p.delta);
  std::printf("\nThe whole model: ");
  if (o.whole) {
    Show(fleet, p, p.full);
    return Exit::kOk;
  }
  std::printf("%s\nMost of it: %s\n(--whole shows all of it)\n",
              HumanSeconds(p.full.timeline.seconds).c_str(), MostText(p.full).c_str());
  return Exit::kOk;
}

}  // namespace

void DeclareSimulate(CLI::App& app, Run* run) {
  auto o = std::make_shared<SimulateOptions>();
  CLI::App* sub = app.add_subcommand(
      "simulate", "Predict how long a version takes to a fleet's receivers, and what bounds it");
  sub->add_option("FLEET", o->file, "TOML file of the fleet (docs/scaling.md)")
      ->type_name("")
      ->required();
  sub->add_flag("--whole", o->whole, "Show the same for the first version, which goes whole");
  o->AddJson(*sub);
  sub->callback([o, run] { *run = [o] { return Simulate(*o); }; });
}

}  // namespace deltawire::cli
