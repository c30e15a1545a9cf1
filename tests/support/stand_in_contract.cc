#include "tests/support/stand_in_contract.h"

#include <algorithm>

namespace deltawire::testing {

StandInTarget ParseTarget(const std::string& text) {
  StandInTarget target;
  const size_t mark = text.find('?');
  target.path = text.substr(0, mark);
  size_t at = mark;
  while (at < text.size()) {
    const size_t next = std::min(text.find('&', at + 1), text.size());
    const std::string option = text.substr(at + 1, next - at - 1);
    const size_t equals = std::min(option.find('='), option.size());
    target.query[option.substr(0, equals)] = option.substr(std::min(equals + 1, option.size()));
    at = next;
  }
  return target;
}

StandInAnswer Unprocessable(std::string_view what) {
  return {422, {{"detail", nlohmann::json::array({{{"type", "missing"}, {"msg", what}}})}}};
}

void StandInContract::Start() {
  weights.Forget();
  paused = false;
  running = kRunningRequests;
  version = "default";
  (void)Load(Loads::kWell);  // a directory without a version yet: it gets one by a reload
}

Status StandInContract::Load(Loads loads) {
  if (loads == Loads::kTorn) {
    weights.Tear();
    return absl::InternalError("out of memory");
  }
  return weights.Load([this, loads] {
    if (loads == Loads::kStalls) stall();
  });
}

}  // namespace deltawire::testing
