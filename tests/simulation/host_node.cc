#include "tests/simulation/host_node.h"

#include <algorithm>

#include "tests/simulation/bulk.h"
#include "tests/simulation/control.h"

namespace deltawire::simulation {

HostNode::HostNode(Network& network, std::string node_name,
                   std::chrono::milliseconds stream_timeout)
    : network_(network) {
  name = std::move(node_name);
  network_.Add(*this);
  listeners["call"] = [this](const std::shared_ptr<Connection>& c) {
    ++serving_;
    ServeCall(c);
    --serving_;
  };
  listeners["attach"] = [this](const std::shared_ptr<Connection>& c) {
    ++serving_;
    if (host_ != nullptr) ServeAttachment(c, *host_);
    --serving_;
  };
  listeners["bulk"] = [this, stream_timeout](const std::shared_ptr<Connection>& c) {
    ++serving_;
    const net::PullServer::Options timing{.stream_timeout = stream_timeout,
                                          .ping_interval = std::min<std::chrono::milliseconds>(
                                              std::chrono::milliseconds(5000), stream_timeout / 4)};
    if (source_ != nullptr) ServeBulk(c, *source_, timing);
    --serving_;
  };
}

void HostNode::AwaitServed(Time limit) {
  Scheduler& scheduler = *Scheduler::current();
  for (network_.BreakAll(name); serving_ > 0; network_.BreakAll(name)) {
    if (scheduler.now() > limit) scheduler.Fail(name + ": its calls do not end at a stop");
    scheduler.Sleep(std::chrono::milliseconds(1));
  }
}

}  // namespace deltawire::simulation
