// The calls that deltawire's plug-in answers in each worker of a vLLM server, and the combined
// answer of all ranks (docs/engine.md, "vLLM").
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "common/base/identity.h"
#include "common/config/engine_options.h"
#include "receiver/engine/engine_call.h"
#include "receiver/engine/engine_hook.h"

namespace deltawire::receiver {

/// Returns true if the plug-in of vLLM handles `call`, and not vLLM itself.
bool IsPluginCall(EngineCall call);
/// Returns true if the replicas of one server must agree on `call`, by SettleBody.
bool Settles(EngineCall call);

/// Returns the body of POST /collective_rpc. `nonce`: 8 to 64 letters and digits, new for each
/// call. `replicas`: behind the server's address. REQUIRES: IsPluginCall(call).
nlohmann::ordered_json PluginBody(EngineCall call, const Identity& to, const EngineOptions& options,
                                  const EngineModel& model, const std::string& nonce,
                                  uint32_t replicas);
/// Returns the body that asks the replicas for their results of the call `of`.
nlohmann::ordered_json SettleBody(const std::string& of, const std::string& nonce,
                                  uint32_t replicas);

/// The combined answer of all ranks.
struct PluginWord {
  bool ok = false, drifted = false, anew = false, corrupts = false;
  std::string reason, process;
  uint32_t replicas = 1;
  Identity held;                     ///< empty: not known
  std::vector<std::string> untaken;  ///< tensors that no part of the engine has
};
/// Returns nullopt if `results` are not the replies of all ranks to the call with this nonce. vLLM
/// leaves the replies after a failed one unread, and takes them for those of the next calls.
std::optional<PluginWord> ReadPluginWord(const nlohmann::ordered_json& results,
                                         const std::string& nonce);

/// Judges the word on `call` to the version `to`. A load that arrives twice is refused the second
/// time, and then the version that the ranks hold shows that it was done.
EngineAnswer JudgeWord(const PluginWord& word, EngineCall call, const Identity& to);
/// Returns the answer for replies that are not this call's.
EngineAnswer OutOfStep();

}  // namespace deltawire::receiver
