#include "cli/top_screen.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>

#include "cli/output.h"
#include "cli/site_tree.h"
#include "cli/standing.h"
#include "cli/status_text.h"
#include "common/base/human.h"
#include "proto/convert.h"

namespace deltawire::cli {
namespace {

constexpr Align kRight = Align::kRight;
constexpr size_t kMostName = 24;  // columns for the name of a receiver or an engine, of 80
constexpr size_t kUsualColumns = 80;
constexpr size_t kMostFailures = 5;  // lines with failures, under the receivers

constexpr std::string_view kHelp[] = {
    "Keys",
    "  q, Ctrl-C   quit",
    "  m           the next model",
    "  s           sort receivers by: versions behind, slowest last pull, name, tree",
    "              (who follows whom: each under the one that it follows)",
    "  up, down    scroll through the receivers; also k, j, page up, page down, Home",
    "  space, p    freeze the picture, and thaw it; daemons and syncs are not touched",
    "  h, ?        this page, and back",
    "",
    "Columns",
    "  BEHIND      versions behind the sender; epoch, lineage: of another history;",
    "              BYTES: other bytes under the same number, which must never be",
    "  PULLED      payload of the last pull that was committed",
    "  TOOK        from the pull's opening to its commit; RATE: while bytes came",
    "  SLOWEST     the stage that took most of it",
    "  critical    the stage that took most of the time from the trainer's last write",
    "              to the commit of the slowest receiver",
};

std::string_view OrderName(TopOrder order) {
  switch (order) {
    case TopOrder::kBehind:
      return "behind";
    case TopOrder::kSlowest:
      return "slowest";
    case TopOrder::kName:
      return "name";
    case TopOrder::kTree:
      return "tree";
  }
  return "";
}

const v1::SenderModelStatus* ModelOf(const SenderAnswer& sender, const std::string& name) {
  if (!sender.status.ok()) return nullptr;
  for (const v1::SenderModelStatus& m : sender.status->models()) {
    if (m.model() == name) return &m;
  }
  return nullptr;
}

Standing StandingAt(const v1::ReceiverInfo& r, const v1::SenderModelStatus& m) {
  const bool part = m.owned_chunks() < m.chunks();
  return StandingOf(FromProto(r.committed()), FromProto(m.newest().id()), part);
}

// Returns whether the receiver has the model's newest version.
bool Has(const v1::ReceiverInfo& r, const v1::SenderModelStatus& m) {
  return r.model() == m.model() && StandingAt(r, m).relation == Relation::kSame;
}

struct ReceiverRow {
  const v1::ReceiverInfo* receiver;
  Standing standing;
  size_t depth = 0;  ///< in the tree
};

// Returns a sort key: highest for other bytes, then other histories, then versions behind.
std::tuple<int, uint64_t> Trouble(const Standing& s) {
  switch (s.relation) {
    case Relation::kOtherBytes:
      return {4, 0};
    case Relation::kOtherLineage:
    case Relation::kAhead:
      return {3, s.versions};
    case Relation::kBehind:
      return {2, s.versions};
    case Relation::kUnknown:
      return {1, 0};
    case Relation::kSame:
      return {0, 0};
  }
  return {0, 0};
}

std::vector<ReceiverRow> RowsOf(const TopLook& look, const std::string& model, TopOrder order) {
  std::vector<ReceiverRow> rows;
  for (const SenderAnswer& s : look.senders) {
    const v1::SenderModelStatus* const m = ModelOf(s, model);
    if (m == nullptr) continue;
    std::vector<const v1::ReceiverInfo*> attached;
    for (const v1::ReceiverInfo& r : s.attached.receivers()) {
      if (r.model() == model) attached.push_back(&r);
    }
    for (const TreeRow& row : TreeOf(attached)) {
      rows.push_back({row.receiver, StandingAt(*row.receiver, *m), row.depth});
    }
  }
  if (order == TopOrder::kTree) return rows;
  std::ranges::stable_sort(rows, {},
                           [](const ReceiverRow& r) { return r.receiver->receiver_id(); });
  if (order == TopOrder::kBehind) {
    std::ranges::stable_sort(rows, std::greater<>(),
                             [](const ReceiverRow& r) { return Trouble(r.standing); });
  }
  if (order == TopOrder::kSlowest) {
    std::ranges::stable_sort(rows, std::greater<>(), [](const ReceiverRow& r) {
      return r.receiver->last_pull().seconds();
    });
  }
  return rows;
}

class Picture {
 public:
  Picture(size_t rows, size_t columns) : rows_(rows), columns_(columns) {}

  size_t left() const { return rows_ - lines_.size(); }
  size_t MostName() const {
    return columns_ <= kUsualColumns ? kMostName : kMostName + (columns_ - kUsualColumns) / 3;
  }
  void Add(std::string_view text, TopStyle style = TopStyle::kPlain) {
    if (left() > 0) lines_.push_back({std::string(CutToWidth(text, columns_)), style});
  }
  /// Adds the table's title line and at most `most` rows from `first` on. Rows in `warned` are
  /// highlighted.
  void Add(const Table& table, size_t first, size_t most, const std::set<size_t>& warned) {
    const std::string text = table.Narrowed(columns_).Text();
    const size_t title_end = text.find('\n');
    Add(std::string_view(text).substr(0, title_end), TopStyle::kHeading);
    size_t begin = title_end + 1;
    for (size_t row = 0; begin < text.size(); ++row) {
      const size_t end = text.find('\n', begin);
      if (row >= first && row < first + most) {
        Add(std::string_view(text).substr(begin, end - begin),
            warned.contains(row) ? TopStyle::kWarning : TopStyle::kPlain);
      }
      begin = end + 1;
    }
  }
  /// Adds empty lines, so that `last` is at the bottom.
  std::vector<TopLine> Close(std::string_view last) {
    if (rows_ == 0) return {};
    lines_.resize(rows_ - 1);
    Add(last, TopStyle::kTitle);
    return std::move(lines_);
  }

 private:
  const size_t rows_, columns_;
  std::vector<TopLine> lines_;
};

// Returns the sender's payload rate in bytes a second since `before`, or "-" if it is unknown.
std::string RateText(const TopLook& now, const TopLook* before, const std::string& address,
                     const v1::SenderModelStatus& m) {
  if (before == nullptr) return "-";
  const double seconds = std::chrono::duration<double>(now.at - before->at).count();
  for (const SenderAnswer& s : before->senders) {
    const v1::SenderModelStatus* const old = s.address == address ? ModelOf(s, m.model()) : nullptr;
    if (old == nullptr || seconds <= 0 || m.bytes_sent() < old->bytes_sent()) continue;
    return HumanRate(static_cast<double>(m.bytes_sent() - old->bytes_sent()) / seconds);
  }
  return "-";
}

void AddSenders(Picture& picture, const TopLook& now, const TopLook* before,
                const std::string& model) {
  Table table({{"SENDER"},
               {"VERSION", kRight},
               {"ROOT", Align::kLeft, 0, 2},
               {"SIZE", kRight, 0, 1},
               {"CHANGED", kRight},
               {"DELTA", kRight},
               {"RATE", kRight},
               {"PULLS", kRight},
               {"RECEIVERS", kRight},
               {"LOG", kRight, 0, 3},
               {"SENT", kRight, 0, 2},
               {"CUT", kRight, 0, 3},
               {"NOW"}});
  std::set<size_t> warned;
  for (const SenderAnswer& s : now.senders) {
    const v1::SenderModelStatus* const m = ModelOf(s, model);
    if (m == nullptr) {
      warned.insert(table.rows());
      table.Add({s.address, "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-",
                 s.status.ok() ? "has no such model" : "no answer"});
      continue;
    }
    const v1::VersionInfo& v = m->newest();
    const bool any = v.id().epoch() != 0;
    if (m->damaged_chunks() > 0) warned.insert(table.rows());
    table.Add(
        {s.address, VersionText(v.id()), RootText(v.id().root()), HumanBytes(m->model_bytes()),
         any ? Percent(static_cast<double>(v.changed_elements()), static_cast<double>(v.elements()))
             : "-",
         any ? HumanBytes(v.delta_bytes() + v.full_bytes()) : "-",
         RateText(now, before, s.address, *m), std::to_string(m->active_pulls()),
         std::to_string(m->receivers()), HumanBytes(m->log_bytes()), HumanBytes(m->bytes_sent()),
         std::to_string(m->pulls_cut()),
         m->damaged_chunks() > 0        ? fmt::format("{} corrupt chunks", m->damaged_chunks())
         : m->offloading_version() == 0 ? "idle"
                                        : fmt::format("writing {}", m->offloading_version())});
  }
  picture.Add(table, 0, table.rows(), warned);
}

// PullStats' apply_seconds: the stages `apply` and `commit` of docs/operations.md.
constexpr std::string_view kAfterTransfer = "apply+commit";

std::string SlowestStage(const v1::PullStats& pull) {
  if (pull.seconds() <= 0) return "-";
  const bool transfer = pull.transfer_seconds() >= pull.apply_seconds();
  const double most = transfer ? pull.transfer_seconds() : pull.apply_seconds();
  return fmt::format("{} {:.0f} %", transfer ? "transfer" : kAfterTransfer,
                     100 * most / pull.seconds());
}

// Returns the receivers' last failures, one line each, in the rows' order.
std::vector<std::string> Failures(const std::vector<ReceiverRow>& rows) {
  std::vector<std::string> lines;
  for (const ReceiverRow& row : rows) {
    const v1::ReceiverInfo& r = *row.receiver;
    if (!r.message().empty()) lines.push_back(fmt::format("{}: {}", r.receiver_id(), r.message()));
  }
  return lines;
}

// Adds the receivers from `view.scroll` on, as many as fit above `kept` further lines.
void AddReceivers(Picture& picture, const std::vector<ReceiverRow>& rows, TopView& view,
                  size_t kept) {
  if (rows.empty()) {
    picture.Add("No receiver is attached.");
    return;
  }
  const bool tree = view.order == TopOrder::kTree;
  std::vector<Column> columns = {{"RECEIVER"}, {"VERSION", kRight}, {"BEHIND", kRight},
                                 {"PHASE"},    {"PULLED", kRight},  {"TOOK", kRight}};
  for (const char* name : {"RATE", "SLOWEST"}) {
    if (!tree) columns.push_back({name, std::string_view(name) == "RATE" ? kRight : Align::kLeft});
  }
  if (tree) columns.insert(columns.end(), {{"SITE"}, {"FOLLOWS"}});
  // Only where the terminal has room for them.
  columns.insert(columns.begin() + 6, {{"SERVED", kRight, 0, 1},
                                       {"FROM", Align::kLeft, 0, 2},
                                       {"ATTACHED", kRight, 0, 3},
                                       {"LINK", Align::kLeft, 0, 2}});
  Table table(columns);
  std::set<size_t> warned;
  for (const ReceiverRow& row : rows) {
    const v1::ReceiverInfo& r = *row.receiver;
    const v1::PullStats& pull = r.last_pull();
    if (std::get<0>(Trouble(row.standing)) > 2 || !r.message().empty()) warned.insert(table.rows());
    std::vector<std::string> cells = {
        std::string(
            CutToWidth(tree ? Indented({&r, row.depth}) : r.receiver_id(), picture.MostName())),
        VersionText(r.committed()),
        BehindText(row.standing),
        r.phase(),
        pull.seconds() > 0 ? HumanBytes(pull.payload_bytes()) : "-",
        pull.seconds() > 0 ? HumanSeconds(pull.seconds()) : "-"};
    if (tree) {
      cells.insert(cells.end(), {r.site().empty() ? "-" : r.site(), FollowsText(r)});
    } else {
      cells.push_back(
          pull.transfer_seconds() > 0
              ? HumanRate(static_cast<double>(pull.payload_bytes() -
                                              std::min(pull.ahead_bytes(), pull.payload_bytes())) /
                          pull.transfer_seconds())
              : "-");
      cells.push_back(SlowestStage(pull));
    }
    cells.insert(cells.begin() + 6,
                 {r.engines() > 0 ? VersionText(r.served()) : "-", PeerText(r.peer()),
                  HumanSeconds(r.attached_seconds()), LinkText(r.link())});
    table.Add(cells);
  }
  std::vector<std::string> failures = Failures(rows);
  if (picture.left() < kept + 1) return;
  failures.resize(std::min({failures.size(), kMostFailures, (picture.left() - kept - 1) / 2}));
  const size_t fit = picture.left() - kept - 1 - failures.size();
  // Scrolling stops at the last receiver, or the user would have to scroll back unseen.
  view.scroll = std::min(view.scroll, rows.size() > fit ? rows.size() - fit : 0);
  picture.Add(table, view.scroll, fit, warned);
  for (const std::string& line : failures) picture.Add(line, TopStyle::kWarning);
}

Table EnginesOf(const TopLook& now, const std::string& model, size_t most_name,
                std::set<size_t>& warned) {
  Table table({{"ENGINE"},
               {"KIND"},
               {"STATE"},
               {"SERVES", kRight},
               {"BEHIND", kRight},
               {"PAUSED FOR", kRight},
               {"UPDATES", kRight, 0, 1},
               {"FAILURES", kRight, 0, 1},
               {"LAST FAILURE"}});
  for (const ReceiverAnswer& r : now.receivers) {
    if (!r.status.ok()) continue;
    for (const v1::ReceiverModelStatus& m : r.status->models()) {
      if (m.model() != model) continue;
      for (const v1::EngineStatus& e : m.engines()) {
        if (!e.error().empty()) warned.insert(table.rows());
        table.Add({std::string(CutToWidth(e.name(), most_name)), e.kind(), e.state(),
                   VersionText(e.served()),
                   BehindText(StandingOf(FromProto(e.served()), FromProto(m.committed()))),
                   e.last_pause_seconds() > 0 ? HumanSeconds(e.last_pause_seconds()) : "-",
                   std::to_string(e.updates()), std::to_string(e.failures()),
                   e.error().empty() ? "-" : e.error()});
      }
    }
  }
  return table;
}

// Returns the daemons that did not answer, one line each.
std::vector<std::string> Silent(const TopLook& now) {
  std::vector<std::string> lines;
  for (const SenderAnswer& s : now.senders) {
    if (!s.status.ok()) lines.emplace_back(MessageOf(s.status.status()));
  }
  for (const ReceiverAnswer& r : now.receivers) {
    if (!r.status.ok()) lines.emplace_back(MessageOf(r.status.status()));
  }
  return lines;
}

std::string Footer(const TopView& view, size_t models, size_t receivers) {
  return fmt::format("q quit   {}s sort: {}   {}p {} picture   ? help",
                     models > 1 ? fmt::format("m model (of {})   ", models) : "",
                     OrderName(view.order), receivers > 0 ? "up, down scroll   " : "",
                     view.paused ? "thaw" : "freeze");
}

// Adds the newest version that a sender of the model has, and the receivers' progress on it.
void AddNewest(Picture& picture, const TopLook& now, const std::string& model) {
  for (const SenderAnswer& s : now.senders) {
    const v1::SenderModelStatus* const m = ModelOf(s, model);
    if (m == nullptr || m->newest().id().epoch() == 0) continue;
    const v1::VersionInfo& v = m->newest();
    const auto have = std::ranges::count_if(s.attached.receivers(),
                                            [&](const v1::ReceiverInfo& r) { return Has(r, *m); });
    picture.Add(fmt::format("Version {}, root {}: published {}, {} of {} receivers have it",
                            VersionText(v.id()), RootText(v.id().root()),
                            ClockText(v.published_unix_nanos()), have, m->receivers()));
    const std::string stages = StagesText(*m, s.attached);
    picture.Add(stages.empty()
                    ? fmt::format("  offload {}; publish {}", HumanSeconds(v.offload_seconds()),
                                  HumanSeconds(v.publish_seconds()))
                    : fmt::format("  offload {}; {}", HumanSeconds(v.offload_seconds()), stages));
    return;
  }
}

}  // namespace

std::vector<std::string> TopModels(const TopLook& look) {
  std::set<std::string> names;
  for (const SenderAnswer& s : look.senders) {
    if (!s.status.ok()) continue;
    for (const v1::SenderModelStatus& m : s.status->models()) names.insert(m.model());
  }
  for (const ReceiverAnswer& r : look.receivers) {
    if (!r.status.ok()) continue;
    for (const v1::ReceiverModelStatus& m : r.status->models()) names.insert(m.model());
  }
  return {names.begin(), names.end()};
}

std::string StagesText(const v1::SenderModelStatus& model,
                       const v1::ListReceiversResponse& attached) {
  const v1::VersionInfo& version = model.newest();
  const v1::PullStats* slowest = nullptr;
  for (const v1::ReceiverInfo& r : attached.receivers()) {
    if (!Has(r, model)) continue;
    if (slowest == nullptr || r.last_pull().seconds() > slowest->seconds()) {
      slowest = &r.last_pull();
    }
  }
  if (slowest == nullptr || slowest->seconds() <= 0) return "";
  const std::pair<std::string_view, double> stages[] = {{"publish", version.publish_seconds()},
                                                        {"transfer", slowest->transfer_seconds()},
                                                        {kAfterTransfer, slowest->apply_seconds()}};
  const auto* const critical =
      std::ranges::max_element(stages, {}, [](const auto& s) { return s.second; });
  std::string text;
  for (const auto& stage : stages) {
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", stage.first,
                        HumanSeconds(stage.second), &stage == critical ? " (most)" : "");
  }
  return text;
}

std::vector<TopLine> TopScreen(const TopLook& now, const TopLook* before, TopView& view,
                               size_t rows, size_t columns) {
  Picture picture(rows, columns);
  const std::vector<std::string> models = TopModels(now);
  const std::string model =
      view.model.empty() ? (models.empty() ? "" : models.front()) : view.model;
  picture.Add(fmt::format("deltawire top  {}{}  {}", ClockText(now.unix_nanos),
                          view.paused ? "  frozen" : fmt::format("  every {:g} s", view.interval),
                          model.empty() ? "no model yet" : "model " + model),
              TopStyle::kTitle);
  if (view.help) {
    for (const std::string_view line : kHelp) picture.Add(line);
    return picture.Close(Footer(view, models.size(), 0));
  }
  for (const std::string& line : Silent(now)) picture.Add(line, TopStyle::kWarning);
  const std::vector<ReceiverRow> receivers = RowsOf(now, model, view.order);
  if (!model.empty()) {
    picture.Add("");
    AddSenders(picture, now, before, model);
    AddNewest(picture, now, model);
    picture.Add("");
    std::set<size_t> warned;
    const Table engines = EnginesOf(now, model, picture.MostName(), warned);
    // Engines get at most a third of the remaining lines, under the receivers.
    const size_t lines = std::min(engines.rows(), picture.left() / 3);
    AddReceivers(picture, receivers, view, (lines > 0 ? lines + 2 : 0) + 1);
    if (lines > 0) {
      picture.Add("");
      picture.Add(engines, 0, lines, warned);
    }
  }
  return picture.Close(Footer(view, models.size(), receivers.size()));
}

}  // namespace deltawire::cli
