#include "receiver/replica/agent_links.h"

#include <utility>

#include "common/layout/root.h"

namespace deltawire::receiver {

AgentLinks::AgentLinks(const std::vector<Upstream*>& upstreams) : links_(upstreams.size()) {
  for (size_t i = 0; i < upstreams.size(); ++i) links_[i].round.upstream = upstreams[i];
}

StatusOr<std::vector<ModelDescription>> AgentLinks::Describe(const std::string& model,
                                                             bool allow_code_files) const {
  std::vector<ModelDescription> descriptions;
  std::vector<NamedCoverage> parts;
  for (const Link& link : links_) {
    Upstream& upstream = *link.round.upstream;
    DW_ASSIGN_OR_RETURN(ModelDescription d, upstream.Describe(model));
    DW_RETURN_IF_ERROR(Annotate(CheckCodeFiles(d.side_files, allow_code_files),
                                fmt::format("sender {}: model \"{}\"", upstream.address(), model)));
    parts.push_back({upstream.address(), d.owned});
    descriptions.push_back(std::move(d));
    const Layout& first = descriptions.front().layout;
    const Layout& layout = descriptions.back().layout;
    if (layout.fingerprint() != first.fingerprint()) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "model \"{}\": agents {} and {} have different layouts: {}; register the same "
                    "tensors_meta with every agent",
                    model, parts.front().name, parts.back().name,
                    DescribeDifference(first, layout));
    }
  }
  const Status partition = CheckPartition(parts);
  if (!partition.ok()) return Annotate(partition, fmt::format("model \"{}\"", model));
  return descriptions;
}

void AgentLinks::SetPart(size_t agent, const Coverage& owned) {
  RoundAgent& round = links_[agent].round;
  if (!(round.owned == owned)) round.held = {};
  round.owned_hash = owned.hash();
  round.owned = owned;
}

void AgentLinks::ForgetHeld() {
  for (Link& link : links_) link.round.held = {};
}

void AgentLinks::HoldParts(const Follower::Target& target, const Buffer& buffer, bool whole) {
  const Identity last = buffer.last_whole();
  std::vector<uint64_t> digests;
  for (size_t i = 0; i < links_.size(); ++i) {
    Identity& held = links_[i].round.held;
    const Identity& part = target.parts[i];
    if (!(held.lineage == part.lineage)) held = {};
    if (!held.empty() || last.empty() || !(last.lineage == target.whole.lineage)) continue;
    // `last` has the epoch of the whole. It is this part's epoch too unless another agent was
    // rolled back more often.
    if (part.id.epoch != last.id.epoch || target.whole.id.epoch != last.id.epoch) continue;
    if (links_.size() == 1) {
      held = last;
    } else if (whole) {
      if (digests.empty()) {
        for (uint32_t c = 0; c < buffer.chunks().size(); ++c) {
          digests.push_back(buffer.bases().digest(c));
        }
      }
      held = {part.lineage, last.id, RootOf(digests, links_[i].round.owned), 0};
    }
  }
}

std::vector<RoundAgent> AgentLinks::Plan(const Follower::Target& target, const Buffer& buffer,
                                         bool whole, uint32_t streams) {
  HoldParts(target, buffer, whole);
  std::vector<RoundAgent> agents;
  for (Link& link : links_) {
    RoundAgent& round = link.round;
    const std::string now = round.upstream->in_use();
    if (std::exchange(link.address, now) != now) {
      link.record = {};
      round.bulk_host.clear();
    }
    link.record.Called(round.upstream->round_trip());
    round.link = link.record.figures();
    round.streams = streams != 0 ? streams : net::ChooseStreams(round.link);
    agents.push_back(round);
  }
  return agents;
}

void AgentLinks::NoteRoundEnd(const PullRound& round, bool committed) {
  for (size_t i = 0; i < links_.size(); ++i) {
    Link& link = links_[i];
    link.record.Pulled(round.results()[i].link);
    if (committed) link.round.held = round.results()[i].end;
    const PullGrant& grant = round.results()[i].grant;
    if (grant.host.empty()) continue;
    link.round.bulk_host = grant.host;
    link.round.bulk_port = grant.port;
  }
}

void AgentLinks::NotePullEnd(Status fault) {
  if (links_.size() > 1 && !fault.ok()) fault = absl::CancelledError("one of several");
  for (const Link& link : links_) link.round.upstream->NotePullEnd(fault);
}

}  // namespace deltawire::receiver
