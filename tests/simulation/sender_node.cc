#include "tests/simulation/sender_node.h"

#include "common/base/thread_pool.h"
#include "tests/simulation/offload_calls.h"

namespace deltawire::simulation {

struct SenderNode::Daemon {
  explicit Daemon(const SenderOptions& options) : pool(2, {{0, 1}}), agent(options, pool) {}
  ThreadPool pool;
  sender::Agent agent;
};

SenderNode::SenderNode(Network& network, std::string node_name, std::filesystem::path directory,
                       const SenderOptions& options)
    : HostNode(network, std::move(node_name), options.stream_timeout),
      directory_(std::move(directory)),
      options_(options) {
  listeners[kOffloadPort] = [this](const std::shared_ptr<Connection>& c) {
    ++serving_;
    ServeOffloadCall(c, agent_);
    --serving_;
  };
}

void SenderNode::Start() {
  process = std::make_shared<Process>(name);
  process->SetBoot(boots_);
  network_.NodeStarted(name);
  agent_ = nullptr;
  Serve(nullptr, nullptr);
  stopping_ = false;
  serving_ = 0;
  process->OnDeath([this] {
    agent_ = nullptr;
    Serve(nullptr, nullptr);
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
    Serve(agent_, agent_);
    while (!stopping_) scheduler.Block(this, "a signal");
    daemon.agent.Stop();
    const Time limit = scheduler.now() + std::chrono::seconds(20);
    AwaitServed(limit);
    Serve(nullptr, nullptr);
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
