#include "tests/simulation/sender_node.h"

#include "common/base/thread_pool.h"
#include "tests/simulation/bulk.h"
#include "tests/simulation/control.h"

namespace deltawire::simulation {

struct SenderNode::Daemon {
  explicit Daemon(const SenderOptions& options) : pool(2, {{0, 1}}), agent(options, pool) {}
  ThreadPool pool;
  sender::Agent agent;
};

SenderNode::SenderNode(Network& network, std::string node_name, std::filesystem::path directory,
                       const SenderOptions& options)
    : network_(network), directory_(std::move(directory)), options_(options) {
  name = std::move(node_name);
  network_.Add(*this);
  // Stop waits until the count is zero, since calls hold the agent.
  listeners["call"] = [this](const std::shared_ptr<Connection>& c) {
    ++serving_;
    ServeCall(c);
    --serving_;
  };
  listeners["attach"] = [this](const std::shared_ptr<Connection>& c) {
    ++serving_;
    if (agent_ != nullptr) ServeAttachment(c, *agent_);
    --serving_;
  };
  listeners["bulk"] = [this](const std::shared_ptr<Connection>& c) {
    ++serving_;
    const net::PullServer::Options timing{
        .stream_timeout = options_.stream_timeout,
        .ping_interval = std::min<std::chrono::milliseconds>(std::chrono::milliseconds(5000),
                                                             options_.stream_timeout / 4)};
    if (agent_ != nullptr) ServeBulk(c, *agent_, timing);
    --serving_;
  };
}

void SenderNode::Start() {
  process = std::make_shared<Process>(name);
  agent_ = nullptr;
  stopping_ = false;
  serving_ = 0;
  process->OnDeath([this] {
    agent_ = nullptr;
    network_.NodeDied(name);
  });
  Scheduler::current()->Spawn("main", process, [this] { Main(); });
}

void SenderNode::Main() {
  Scheduler& scheduler = *Scheduler::current();
  {
    Daemon daemon(options_);
    const Status recovered = daemon.agent.RecoverModels();
    if (!recovered.ok()) {
      scheduler.Note("recover: " + std::string(recovered.message()));
    }
    agent_ = &daemon.agent;
    while (!stopping_) scheduler.Block(this, "a signal");
    daemon.agent.Stop();
    const Time limit = scheduler.now() + std::chrono::seconds(20);
    // As gRPC's shutdown does: also calls that come while it ends the others.
    for (network_.BreakSome(name, 1.0); serving_ > 0; network_.BreakSome(name, 1.0)) {
      if (scheduler.now() > limit) scheduler.Fail(name + ": its calls do not end at a stop");
      scheduler.Sleep(std::chrono::milliseconds(1));
    }
    agent_ = nullptr;
  }
  process->Kill();
}

void SenderNode::Stop() {
  stopping_ = true;
  Scheduler::current()->Wake(this);
}

void SenderNode::Wipe() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
  std::filesystem::create_directories(directory_, ignored);
}

}  // namespace deltawire::simulation
