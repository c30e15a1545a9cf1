#include "bench/fanout/group_reports.h"

#include "bench/harness/buffers.h"
#include "common/base/human.h"
#include "sender/agent/fleet/groups.h"

namespace deltawire::bench {

Status GroupReports(Bench& bench, size_t members) {
  const std::string name = fmt::format("group_reports/{}", members);
  if (!bench.Asked(name)) return absl::OkStatus();
  constexpr const char* kModel = "m";
  constexpr Hash128 kLineage{1, 2};
  GroupOptions group{.model = "", .name = "g", .members = {}};
  for (size_t i = 0; i < members; ++i) group.members.push_back(fmt::format("member-{}", i));
  DW_ASSIGN_OR_RETURN(const auto scratch, ScratchDir::Create());
  Attachments attachments({.most = members, .most_per_principal = members});
  sender::GroupsOptions options;
  options.groups = {group};
  sender::Groups groups(options, attachments);
  groups.Adopt(kModel, scratch->path(), kLineage, true);
  VersionInfo info;
  info.identity = {kLineage, {1, 1}, 11, 7};
  attachments.feed().Publish(kModel, info);
  groups.Published(kModel, info.identity);
  std::vector<uint64_t> tokens;
  for (const std::string& id : group.members) {
    DW_ASSIGN_OR_RETURN(tokens.emplace_back(), attachments.Attach(kModel, id, "peer-" + id));
  }
  uint64_t bytes = 0;
  DW_ASSIGN_OR_RETURN(const Series series, bench.Measure([&](Series& s) -> Status {
    ReceiverReport report;
    report.bytes_done = ++bytes;
    const auto start = SteadyClock::now();
    for (const uint64_t token : tokens) attachments.Report(token, report);
    s.Add("report", SecondsSince(start) / static_cast<double>(tokens.size()));
    return absl::OkStatus();
  }));
  bench.Add(name, 1, series, {Value("a member's report", "report")});
  return absl::OkStatus();
}

}  // namespace deltawire::bench
