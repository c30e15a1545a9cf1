// The endpoints of SGLang 0.5.23 by which weights change, as strict as SGLang's, with deltawire's
// plug-in and its orders. Owner, threads, cost and errors: StandInContract.
#pragma once

#include <optional>
#include <string>

#include "common/base/identity.h"
#include "tests/support/stand_in_contract.h"

namespace deltawire::testing {

class SglangStandIn : public StandInContract {
 public:
  using StandInContract::StandInContract;

  void Start() override;
  StandInAnswer Get(const StandInTarget& target) override;
  StandInAnswer Post(const StandInTarget& target, const nlohmann::json& body, Loads loads) override;
  bool TakesTurns(const std::string& name) const override {
    return name == "/weights_checker" || name == "/update_weights_from_disk";
  }

 private:
  StandInAnswer Update(const std::string& path, const nlohmann::json& body, Loads loads);
  Status Order(const std::string& path, bool prepare_only);

  std::optional<Identity> before_;  // of the last update
};

}  // namespace deltawire::testing
