// The calls that deltawire's plug-in answers in each worker of a vLLM server, and what the answers
// of all ranks say together (docs/engine.md, "vLLM"). Plain values; pure functions; threads: any.
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

/// Whether the plug-in of vLLM makes `call`, and not vLLM itself.
bool IsPluginCall(EngineCall call);
/// Whether the replicas of one server have a word of their own on `call`, by SettleBody.
bool Settles(EngineCall call);

/// The body of POST /collective_rpc. `nonce`: 8 to 64 letters and digits, new for each call.
/// `replicas`: behind the server's address. REQUIRES: IsPluginCall(call).
nlohmann::ordered_json PluginBody(EngineCall call, const Identity& to, const EngineOptions& options,
                                  const EngineModel& model, const std::string& nonce,
                                  uint32_t replicas);
/// The same, for what the replicas have made of the call `of`.
nlohmann::ordered_json SettleBody(const std::string& of, const std::string& nonce,
                                  uint32_t replicas);

/// The word of all ranks.
struct PluginWord {
  bool ok = false, drifted = false, anew = false, corrupts = false;
  std::string reason, process;
  uint32_t replicas = 1;
  Identity held;                     ///< empty: not known
  std::vector<std::string> untaken;  ///< tensors that no part of the engine has
};
/// nullopt: `results` are not the replies of all ranks to the call with this nonce. vLLM leaves the
/// replies behind a failed one unread, and takes them for those of the next calls.
std::optional<PluginWord> ReadPluginWord(const nlohmann::ordered_json& results,
                                         const std::string& nonce);

/// What the word means for `call` to the version `to`. A load that two ways have brought is refused
/// the second time, and then what they hold says that it was done.
EngineAnswer JudgeWord(const PluginWord& word, EngineCall call, const Identity& to);
/// The answer in the place of a word that is none of this call's.
EngineAnswer OutOfStep();

}  // namespace deltawire::receiver
