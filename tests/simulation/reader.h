// A plain reader, which knows nothing of deltawire: it opens model.safetensors by name, maps it and
// reads it slowly. The bytes that it reads must be of one version, whatever happens meanwhile.
// Owner: the world. Threads: a fiber in a process of its own. Cost: a copy of the (tiny) model.
// Errors: Scheduler::Fail.
#pragma once

#include <memory>
#include <optional>

#include "tests/simulation/receiver_node.h"

namespace deltawire::simulation {

class Reader {
 public:
  Reader(const ReceiverNode& receiver, const Ledger& ledger, Random random, uint64_t number);

  /// Reads again and again until Stop, or until its process is killed; then Start may be called
  /// again.
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
  std::optional<uint64_t> seen_;  // since this wipe of the receiver there was a file
  uint64_t passes_ = 0, missing_ = 0;
};

}  // namespace deltawire::simulation
