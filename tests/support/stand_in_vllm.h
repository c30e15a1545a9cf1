// The endpoints of vLLM 0.32 by which weights change, as strict as vLLM's, with deltawire's
// plug-in in each of two workers: their replies, its sleep and its caches. Owner, threads, cost and
// errors: StandInContract.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/identity.h"
#include "tests/support/stand_in_contract.h"

namespace deltawire::testing {

class VllmStandIn : public StandInContract {
 public:
  using StandInContract::StandInContract;

  void Start() override;
  StandInAnswer Get(const StandInTarget& target) override;
  StandInAnswer Post(const StandInTarget& target, const nlohmann::json& body, Loads loads) override;
  std::string NameOf(const StandInTarget& target, const nlohmann::json& body) const override;
  StandInAnswer Refusal(const nlohmann::json& body, int code, const std::string& text) override;
  bool TakesTurns(const std::string& name) const override;

  void Sleep(int level);
  void WakeUp(const std::string& tags);
  uint64_t probes() const { return probes_; }
  void LackEncoderReset() { has_encoder_reset_ = false; }
  void LackPlugin() { has_plugin_ = false; }
  /// As a call of somebody's that raised: the second worker's reply to it stays unread.
  void FailForeignCall() { unread_.push_back(nullptr); }

 private:
  /// What the workers answer to a call of the plug-in.
  Status Call(const nlohmann::json& kwargs, Loads loads);
  Status Prove(const nlohmann::json& kwargs);
  StandInAnswer Replies(const nlohmann::json& kwargs, const Status& done);
  StandInAnswer Reload(const nlohmann::json& body, Loads loads);
  StandInAnswer Pause(const std::string& mode);
  StandInAnswer Resume();
  std::string Metrics() const;

  std::optional<Identity> before_;  // of the last apply
  uint64_t process_ = 0;            // a number that is new with each start
  bool has_plugin_ = true;
  std::vector<nlohmann::json>
      unread_;  // of the later worker, since a call of somebody's that failed
  std::vector<std::string> sleeping_;  // its parts that sleep
  int sleep_level_ = 0;                // 0: awake
  uint64_t probes_ = 0;
  // Whether running requests went back into the queue, and its cache of encoders' outputs.
  bool preempted_ = false, has_encoder_reset_ = true, old_encoder_outputs_ = false;
};

}  // namespace deltawire::testing
