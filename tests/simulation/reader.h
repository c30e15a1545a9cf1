// A plain reader, which knows nothing of deltawire: opens model.safetensors by name, maps it, reads
// it slowly, and goes. What it has read must be one version, whatever happened meanwhile.
// Owner: the world. Threads: a fiber in a process of its own.
#pragma once

#include <memory>

#include "tests/simulation/receiver_node.h"

namespace deltawire::simulation {

class Reader {
 public:
  Reader(const ReceiverNode& receiver, const Ledger& ledger, Random random, uint64_t number);

  /// Until Stop, or its process is killed; Start then begins anew.
  void Start();
  void Stop() { stopping_ = true; }
  bool alive() const { return process_ != nullptr && process_->alive(); }
  Process& process() { return *process_; }
  uint64_t passes() const { return passes_; }
  uint64_t missing() const { return missing_; }  ///< opens that found no file

 private:
  void Run();
  void Pass();

  const ReceiverNode& receiver_;
  const Ledger& ledger_;
  Random random_;
  const std::string name_;
  std::shared_ptr<Process> process_;
  bool stopping_ = false;
  bool seen_ = false;
  uint64_t passes_ = 0, missing_ = 0;
};

}  // namespace deltawire::simulation
