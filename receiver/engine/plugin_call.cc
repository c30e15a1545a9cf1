#include "receiver/engine/plugin_call.h"

#include <fmt/format.h>

#include <charconv>

namespace deltawire::receiver {
namespace {

using Json = nlohmann::ordered_json;

std::string NameOfCall(EngineCall call) {
  switch (call) {
    case EngineCall::kAsk:
      return "held";
    case EngineCall::kClear:
      return "discard";
    case EngineCall::kLoad:
      return "apply";
    case EngineCall::kSample:
    case EngineCall::kProve:
      return "prove";
    default:
      return std::string(ToString(call));
  }
}

Json Body(Json kwargs) { return {{"method", "deltawire_call"}, {"kwargs", std::move(kwargs)}}; }

template <typename T>
T ValueOf(const Json& object, const char* field, T otherwise) {
  const auto found = object.find(field);
  if (found == object.end()) return otherwise;
  if constexpr (std::is_same_v<T, bool>) {
    return found->is_boolean() ? found->get<bool>() : otherwise;
  } else if constexpr (std::is_integral_v<T>) {
    return found->is_number_unsigned() ? found->get<T>() : otherwise;
  } else {
    return found->is_string() ? found->get<T>() : otherwise;
  }
}

Identity HeldOf(const Json& answer) {
  const auto found = answer.find("held");
  if (found == answer.end() || !found->is_object()) return {};
  const auto lineage = Hash128::FromHex(ValueOf<std::string>(*found, "lineage", ""));
  const std::string text = ValueOf<std::string>(*found, "root", "");
  uint64_t root = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, root, 16);
  if (!lineage || read.ec != std::errc() || read.ptr != end) return {};
  return {*lineage,
          {ValueOf<uint64_t>(*found, "epoch", 0), ValueOf<uint64_t>(*found, "version", 0)},
          root,
          0};
}

}  // namespace

bool IsPluginCall(EngineCall call) {
  switch (call) {
    case EngineCall::kProbe:
    case EngineCall::kPause:
    case EngineCall::kFlush:
    case EngineCall::kName:
    case EngineCall::kResume:
      return false;
    default:
      return true;
  }
}

bool Settles(EngineCall call) {
  return IsPluginCall(call) && call != EngineCall::kAsk && call != EngineCall::kClear;
}

Json PluginBody(EngineCall call, const Identity& to, const EngineOptions& options,
                const EngineModel& model, const std::string& nonce, uint32_t replicas) {
  Json kwargs = {{"call", NameOfCall(call)}, {"nonce", nonce}};
  switch (call) {
    case EngineCall::kAttach:
      kwargs["directory"] = model.directory.native();
      if (options.loader_tensors) kwargs["loader_tensors"] = true;
      if (options.second_instance) kwargs["second_instance"] = true;
      if (options.plans) kwargs["plans"] = true;
      break;
    case EngineCall::kReload:
      kwargs["directory"] = model.directory.native();
      break;
    case EngineCall::kPrepare:
      kwargs["directory"] = model.directory.native();
      [[fallthrough]];
    case EngineCall::kLoad:
    case EngineCall::kRollback:
      kwargs["version"] = to.id.version;
      break;
    case EngineCall::kSample:
    case EngineCall::kProve:
      kwargs["version"] = to.id.version;
      kwargs["epoch"] = to.id.epoch;
      kwargs["lineage"] = to.lineage.Hex();
      kwargs["root"] = fmt::format("{:016x}", to.root);
      kwargs["part"] = call == EngineCall::kProve ? "all" : "next";
      break;
    default:
      break;
  }
  if (replicas > 1 && Settles(call)) kwargs["replicas"] = replicas;
  return Body(std::move(kwargs));
}

Json SettleBody(const std::string& of, const std::string& nonce, uint32_t replicas) {
  return Body({{"call", "settle"}, {"nonce", nonce}, {"of", of}, {"replicas", replicas}});
}

std::optional<PluginWord> ReadPluginWord(const Json& results, const std::string& nonce) {
  if (!results.is_array() || results.empty()) return std::nullopt;
  PluginWord word{.ok = true, .reason = {}, .process = {}, .held = {}, .untaken = {}};
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const Json& answer = results[rank];
    if (!answer.is_object() || ValueOf<std::string>(answer, "nonce", "") != nonce) {
      return std::nullopt;
    }
    if (ValueOf<uint64_t>(answer, "rank", results.size()) != rank) return std::nullopt;
    if (ValueOf<uint64_t>(answer, "ranks", 0) != results.size()) return std::nullopt;
    // The ranks have agreed. If one has missed that, the strictest answer counts.
    word.ok = word.ok && ValueOf(answer, "ok", false);
    word.drifted = word.drifted || ValueOf(answer, "drifted", false);
    word.anew = word.anew || ValueOf(answer, "anew", false);
    word.corrupts = word.corrupts || ValueOf(answer, "corrupts", false);
    if (word.reason.empty()) word.reason = ValueOf<std::string>(answer, "reason", "");
    const Identity held = HeldOf(answer);
    if (rank == 0) {
      word.held = held;
      word.process = ValueOf<std::string>(answer, "engine", "");
      word.replicas = ValueOf<uint32_t>(answer, "replicas", 1);
      const auto untaken = answer.find("untaken");
      if (untaken == answer.end() || !untaken->is_array()) continue;
      for (const Json& tensor : *untaken) {
        if (tensor.is_string()) word.untaken.push_back(tensor.get<std::string>());
      }
    } else if (!(held == word.held)) {
      word.held = {};
    }
  }
  return word;
}

EngineAnswer JudgeWord(const PluginWord& word, EngineCall call, const Identity& to) {
  EngineAnswer answer;
  answer.held = word.held;
  answer.process = word.process;
  const bool loads = call == EngineCall::kLoad;
  const bool names = loads || call == EngineCall::kRollback || call == EngineCall::kAttach;
  if (names && word.ok != (word.held == to)) {
    if (word.held == to && loads && !word.drifted) return answer;
    answer.result = EngineAnswer::Result::kRefused;
    answer.why = word.ok ? fmt::format("it holds {}, and not {}",
                                       word.held.empty() ? "nothing" : DescribeFully(word.held),
                                       DescribeFully(to))
                         : word.reason;
  } else if (!word.ok) {
    answer.result = EngineAnswer::Result::kRefused;
    answer.why = word.reason;
  }
  answer.only_anew = word.anew;
  answer.drifted = word.drifted;
  answer.corrupts = word.corrupts;
  return answer;
}

EngineAnswer OutOfStep() {
  EngineAnswer answer{EngineAnswer::Result::kUnsure,
                      "its ranks' replies are out of step since a call of somebody's that failed; "
                      "start the engine anew",
                      {}};
  answer.out_of_step = true;
  return answer;
}

}  // namespace deltawire::receiver
