// The requests to each kind of engine over HTTP, and the answers that mean yes. The field names are
// those of vLLM 0.32 (entrypoints/rl/online, entrypoints/serve/dev; the plug-in's: plugin_call.h)
// and of SGLang 0.5.23 (entrypoints/http_server.py). docs/engine.md has the same table.
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/sync.h"
#include "receiver/engine/engine_hook.h"
#include "receiver/engine/foreign_text.h"
#include "receiver/engine/http_client.h"
#include "receiver/engine/plugin_call.h"

namespace deltawire::receiver {
namespace {

using Json = nlohmann::ordered_json;
using Result = EngineAnswer::Result;

constexpr int kNotFound = 404;
/// A line of vLLM's metrics, with the version of the calls that its plug-in answers.
constexpr std::string_view kPluginGauge = "deltawire_plugin_calls";
constexpr std::string_view kNoPlugin =
    "it has no deltawire plug-in of this release: install deltawire's wheel beside vLLM and start "
    "it anew, or use vllm-reload=";
/// The fault of a plain reload's results if they are replies to another call.
constexpr std::string_view kOutOfStep = "out of step";
/// Words in a refusal of SGLang's plug-in (python/deltawire/engine/_outcome.py).
constexpr std::string_view kOnlyAnew = "start the engine anew";
constexpr std::string_view kDrifted = "the engine's memory has drifted in ";

/// A request, and the demands on its answer besides a status of 2xx.
struct Ask {
  HttpRequest request;
  /// Returns "" if the JSON object of the answer means yes, else what it lacks.
  std::function<std::string(const Json&)> lacks = [](const Json&) { return ""; };
  bool answers_json = true;
};

std::string Text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);  // never throws
}

Ask Post(std::string target, const Json& body = nullptr) {
  return {{.post = true, .target = std::move(target), .body = body.is_null() ? "" : Text(body)}};
}

Ask Get(std::string target) { return {{.post = false, .target = std::move(target), .body = ""}}; }

/// Demands that the answer has `field` with `value`.
Ask Saying(Ask ask, std::string field, Json value) {
  ask.lacks = [field = std::move(field), value = std::move(value)](const Json& answer) {
    if (answer.contains(field) && answer[field] == value) return std::string();
    return fmt::format("\"{}\" is not {}", field, Text(value));
  };
  return ask;
}

/// Returns the text in `field`, or "".
std::string TextOf(const Json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Returns an engine's own words in an answer that is not 2xx, or "". Nested values are not turned
/// into text, which would take stack for each level.
std::string WordsOf(const Json& answer) {
  if (!answer.is_object()) return "";
  // vLLM: {"error": {"message": ...}} or {"error": ...}. SGLang: {"message": ...}. FastAPI's own
  // refusals: {"detail": ...}.
  if (const auto error = answer.find("error"); error != answer.end() && error->is_object()) {
    return TextOf(*error, "message");
  }
  for (const char* field : {"error", "message", "detail"}) {
    if (std::string words = TextOf(answer, field); !words.empty()) return words;
  }
  return "";
}

/// Returns the time until `end`, at least 1 ms: a request that is too late fails by itself.
std::chrono::milliseconds Left(SteadyClock::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - SteadyClock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

/// Returns true if vLLM's metrics have a line of the plug-in.
bool HasPlugin(std::string_view metrics) {
  for (size_t at = 0; (at = metrics.find(kPluginGauge, at)) != metrics.npos;
       at += kPluginGauge.size()) {
    const bool begins = at == 0 || metrics[at - 1] == '\n';
    const char next =
        at + kPluginGauge.size() < metrics.size() ? metrics[at + kPluginGauge.size()] : '\n';
    if (begins && (next == ' ' || next == '{')) return true;
  }
  return false;
}

/// Returns the number in `field` of a JSON object, or 0.
uint32_t CountOf(const HttpReply& reply, const char* field) {
  const Json answer = Json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  const auto found = answer.is_object() ? answer.find(field) : answer.end();
  return found != answer.end() && found->is_number_unsigned() ? found->get<uint32_t>() : 0;
}

/// Reads vLLM's metrics. Done: it is awake, or they do not say.
EngineAnswer JudgeSleep(std::string_view metrics) {
  constexpr std::string_view kGauge = "vllm:engine_sleep_state{";
  bool asleep = false, dropped = false;
  while (!metrics.empty()) {
    const std::string_view line = metrics.substr(0, metrics.find('\n'));
    metrics.remove_prefix(std::min(line.size() + 1, metrics.size()));
    if (!line.starts_with(kGauge)) continue;
    const auto has = [&](std::string_view text) { return line.find(text) != line.npos; };
    const bool one = line.ends_with(" 1.0") || line.ends_with(" 1");
    asleep = asleep || (has("sleep_state=\"awake\"") && !one);
    dropped = dropped || (has("sleep_state=\"discard_all\"") && one);
  }
  if (!asleep) return {};
  EngineAnswer answer{Result::kAsleep,
                      fmt::format("it sleeps, {}; updates wait until it wakes",
                                  dropped ? "without its weights" : "and keeps its weights"),
                      {}};
  answer.dropped = dropped;
  return answer;
}

/// Returns true for a status that leaves open whether the engine was asked: a gateway's about the
/// engine behind it, or an engine's own in a state that it does not know.
bool LeavesOpen(int code) { return code == 502 || code == 503 || code == 504; }

class HttpHook : public EngineHook {
 public:
  HttpHook(const EngineOptions& options, EngineModel model, std::shared_ptr<EngineAccess> access)
      : options_(options),
        model_(std::move(model)),
        access_(std::move(access)),
        client_(options.address, access_) {}

  EngineAnswer Make(EngineCall call, const Identity& to, std::chrono::milliseconds limit) override {
    const auto end = SteadyClock::now() + limit;
    if (options_.kind == EngineKind::kVllm && IsPluginCall(call)) return AskPlugin(call, to, end);
    EngineAnswer answer = Send(AskFor(call, to), call, limit);
    if (LacksNames(call)) answer = NamesNothing();
    if (call != EngineCall::kFlush || !answer.done()) return answer;
    return ForgetEncoders(end);
  }
  /// vLLM without the page is too old to sleep. If another answers in its place, as a gateway that
  /// wants another key, it is left at its last state.
  EngineAnswer AskSleep(bool slept, std::chrono::milliseconds limit) override {
    const auto end = SteadyClock::now() + limit;
    HttpReply reply = Look("/is_sleeping", end);
    if (!reply.sent && !reply.cancelled) return Unreachable(reply);
    if (reply.code == kNotFound && !slept) return {};
    const Json answer = Json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
    const auto sleeps = answer.is_object() ? answer.find("is_sleeping") : answer.end();
    if (reply.code != 200 || sleeps == answer.end() || !sleeps->is_boolean()) {
      return DoesNotSay("/is_sleeping", reply, slept);
    }
    if (!sleeps->get<bool>()) return {};
    // vLLM says the same of an engine that was merely paused, by this receiver or another program.
    // Its metrics tell whether it has given memory back.
    reply = Look("/metrics", end);
    if (reply.code == kNotFound && !slept) return {};
    if (reply.code != 200) return DoesNotSay("/metrics", reply, slept);
    EngineAnswer judged = JudgeSleep(reply.body);
    judged.paused = judged.done();
    return judged;
  }
  void Cancel() override { client_.Cancel(); }

 private:
  EngineAnswer Send(Ask ask, EngineCall call, std::chrono::milliseconds limit) {
    if (options_.kind != EngineKind::kHttp) ask.request.target.insert(0, options_.path);
    const HttpReply reply = client_.Send(ask.request, limit);
    code_ = reply.code;
    return Judge(ask, call, reply);
  }

  HttpReply Look(const std::string& page, SteadyClock::time_point end) {
    return client_.Send(Get(options_.path + page).request, Left(end));
  }
  EngineAnswer Unreachable(const HttpReply& reply) {
    has_plugin_.reset();  // another server may come back
    EngineAnswer answer{Result::kUnreachable, reply.error, {}};
    answer.gone = reply.gone;
    return answer;
  }

  /// Asks first whether vLLM has the plug-in: a worker without it raises at a call of it, and then
  /// the ranks' replies are out of step. Done: has_plugin_ is known.
  EngineAnswer FindPlugin(SteadyClock::time_point end) {
    HttpReply reply = Look("/metrics", end);
    if (!reply.sent && !reply.cancelled) return Unreachable(reply);
    if (reply.code != 200 && reply.code != kNotFound) {
      EngineAnswer answer{Result::kUnsure,
                          fmt::format("it does not say whether it has the plug-in: /metrics: {}",
                                      reply.code == 0 ? reply.error : Refusal(reply)),
                          {}};
      answer.unasked = true;
      return answer;
    }
    has_plugin_ = reply.code == 200 && HasPlugin(reply.body);
    const uint32_t all = CountOf(Look("/get_world_size", end), "world_size");
    const uint32_t one = CountOf(Look("/get_world_size?include_dp=false", end), "world_size");
    replicas_ = one > 0 && all > one ? all / one : 1;
    return {};
  }

  EngineAnswer AskPlugin(EngineCall call, const Identity& to, SteadyClock::time_point end) {
    if (call == EngineCall::kAsk || !has_plugin_) {
      const EngineAnswer found = FindPlugin(end);
      if (!found.done()) return found;
    }
    if (!*has_plugin_) return {Result::kRefused, std::string(kNoPlugin), {}};
    const std::string nonce = Nonce();
    EngineAnswer answer =
        AskRanks(PluginBody(call, to, options_, model_, nonce, replicas_), nonce, call, to, end);
    const bool heard = answer.done() || answer.result == Result::kRefused;
    const uint32_t replicas = std::max(replicas_, replicas_of_ranks_);
    if (!heard || !Settles(call) || replicas == 1) return answer;
    const std::string next = Nonce();
    return AskRanks(SettleBody(nonce, next, replicas), next, call, to, end);
  }

  /// Makes one call to the workers of vLLM, and judges the word of all ranks.
  EngineAnswer AskRanks(const Json& body, const std::string& nonce, EngineCall call,
                        const Identity& to, SteadyClock::time_point end) {
    const Ask ask = Post(options_.path + "/collective_rpc", body);
    const HttpReply reply = client_.Send(ask.request, Left(end));
    if (!reply.sent && !reply.cancelled) return Unreachable(reply);
    if (reply.code == 0) return {Result::kUnsure, reply.error, {}};
    // The plug-in never raises. If the server says that a worker has, the worker may have died.
    if (reply.code < 200 || reply.code > 299) return {Result::kUnsure, Refusal(reply), {}};
    const Json said = Json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
    const auto results = said.is_object() ? said.find("results") : said.end();
    if (results == said.end()) {
      return {Result::kUnsure,
              fmt::format("{}, but the answer has no results: {}", reply.code,
                          Quoted(reply.body, reply)),
              {}};
    }
    auto word = ReadPluginWord(*results, nonce);
    if (!word) return OutOfStep();
    replicas_of_ranks_ = word->replicas;
    word->process = Quoted(word->process, reply, kMostForeignName);
    word->reason = Quoted(word->reason, reply);
    if (word->ok) SayUntaken(*word, reply);
    return JudgeWord(*word, call, to);
  }

  void SayUntaken(const PluginWord& word, const HttpReply& reply) const {
    if (word.untaken.empty()) return;
    LogWarn("model {}: engine {}: no part of it takes {} tensors of the version: {}", model_.name,
            NameOf(options_), word.untaken.size(),
            Quoted(fmt::format("{}", fmt::join(word.untaken, ", ")), reply));
  }

  std::string Nonce() {
    std::random_device random;
    const auto half = [&random] { return uint64_t{random()} << 32 | random(); };
    const uint64_t high = half();
    return fmt::format("{:016x}{:016x}", high, half());
  }

  EngineAnswer DoesNotSay(std::string_view page, const HttpReply& reply, bool slept) {
    EngineAnswer answer{
        Result::kUnsure,
        fmt::format("it does not say whether it {}: {}: {}", slept ? "still sleeps" : "sleeps",
                    page, reply.code == 0 ? reply.error : Refusal(reply)),
        {}};
    answer.unasked = true;
    return answer;
  }

  /// Resets the cache of a multimodal model's encoder, whose keys are the images' hashes alone. It
  /// comes after the prefix cache, whose reset has put the requests that use it back into the
  /// queue. vLLM's third cache, of prepared inputs (/reset_mm_cache), does not depend on the
  /// weights. To reset that one under traffic would make later requests fail, since its two ends
  /// would differ.
  EngineAnswer ForgetEncoders(SteadyClock::time_point end) {
    Ask ask = Post("/reset_encoder_cache");
    ask.answers_json = false;
    const EngineAnswer answer = Send(std::move(ask), EngineCall::kFlush, Left(end));
    if (code_ != kNotFound) return answer;
    if (!std::exchange(keeps_encoders_, true)) {
      LogInfo(
          "engine {}: it has no /reset_encoder_cache: what a multimodal model's encoder has "
          "computed with older weights stays in its cache",
          NameOf(options_));
    }
    return {};
  }

  /// Returns true for vLLM before 0.27, which has no name for its weights. The plug-in needs a
  /// newer one.
  bool LacksNames(EngineCall call) const {
    return options_.kind == EngineKind::kVllmReload && call == EngineCall::kName &&
           code_ == kNotFound;
  }
  EngineAnswer NamesNothing() {
    if (!std::exchange(names_nothing_, true)) {
      LogInfo("engine {}: it has no /update_weight_version: its responses name no version",
              NameOf(options_));
    }
    return {};
  }

  Ask AskFor(EngineCall call, const Identity& to) const {
    switch (options_.kind) {
      case EngineKind::kVllm:
      case EngineKind::kVllmReload:
        return AskVllm(call, to);
      case EngineKind::kSglang:
      case EngineKind::kSglangReload:
        return AskSglang(call, to);
      case EngineKind::kHttp:
      case EngineKind::kExec:
      case EngineKind::kDiskDelta:
        break;
    }
    return Post(options_.path, {{"model", model_.name},
                                {"directory", model_.directory.native()},
                                {"version", to.id.version},
                                {"epoch", to.id.epoch},
                                {"lineage", to.lineage.Hex()},
                                {"root", fmt::format("{:016x}", to.root)}});
  }

  /// The request has no "timeout" of vLLM's own: later answers of its ranks would stay unread.
  Ask Reload() const {
    Ask ask =
        Post("/collective_rpc",
             {{"method", "reload_weights"},
              {"kwargs",
               {{"weights_path", model_.directory.native()}, {"is_checkpoint_format", true}}}});
    // Each rank's answer is null. Anything else is an answer to another call.
    ask.lacks = [](const Json& answer) -> std::string {
      const auto results = answer.find("results");
      if (results == answer.end() || !results->is_array() || results->empty()) return "no results";
      const bool nulls = std::ranges::all_of(*results, [](const Json& r) { return r.is_null(); });
      return nulls ? "" : std::string(kOutOfStep);
    };
    return ask;
  }

  Ask AskVllm(EngineCall call, const Identity& to) const {
    switch (call) {
      case EngineCall::kProbe:
        return Get("/weight_info");
      case EngineCall::kPause:
        return Saying(Post(fmt::format("/pause?mode={}", PauseOf(options_))), "status", "paused");
      case EngineCall::kLoad:
        return Reload();
      case EngineCall::kFlush:
        // Running requests hold blocks, which would keep them. They go back into the queue, and are
        // computed anew as far as they had come.
        return Saying(Post("/reset_prefix_cache?reset_running_requests=true&reset_external=true"),
                      "success", true);
      case EngineCall::kName:
        return Saying(Post("/update_weight_version", {{"new_version", VersionName(to)}}), "success",
                      true);
      case EngineCall::kResume:
        return Saying(Post("/resume"), "status", "resumed");
      default:
        break;  // the plug-in's
    }
    return {};
  }

  Ask AskSglang(EngineCall call, const Identity& to) const {
    const std::string& directory = model_.directory.native();
    const std::string version = VersionName(to);
    // The plug-in's orders are paths that no directory has.
    const auto order = [&](std::string_view what) {
      return fmt::format("deltawire:{}?version={}&root={:016x}{}", directory, version, to.root,
                         what);
    };
    // Any order attaches where nothing is attached.
    const std::string attach = std::string(options_.loader_tensors ? "&loader_tensors" : "") +
                               (options_.plans ? "&plans" : "");
    // Requests that are paused in place keep their cache entries from older weights, and SGLang
    // flushes nothing while there are any: with a flush it would fail after the write.
    const bool flush = PauseOf(options_) != "in_place";
    const auto update = [&](const std::string& path) {
      return Saying(
          Post("/update_weights_from_disk",
               {{"model_path", path}, {"weight_version", version}, {"flush_cache", flush}}),
          "success", true);
    };
    switch (call) {
      case EngineCall::kProbe:
        return Get("/model_info");
      case EngineCall::kPrepare:
      case EngineCall::kProve:
        return Saying(Post("/weights_checker", {{"action", order("&prepare" + attach)}}), "success",
                      true);
      case EngineCall::kCheck:
        return Saying(Post("/weights_checker", {{"action", order("&check")}}), "success", true);
      case EngineCall::kPause:
        return Saying(Post("/pause_generation", {{"mode", PauseOf(options_)}}), "status", "ok");
      case EngineCall::kReload:
        return update(directory);
      case EngineCall::kLoad:
        return update(options_.kind == EngineKind::kSglang ? order(attach) : directory);
      case EngineCall::kResume:
        return Saying(Post("/continue_generation", {{"torch_empty_cache", false}}), "status", "ok");
      case EngineCall::kRollback:
        return update(order("&rollback"));
      default:
        break;
    }
    return {};
  }

  /// Returns `words` of the engine or a gateway without the key that went with the request, and
  /// without the one that has replaced that key since.
  std::string Quoted(std::string words, const HttpReply& reply, size_t most = kMostForeign) const {
    std::vector<std::string> keys;
    if (reply.secrets != nullptr) keys.push_back(reply.secrets->token);
    if (access_ != nullptr) keys.push_back(access_->Now()->token);
    return QuoteForeign(std::move(words), std::move(keys), most);
  }

  /// Returns an answer that is not 2xx, in words. `parsed`: its body.
  std::string Refusal(const HttpReply& reply, const Json& parsed) const {
    std::string words = WordsOf(parsed);
    if (words.empty()) words = reply.body;
    return fmt::format("{}: {}{}", reply.code, Quoted(std::move(words), reply),
                       KeyHint(reply.code));
  }
  std::string Refusal(const HttpReply& reply) const {
    return Refusal(reply, Json::parse(reply.body, nullptr, /*allow_exceptions=*/false));
  }

  /// Returns the remedy for an answer that wants a key, or another one.
  std::string_view KeyHint(int code) const {
    if (code != 401 && code != 403) return "";
    return options_.token_file.empty()
               ? " (it wants an API key: token_file= after its URL names the file)"
               : " (it does not take the key in the file of token_file=)";
  }

  /// Judges a reply. Engines have answered with 2xx after a failure, so the content must say yes.
  EngineAnswer Judge(const Ask& ask, EngineCall call, const HttpReply& reply) {
    if (!reply.sent && !reply.cancelled) return Unreachable(reply);
    if (reply.code == 0) return {Result::kUnsure, reply.error, {}};
    const Json answer = Json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
    if (reply.code < 200 || reply.code > 299) {
      // It answers, and has no page that names a version.
      if (call == EngineCall::kProbe && reply.code == kNotFound) return {};
      std::string words = WordsOf(answer);
      if (words.empty()) words = reply.body;
      EngineAnswer refused{
          LeavesOpen(reply.code) ? Result::kUnsure : Result::kRefused, Refusal(reply, answer), {}};
      refused.only_anew = words.find(kOnlyAnew) != std::string::npos;
      refused.drifted = words.find(kDrifted) != std::string::npos;
      return refused;
    }
    if (!ask.answers_json || options_.kind == EngineKind::kHttp) return {};
    if (!answer.is_object()) {
      return {Result::kUnsure,
              fmt::format("{}, but the answer is no JSON object: {}", reply.code,
                          Quoted(reply.body, reply)),
              {}};
    }
    if (const std::string lacks = ask.lacks(answer); !lacks.empty()) {
      if (lacks == kOutOfStep) return OutOfStep();
      return {Result::kRefused,
              fmt::format("{}, but {}: {}", reply.code, lacks, Quoted(reply.body, reply)),
              {}};
    }
    EngineAnswer done;
    if (call == EngineCall::kProbe) {
      done.version = Quoted(TextOf(answer, "weight_version"), reply, kMostForeignName);
    }
    return done;
  }

  const EngineOptions options_;
  const EngineModel model_;
  const std::shared_ptr<EngineAccess> access_;  // null: none
  HttpClient client_;
  int code_ = 0;                    // of the last answer
  std::optional<bool> has_plugin_;  // none: not asked yet
  uint32_t replicas_ = 1;           // behind its address
  uint32_t replicas_of_ranks_ = 1;  // the same, as its workers say
  bool keeps_encoders_ = false, names_nothing_ = false;
};

}  // namespace

std::unique_ptr<EngineHook> MakeHttpHook(const EngineOptions& options, const EngineModel& model,
                                         std::shared_ptr<EngineAccess> access) {
  return std::make_unique<HttpHook>(options, model, std::move(access));
}

}  // namespace deltawire::receiver
