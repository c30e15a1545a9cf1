#include "cli/status_text.h"

#include <algorithm>
#include <map>
#include <set>

#include "cli/output.h"
#include "cli/site_tree.h"
#include "cli/standing.h"
#include "cli/top_screen.h"
#include "common/base/engine_state.h"
#include "common/base/human.h"
#include "common/base/receiver_phase.h"
#include "proto/client/connect.h"
#include "proto/convert.h"

namespace deltawire::cli {
namespace {

constexpr size_t kLeastWidth = 40;  // a narrower terminal breaks lines by itself

void Security(std::string& text, const std::string& security, bool exposed) {
  // An older daemon does not report it.
  if (!security.empty()) text += fmt::format("  {}\n", security);
  if (!exposed) return;
  text +=
      "  WARNING: listens beyond loopback without encryption or authentication "
      "(--insecure-plaintext)\n";
}

void Limits(std::string& text, const v1::RateLimits& limits) {
  std::string each;
  const auto add = [&](uint64_t bytes_per_s, std::string_view whose) {
    if (bytes_per_s == 0) return;
    each += fmt::format("{}{} {}", each.empty() ? "" : ", ",
                        HumanRate(static_cast<double>(bytes_per_s)), whose);
  };
  add(limits.all(), "to all");
  add(limits.per_site(), "to each site");
  add(limits.per_receiver(), "to each receiver");
  if (!each.empty()) text += fmt::format("  sends at most {}\n", each);
}

// Returns the forms of the sent chunks: "raw 1.2 MB in 21 chunks, fast 80 kB in 7 chunks".
std::string SentText(const v1::SenderModelStatus& m) {
  std::string text;
  for (const v1::CodecCount& c : m.sent()) {
    if (c.chunks() == 0) continue;
    text += fmt::format("{}{} {} in {} chunks", text.empty() ? "" : ", ", c.codec(),
                        HumanBytes(c.bytes()), c.chunks());
  }
  return text;
}

// Returns "[0, 3), [5, 12)", and the number of further ranges.
std::string RangesText(const google::protobuf::RepeatedPtrField<v1::ChunkRange>& ranges) {
  return deltawire::ToString(FromProto(ranges));
}

void ShowChanges(const v1::SenderModelStatus& m, size_t width, std::string& text) {
  constexpr Align kRight = Align::kRight;
  Table table({{"TENSOR"},
               {"CHANGED", kRight},
               {"OF ELEMENTS", kRight, 0, 2},
               {"DENSITY", kRight, 0, 1},
               {"DELTA", kRight},
               {"WHOLE", kRight, 0, 1}});
  for (const v1::TensorChange& t : m.changes()) {
    table.Add(
        {t.name(), Grouped(t.changed_elements()), Grouped(t.elements()),
         Percent(static_cast<double>(t.changed_elements()), static_cast<double>(t.elements())),
         HumanBytes(t.delta_bytes()), HumanBytes(t.full_bytes())});
  }
  text += fmt::format("\n{}, changed by {}:\n", m.model(), VersionText(m.newest().id()));
  text +=
      table.rows() > 0 ? table.Text(width) : "nothing, or not known since the sender restarted\n";
}

void ShowGroups(const v1::SenderModelStatus& m, std::string& text) {
  for (const v1::GroupStatus& g : m.groups()) {
    text += fmt::format("  {}: group {}: {}", m.model(), g.name(), g.phase());
    if (g.target().epoch() != 0) text += fmt::format(" {}", VersionText(g.target()));
    text += fmt::format(", committed {}", VersionText(g.committed()));
    if (g.last().committed()) {
      text += fmt::format(" ({} between the first and the last of {})",
                          HumanSeconds(g.last().spread_seconds()),
                          g.last().members() - g.last().late());
    }
    std::string members;
    for (const v1::GroupMemberStatus& member : g.members()) {
      if (member.state() == "committed") continue;
      members +=
          fmt::format("{}{} {}{}", members.empty() ? "" : ", ", member.receiver_id(),
                      member.state(), member.message().empty() ? "" : ": " + member.message());
    }
    if (!members.empty()) text += fmt::format("; {}", members);
    if (g.last().round() != 0 && !g.last().committed()) {
      text += fmt::format("; last aborted: {}", g.last().message());
    }
    text += "\n";
  }
}

std::string SenderTable(const v1::SenderStatusResponse& r, size_t width) {
  constexpr Align kRight = Align::kRight;
  Table models({{"MODEL"},
                {"SIZE", kRight, 0, 1},
                {"TENSORS", kRight, 0, 3},
                {"VERSION", kRight},
                {"LINEAGE", Align::kLeft, 0, 3},
                {"ROOT", Align::kLeft, 0, 2},
                {"CHANGED", kRight, 0, 1},
                {"DELTA", kRight, 0, 1},
                {"LOG", kRight, 0, 3},
                {"REACHES TO", kRight, 0, 4},
                {"PULLS", kRight, 0, 1},
                {"SENT", kRight, 0, 2},
                {"CUT", kRight, 0, 4},
                {"NOW"}});
  for (const v1::SenderModelStatus& m : r.models()) {
    const v1::VersionInfo& v = m.newest();
    const bool any = v.id().epoch() != 0;
    models.Add(
        {m.model(), HumanBytes(m.model_bytes()), std::to_string(m.tensors()), VersionText(v.id()),
         LineageText(FromProto(v.id()).lineage), RootText(v.id().root()),
         any ? Percent(static_cast<double>(v.changed_elements()), static_cast<double>(v.elements()))
             : "-",
         any ? HumanBytes(v.delta_bytes() + v.full_bytes()) : "-", HumanBytes(m.log_bytes()),
         m.log_bytes() == 0 ? "-" : std::to_string(m.oldest_base()),
         std::to_string(m.active_pulls()), HumanBytes(m.bytes_sent()),
         std::to_string(m.pulls_cut()),
         m.offloading_version() == 0 ? "idle" : fmt::format("writing {}", m.offloading_version())});
  }
  return models.Text(width);
}

// Adds the facts that have no column in the table.
void ShowModel(const v1::SenderModelStatus& m, const DaemonAnswers& s, std::string& text) {
  if (m.owned_chunks() < m.chunks()) {
    text += fmt::format("  {}: owns {} of {} chunks, {} of {}: {}\n", m.model(), m.owned_chunks(),
                        m.chunks(), HumanBytes(m.owned_bytes()), HumanBytes(m.model_bytes()),
                        RangesText(m.owned()));
  }
  if (const std::string sent = SentText(m); !sent.empty()) {
    text += fmt::format("  {}: sent {}\n", m.model(), sent);
  }
  if (m.newcomer_pulls() > 0 || m.held_back_seconds() > 0) {
    text += fmt::format("  {}: {} pulls of newcomers; their streams waited {} for followers\n",
                        m.model(), m.newcomer_pulls(), HumanSeconds(m.held_back_seconds()));
  }
  if (m.damaged_chunks() > 0) {
    text += fmt::format(
        "  {}: WARNING: {} chunks lost their digest in the sender's memory and are not sent "
        "until a version in which the trainer writes their tensors\n",
        m.model(), m.damaged_chunks());
  }
  // The version's time by stage, up to the commit of the slowest receiver that has it.
  if (const std::string stages = StagesText(m, s.attached); !stages.empty()) {
    text += fmt::format("  {}: {}: {}\n", m.model(), VersionText(m.newest().id()), stages);
  }
  ShowGroups(m, text);
}

// Names the senders that this node's receiver follows, except the one that was asked.
std::string OtherSenders(const DaemonAnswers& s) {
  std::set<std::string> senders;
  if (s.receiver.ok()) {
    for (const v1::ReceiverModelStatus& m : s.receiver->models()) senders.insert(m.sender());
  }
  senders.erase(s.sender_address);
  return fmt::format("{}", fmt::join(senders, ", "));
}

void ShowSender(const DaemonAnswers& s, size_t width, std::string& text) {
  if (!s.sender.ok()) {
    const std::string others = OtherSenders(s);
    text += s.sender_named || others.empty() || !IsAbsent(s.sender.status())
                ? fmt::format("{}\n", MessageOf(s.sender.status()))
                : fmt::format(
                      "No sender on this node; its receiver follows {} (pass --sender "
                      "HOST:PORT to see a sender)\n",
                      others);
    return;
  }
  const v1::SenderStatusResponse& r = *s.sender;
  text += fmt::format("Sender {}: deltawire {}, up {}, bulk {}, kernels {}\n", s.sender_address,
                      r.program_version(), HumanSeconds(r.uptime_seconds()), r.bulk_address(),
                      r.kernels());
  Security(text, r.security(), r.plaintext_exposed());
  Limits(text, r.rate_limits());
  if (r.models_size() == 0) {
    text += "  no model is registered yet; a trainer or `deltawire publish` registers one\n";
    return;
  }
  text += SenderTable(r, width);
  for (const v1::SenderModelStatus& m : r.models()) {
    ShowModel(m, s, text);
    if (s.with_changes) ShowChanges(m, width, text);
  }
}

/// A receiver's state compared with the sender's newest version of the model.
struct Held {
  std::string who;
  Identity held, newest;
  Standing standing;
};

const v1::SenderModelStatus* ModelOf(const DaemonAnswers& s, const std::string& name) {
  if (!s.sender.ok()) return nullptr;
  for (const v1::SenderModelStatus& m : s.sender->models()) {
    if (m.model() == name) return &m;
  }
  return nullptr;
}

Held HeldBy(const DaemonAnswers& s, const v1::ReceiverInfo& r) {
  Held out{
      fmt::format("{}: receiver {}", r.model(), r.receiver_id()), FromProto(r.committed()), {}, {}};
  if (const v1::SenderModelStatus* const m = ModelOf(s, r.model()); m != nullptr) {
    out.newest = FromProto(m->newest().id());
    out.standing = StandingOf(out.held, out.newest, m->owned_chunks() < m->chunks());
  }
  return out;
}

Held HeldBy(const v1::ReceiverModelStatus& m) {
  Held out{fmt::format("{}: this receiver", m.model()),
           FromProto(m.committed()),
           FromProto(m.newest()),
           {}};
  out.standing = StandingOf(out.held, out.newest, m.agents_size() > 1);
  return out;
}

std::vector<TreeRow> AttachedRows(const v1::ListReceiversResponse& attached, bool tree) {
  std::map<std::string, std::vector<const v1::ReceiverInfo*>> models;
  for (const v1::ReceiverInfo& r : attached.receivers()) {
    models[tree ? r.model() : ""].push_back(&r);
  }
  std::vector<TreeRow> rows;
  for (const auto& [model, receivers] : models) {
    if (tree) {
      const auto below = TreeOf(receivers);
      rows.insert(rows.end(), below.begin(), below.end());
    } else {
      for (const auto* r : receivers) rows.push_back({r, 0});
    }
  }
  return rows;
}

// Returns "  m: last pull over 24 streams, round trip 200 ms, up to 118 MB/s".
std::string PullLinkText(const v1::ReceiverModelStatus& m) {
  const v1::PullStats& pull = m.last_pull();
  if (pull.streams() == 0) return "";
  std::string text = fmt::format("  {}: last pull over {} stream{}", m.model(), pull.streams(),
                                 pull.streams() == 1 ? "" : "s");
  if (pull.round_trip_seconds() > 0) {
    text += ", round trip " + HumanSeconds(pull.round_trip_seconds());
  }
  if (pull.best_bytes_per_s() > 0) text += ", up to " + HumanRate(pull.best_bytes_per_s());
  if (const std::string times = PullTimesText(pull); !times.empty()) text += ": " + times;
  return text + "\n";
}

void ShowAttached(const DaemonAnswers& s, size_t width, std::string& text) {
  if (!s.sender.ok() || s.sender->models_size() == 0) return;
  if (s.attached.receivers_size() == 0) {
    text += "\nNo receiver is attached.\n";
    return;
  }
  constexpr Align kRight = Align::kRight;
  // If there are sites, use the order of the tree.
  const bool sites = HasSites(s.attached);
  std::vector<Column> columns = {{"RECEIVER"},
                                 {"MODEL", Align::kLeft, 0, 1},
                                 {"FROM", Align::kLeft, 0, 3},
                                 {"VERSION", kRight},
                                 {"BEHIND", kRight},
                                 {"PHASE"},
                                 {"ATTACHED", kRight, 0, 2},
                                 {"LAST PULL", kRight, 0, 1},
                                 {"TOOK", kRight, 0, 1},
                                 {"LINK", Align::kLeft, 0, 3},
                                 {"LAST FAILURE", Align::kLeft, 0, 4}};
  const bool engines = std::ranges::any_of(
      s.attached.receivers(), [](const v1::ReceiverInfo& r) { return r.engines() > 0; });
  if (engines) columns.insert(columns.begin() + 5, {"SERVED", kRight, 0, 1});
  if (sites) {
    columns.insert(columns.begin() + 1,
                   {{"SITE", Align::kLeft, 0, 2}, {"FOLLOWS", Align::kLeft, 0, 1}});
  }
  Table table(columns);
  for (const TreeRow& row : AttachedRows(s.attached, sites)) {
    const v1::ReceiverInfo& r = *row.receiver;
    const bool pulled = r.last_pull().seconds() > 0;
    std::vector<std::string> cells = {Indented(row),
                                      r.model(),
                                      PeerText(r.peer()),
                                      VersionText(r.committed()),
                                      BehindText(HeldBy(s, r).standing),
                                      r.phase(),
                                      HumanSeconds(r.attached_seconds()),
                                      pulled ? HumanBytes(r.last_pull().payload_bytes()) : "-",
                                      pulled ? HumanSeconds(r.last_pull().seconds()) : "-",
                                      LinkText(r.link()),
                                      r.message().empty() ? "-" : r.message()};
    if (engines) cells.insert(cells.begin() + 5, r.engines() > 0 ? VersionText(r.served()) : "-");
    if (sites) {
      cells.insert(cells.begin() + 1, {r.site().empty() ? "-" : r.site(), FollowsText(r)});
    }
    table.Add(cells);
  }
  text += "\n" + table.Text(width);
  for (const v1::ReceiverInfo& r : s.attached.receivers()) {
    if (r.not_handed_out().empty()) continue;
    text += fmt::format("  {}: no receiver is assigned to {}: {}\n", r.model(), r.receiver_id(),
                        r.not_handed_out());
  }
}

std::string Pulled(const v1::ReceiverModelStatus& m) {
  if (ParseReceiverPhase(m.phase()) == ReceiverPhase::kPulling && m.bytes_total() > 0) {
    return fmt::format("{} of {}", HumanBytes(m.bytes_done()), HumanBytes(m.bytes_total()));
  }
  return m.last_pull().seconds() > 0 ? HumanBytes(m.last_pull().payload_bytes()) : "-";
}

// Returns the receiver's number of buffers, and the readers that delay an update.
std::string BuffersText(const v1::ReceiverModelStatus& m) {
  if (m.buffers() == 0) return "";
  std::string text =
      fmt::format("  {}: {} buffer{}", m.model(), m.buffers(), m.buffers() == 1 ? "" : "s");
  if (!m.buffers_why().empty()) text += fmt::format(" ({})", m.buffers_why());
  if (!m.readers().empty()) text += fmt::format("; waits for {}", m.readers());
  if (m.worst_reader_wait_seconds() > 0) {
    text +=
        fmt::format("; waited for readers {} at most", HumanSeconds(m.worst_reader_wait_seconds()));
  }
  return text + "\n";
}

std::string EnginesText(const v1::ReceiverStatusResponse& r, size_t width) {
  constexpr Align kRight = Align::kRight;
  Table table({{"ENGINE"},
               {"KIND", Align::kLeft, 0, 1},
               {"MODEL", Align::kLeft, 0, 2},
               {"STATE"},
               {"SERVES", kRight},
               {"BEHIND", kRight},
               {"UPDATES", kRight, 0, 2},
               {"PAUSED FOR", kRight, 0, 1},
               {"FAILURES", kRight, 0, 1},
               {"LAST FAILURE", Align::kLeft, 0, 3}});
  for (const v1::ReceiverModelStatus& m : r.models()) {
    for (const v1::EngineStatus& e : m.engines()) {
      const Standing standing = StandingOf(FromProto(e.served()), FromProto(m.committed()));
      const bool says_so = e.state() == ToString(EngineState::kPaused);
      table.Add({e.name(), e.kind(), m.model(),
                 fmt::format("{}{}{}", e.state(), e.unverified() ? ", not verified" : "",
                             e.paused() && !says_so ? " (paused)" : ""),
                 VersionText(e.served()), BehindText(standing), std::to_string(e.updates()),
                 e.last_pause_seconds() > 0 ? HumanSeconds(e.last_pause_seconds()) : "-",
                 std::to_string(e.failures()), e.error().empty() ? "-" : e.error()});
    }
  }
  return table.rows() > 0 ? "\n" + table.Text(width) : "";
}

// Returns "127.0.0.1:7070", or "host-a:7070, host-b:7070 (1 of 2 attached)"; status also lists
// several agents one by one below the table. For addresses in order of preference it returns
// "relay:7070,host-a:7070 (now relay:7070)".
std::string SenderText(const v1::ReceiverModelStatus& m) {
  const bool choice =
      m.agents_size() == 1 && !m.agents(0).in_use().empty() && m.agents(0).in_use() != m.sender();
  if (m.attached()) {
    return choice ? fmt::format("{} (now {})", m.sender(), m.agents(0).in_use()) : m.sender();
  }
  if (m.agents_size() < 2) return m.sender() + " (not attached)";
  const auto attached = std::count_if(m.agents().begin(), m.agents().end(),
                                      [](const v1::AgentStatus& a) { return a.attached(); });
  return fmt::format("{} ({} of {} attached)", m.sender(), attached, m.agents_size());
}

void ShowReceiver(const DaemonAnswers& s, size_t width, std::string& text) {
  if (!s.receiver.ok()) {
    text += s.receiver_named || !s.sender.ok() || !IsAbsent(s.receiver.status())
                ? fmt::format("{}\n", MessageOf(s.receiver.status()))
                : "No receiver on this node (pass --receiver HOST:PORT to see one)\n";
    return;
  }
  const v1::ReceiverStatusResponse& r = *s.receiver;
  text += fmt::format("Receiver {}: deltawire {}, up {}, id {}, kernels {}\n", s.receiver_address,
                      r.program_version(), HumanSeconds(r.uptime_seconds()), r.receiver_id(),
                      r.kernels());
  Security(text, r.security(), r.plaintext_exposed());
  constexpr Align kRight = Align::kRight;
  Table models({{"MODEL"},
                {"SIZE", kRight, 0, 2},
                {"VERSION", kRight},
                {"LINEAGE", Align::kLeft, 0, 3},
                {"ROOT", Align::kLeft, 0, 2},
                {"NEWEST", kRight},
                {"BEHIND", kRight},
                {"PHASE"},
                {"PULLED", kRight, 0, 1},
                {"TOOK", kRight, 0, 1},
                {"COMMITS", kRight, 0, 3},
                {"RECEIVED", kRight, 0, 3},
                {"REPAIRED", kRight, 0, 3},
                {"SENDER", Align::kLeft, 0, 1},
                {"DIRECTORY", Align::kLeft, 0, 2}});
  for (const v1::ReceiverModelStatus& m : r.models()) {
    models.Add({m.model(), HumanBytes(m.model_bytes()), VersionText(m.committed()),
                LineageText(FromProto(m.committed()).lineage), RootText(m.committed().root()),
                VersionText(m.newest()), BehindText(HeldBy(m).standing), m.phase(), Pulled(m),
                m.last_pull().seconds() > 0 ? HumanSeconds(m.last_pull().seconds()) : "-",
                std::to_string(m.commits()), HumanBytes(m.bytes_received()),
                std::to_string(m.repaired_chunks()), SenderText(m), m.directory()});
  }
  text += models.Text(width);
  for (const v1::ReceiverModelStatus& m : r.models()) {
    for (const v1::AgentStatus& a : m.agents()) {
      if (m.agents_size() == 1) break;
      text += fmt::format("  {}: agent {}{} has {} of {} in {} chunks, newest {}: {}\n", m.model(),
                          a.sender(), a.attached() ? "" : " (not attached)",
                          HumanBytes(a.owned_bytes()), HumanBytes(m.model_bytes()),
                          a.owned_chunks(), VersionText(a.newest()), RangesText(a.owned()));
    }
    text += PullLinkText(m);
    text += BuffersText(m);
    if (!m.group().empty()) {
      text += fmt::format("  {}: a member of group {}{}\n", m.model(), m.group(),
                          m.prepared().epoch() == 0
                              ? ""
                              : fmt::format(", {} is prepared", VersionText(m.prepared())));
    }
    if (!m.message().empty()) text += fmt::format("  {}: {}\n", m.model(), m.message());
  }
  text += EnginesText(r, width);
}

}  // namespace

std::string PeerText(const std::string& peer) {
  constexpr std::string_view kScheme = "ipv4:";
  return peer.starts_with(kScheme) ? peer.substr(kScheme.size()) : peer;
}

std::string LinkText(const v1::LinkStatus& link) {
  if (link.round_trip_seconds() <= 0) return "-";
  std::string text = HumanSeconds(link.round_trip_seconds());
  if (link.bytes_per_s() > 0) text = HumanRate(link.bytes_per_s()) + ", " + text;
  if (!link.congestion_control().empty()) text += ", " + link.congestion_control();
  if (link.sent_again_ratio() > 0) {
    text += fmt::format(", {} again", Percent(link.sent_again_ratio(), 1));
  }
  return text;
}

std::vector<std::string> StatusWarnings(const DaemonAnswers& s) {
  std::vector<Held> all;
  for (const v1::ReceiverInfo& r : s.attached.receivers()) all.push_back(HeldBy(s, r));
  if (s.receiver.ok()) {
    for (const v1::ReceiverModelStatus& m : s.receiver->models()) all.push_back(HeldBy(m));
  }
  std::vector<std::string> out;
  for (const Held& h : all) {
    const std::string warning = Warning(h.standing, h.held, h.newest);
    if (!warning.empty()) out.push_back(fmt::format("{} {}", h.who, warning));
  }
  return out;
}

std::string StatusText(const DaemonAnswers& s, size_t width) {
  if (width > 0) width = std::max(width, kLeastWidth);
  std::string text;
  ShowSender(s, width, text);
  ShowAttached(s, width, text);
  text += "\n";
  ShowReceiver(s, width, text);
  for (const std::string& warning : StatusWarnings(s)) {
    text += fmt::format("WARNING: {}\n", warning);
  }
  return Wrapped(text, width);
}

}  // namespace deltawire::cli
