#include "receiver/attach/upstream.h"

namespace deltawire::receiver {

bool IsBeat(const SenderEvent& a, const SenderEvent& b) {
  // The same state may come by another attempt, which is news.
  const auto same = [](const Identity& x, const Identity& y) {
    return x == y && x.attempt == y.attempt;
  };
  return b.sync_request == 0 && same(a.newest.identity, b.newest.identity) &&
         a.newest.delta_bytes == b.newest.delta_bytes && a.relay == b.relay && a.group == b.group &&
         same(a.group.prepare, b.group.prepare) && same(a.group.commit, b.group.commit) &&
         a.assignment == b.assignment && a.incoming == b.incoming &&
         same(a.incoming.version, b.incoming.version) && same(a.incoming.base, b.incoming.base);
}

std::vector<Upstream*> PointersTo(const std::vector<std::unique_ptr<Upstream>>& upstreams) {
  std::vector<Upstream*> pointers;
  for (const auto& upstream : upstreams) pointers.push_back(upstream.get());
  return pointers;
}

}  // namespace deltawire::receiver
