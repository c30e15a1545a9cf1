#include "common/config/options_parts.h"

#include <algorithm>
#include <set>

#include "common/config/option_kinds.h"

namespace deltawire {
namespace {

constexpr EngineFailure kEngineFailures[] = {EngineFailure::kRetry, EngineFailure::kRollback,
                                             EngineFailure::kStayPaused, EngineFailure::kTakeOut};

}  // namespace

void AddEngines(CLI::App& app, ReceiverOptions& o) {
  AddEach(
      app, "--engine", "[MODEL:]KIND=TARGET ...",
      "Bring this engine to each committed version; KIND: vllm, vllm-reload, sglang, "
      "sglang-reload, http (TARGET http[s]://HOST:PORT, then words such as token_file=FILE, "
      "ca_file=FILE, pause=MODE), exec (TARGET: a program and arguments) or disk-delta (TARGET: a "
      "directory); again for each further engine",
      [&o](const std::string& text) -> Status {
        if (text.empty()) return {};  // none, as in the sample file
        DW_ASSIGN_OR_RETURN(EngineOptions engine, ParseEngine(text));
        o.engines.push_back(std::move(engine));
        return {};
      });
  const auto set_failure = [&o](const std::string& text) {
    for (const EngineFailure what : kEngineFailures) {
      if (text == ToString(what)) o.engine_failure = what;
    }
  };
  app.add_option_function<std::string>(
         "--engine-failure", set_failure,
         "When an update of an engine fails: retry, rollback (serve the version before), "
         "stay-paused or take-out")
      ->check(CLI::IsMember({"retry", "rollback", "stay-paused", "take-out"}))
      ->option_text(Shown("WHAT", ToString(o.engine_failure)));
  AddMillis(app, "--engine-timeout-ms", "A request to an engine that takes longer has failed", 100,
            &o.engine_timeout);
}

Status CheckEngines(const ReceiverOptions& o) {
  const auto model_of = [&o](const EngineOptions& engine) {
    return engine.model.empty() ? o.models.front().name : engine.model;
  };
  for (size_t i = 0; i < o.engines.size(); ++i) {
    const EngineOptions& engine = o.engines[i];
    const auto named = [&](const ReceiverModelOptions& m) { return m.name == engine.model; };
    if (engine.model.empty() && o.models.size() > 1) {
      return Errorf(StatusCode::kInvalidArgument,
                    "--engine: {} needs its model in front, MODEL:KIND=TARGET: there are {} models",
                    NameOf(engine), o.models.size());
    }
    if (!engine.model.empty() && std::none_of(o.models.begin(), o.models.end(), named)) {
      return Errorf(StatusCode::kInvalidArgument, "--engine: there is no model {}", engine.model);
    }
    const auto same = [&](const EngineOptions& other) {
      return model_of(other) == model_of(engine) && NameOf(other) == NameOf(engine);
    };
    if (std::any_of(o.engines.begin(), o.engines.begin() + static_cast<ptrdiff_t>(i), same)) {
      return Errorf(StatusCode::kInvalidArgument, "--engine: {} is named twice", NameOf(engine));
    }
    if (!engine.token_file.empty() && !engine.tls && !IsLoopback(engine.address) &&
        !o.insecure_plaintext) {
      return Errorf(StatusCode::kInvalidArgument,
                    "--engine: {} is beyond loopback, where whoever is on the way would read the "
                    "key of token_file= from a request in plaintext: use https://, or allow it by "
                    "--insecure-plaintext where the network is trusted",
                    NameOf(engine));
    }
  }
  return {};
}

void AddGroups(CLI::App& app, SenderOptions& o) {
  AddEach(app, "--group", "[MODEL:]NAME=ID[,ID...] ...",
          "Receivers that prepare a version and commit it on one word, or stay; again for each "
          "further group",
          [&o](const std::string& text) -> Status {
            if (text.empty()) return {};  // none, as in the sample file
            DW_ASSIGN_OR_RETURN(GroupOptions group, ParseGroup(text));
            o.groups.push_back(std::move(group));
            return {};
          });
  AddSwitch(app, "group-commits",
            "Every published version goes to each group so; off: when `deltawire sync --group` or "
            "an orchestrator says so",
            &o.group_commits);
  AddMillis(app, "--group-timeout-ms",
            "A group that has not prepared a version after so long stays as it is", 100,
            &o.group_timeout);
  AddSwitch(
      app, "group-skip-absent",
      "A group commits without members that are away for 10 s; they follow when they are back",
      &o.group_skip_absent);
}

void AddRateLimits(CLI::App& app, RateLimits* limits) {
  AddEach(app, "--rate-limit", "[site:|receiver:]SIZE ...",
          "Send no more bytes than this a second: to all receivers, to those of each --site "
          "together (site:), or to each receiver of a model (receiver:); 0: no limit",
          [limits, set = std::set<uint64_t*>()](const std::string& text) mutable -> Status {
            const size_t colon = text.find(':');
            const std::string scope = text.substr(0, colon == std::string::npos ? 0 : colon);
            uint64_t* const limit = scope == "site"       ? &limits->per_site
                                    : scope == "receiver" ? &limits->per_receiver
                                                          : &limits->all;
            if (limit == &limits->all && colon != std::string::npos) {
              return Errorf(StatusCode::kInvalidArgument, "\"{}\": \"{}\" is not site or receiver",
                            text, scope);
            }
            if (!set.insert(limit).second) {
              return Errorf(StatusCode::kInvalidArgument, "\"{}\": this limit is set twice", text);
            }
            DW_ASSIGN_OR_RETURN(*limit, ParseSizeValue(text.substr(colon + 1)));
            return {};
          });
}

}  // namespace deltawire
