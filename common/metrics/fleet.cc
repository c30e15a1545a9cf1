#include "common/metrics/fleet.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <map>

#include "common/base/versions_behind.h"

namespace deltawire::metrics {
namespace {

/// A longer table would not be read.
constexpr size_t kMostRows = 1000;

/// gRPC names peers "ipv4:127.0.0.1:37552".
Cell PeerOf(const std::string& peer) {
  constexpr std::string_view kScheme = "ipv4:";
  if (!peer.starts_with(kScheme)) return Cell::Word(peer);
  return {peer.substr(kScheme.size()), peer};
}

/// Returns what a member of a site follows: the name of the member with that address, if there is
/// one.
Cell FollowedBy(const FleetMember& m, const std::map<std::string, std::string>& ids) {
  if (m.site.empty()) return Cell::Word("-");
  if (m.follows.empty()) return Cell::Word("this sender");
  const auto id = ids.find(m.follows);
  return Cell::Word(id == ids.end() ? m.follows : id->second);
}

Row RowOf(const FleetMember& m, const Identity& newest) {
  const bool pulling = m.phase == ReceiverPhase::kPulling && m.bytes_total > 0;
  const std::string phase(ToString(m.phase));
  const bool pulled = m.seconds > 0;
  return {Cell::Word(m.id),
          Cell::Version(m.committed),
          Cell::Count(VersionsBehind(m.committed, newest)),
          Cell::Word(pulling ? fmt::format("{}, {} %", phase, 100 * m.bytes_done / m.bytes_total)
                             : phase),
          pulled ? Cell::Bytes(m.payload_bytes) : Cell::None(),
          pulled ? Cell::Seconds(m.seconds) : Cell::None(),
          m.transfer_seconds > 0
              ? Cell::Rate(static_cast<double>(m.payload_bytes -
                                               std::min(m.ahead_bytes, m.payload_bytes)) /
                           m.transfer_seconds)
              : Cell::None(),
          Cell::Seconds(m.attached_seconds),
          PeerOf(m.peer),
          Cell::Sentence(m.message.empty() ? "-" : m.message)};
}

}  // namespace

void ShowFleet(Page& page, std::string_view id, const Identity& newest,
               std::vector<FleetMember> members) {
  if (members.empty()) return page.Note("No receiver is attached.");
  const auto behind = [&](const FleetMember& m) { return VersionsBehind(m.committed, newest); };
  std::sort(members.begin(), members.end(), [&](const FleetMember& a, const FleetMember& b) {
    return behind(a) != behind(b) ? behind(a) > behind(b) : a.id < b.id;
  });
  std::map<std::string, std::string> ids;  // by address
  for (const FleetMember& m : members) {
    if (!m.address.empty()) ids.emplace(m.address, m.id);
  }
  const bool sites = std::ranges::any_of(members, [](const auto& m) { return !m.site.empty(); });
  std::vector<Row> rows;
  for (size_t i = 0; i < std::min(members.size(), kMostRows); ++i) {
    Row row = RowOf(members[i], newest);
    if (sites) {
      row.push_back(Cell::Word(members[i].site.empty() ? "-" : members[i].site));
      row.push_back(FollowedBy(members[i], ids));
    }
    rows.push_back(std::move(row));
  }
  std::vector<std::string> titles = {
      "receiver", "holds", "versions behind", "phase", "last pull",
      "took",     "rate",  "attached for",    "from",  "last failure"};
  if (sites) titles.insert(titles.end(), {"site", "follows"});
  page.Table(id, titles, rows);
  if (members.size() > kMostRows) {
    page.Note(
        fmt::format("{} more are not further behind than the last of these; `deltawire "
                    "status` lists all.",
                    members.size() - kMostRows));
  }
}

}  // namespace deltawire::metrics
