// The endpoints of vLLM 0.32 by which weights change, as strict as vLLM's, with deltawire's
// plug-in: its sessions, its sleep and its caches. Owner, threads, cost and errors:
// StandInContract.
#pragma once

#include <string>
#include <vector>

#include "tests/support/stand_in_contract.h"

namespace deltawire::testing {

class VllmStandIn : public StandInContract {
 public:
  using StandInContract::StandInContract;

  void Start() override;
  StandInAnswer Get(const StandInTarget& target) override;
  StandInAnswer Post(const StandInTarget& target, const nlohmann::json& body, Loads loads) override;
  void EndSession() override { session_ = false; }

  void Sleep(int level);
  void WakeUp(const std::string& tags);
  uint64_t probes() const { return probes_; }
  void LackEncoderReset() { has_encoder_reset_ = false; }

 private:
  StandInAnswer Init(const nlohmann::json& body);
  StandInAnswer Prove(uint64_t version);
  StandInAnswer StartUpdate();
  StandInAnswer Update(const nlohmann::json& body);
  StandInAnswer Reload(const nlohmann::json& body, Loads loads);
  StandInAnswer Pause(const std::string& mode);
  StandInAnswer Resume();
  std::string Metrics() const;

  bool session_ = false;
  std::vector<std::string> sleeping_;  // its parts that sleep
  int sleep_level_ = 0;                // 0: awake
  uint64_t probes_ = 0;
  // Whether running requests went back into the queue, and its cache of encoders' outputs.
  bool preempted_ = false, has_encoder_reset_ = true, old_encoder_outputs_ = false;
};

}  // namespace deltawire::testing
