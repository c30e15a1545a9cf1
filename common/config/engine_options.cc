#include "common/config/engine_options.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "common/base/model_name.h"

namespace deltawire {
namespace {

// Indexed by the enums' values.
constexpr std::string_view kKinds[] = {"vllm", "vllm-reload", "sglang",    "sglang-reload",
                                       "http", "exec",        "disk-delta"};
static_assert(std::size(kKinds) == static_cast<size_t>(EngineKind::kDiskDelta) + 1);
constexpr std::string_view kFailures[] = {"retry", "rollback", "stay-paused", "take-out"};
static_assert(std::size(kFailures) == static_cast<size_t>(EngineFailure::kTakeOut) + 1);

constexpr std::string_view kScheme = "http://";
constexpr uint32_t kMostKept = 10'000;

/// Visible ASCII: what may stand in a request's first line.
bool IsPath(std::string_view path) {
  return std::all_of(path.begin(), path.end(), [](char c) { return c > ' ' && c <= '~'; });
}

std::vector<std::string> Words(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    if (space > 0) words.emplace_back(text.substr(0, space));
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return words;
}

Status ReadProgram(std::string_view target, EngineOptions* engine) {
  engine->command = Words(target);
  if (engine->command.empty() || !engine->command.front().starts_with('/')) {
    return Errorf(StatusCode::kInvalidArgument,
                  "\"{}\" does not begin with the absolute path of a program", target);
  }
  return {};
}

/// "/DIRECTORY [xor|overwrite] [keep=N]"
Status ReadDiskDelta(std::string_view target, EngineOptions* engine) {
  const std::vector<std::string> words = Words(target);
  if (words.empty() || !words.front().starts_with('/')) {
    return Errorf(StatusCode::kInvalidArgument,
                  "\"{}\" does not begin with the absolute path of a directory", target);
  }
  engine->directory = words.front();
  for (size_t i = 1; i < words.size(); ++i) {
    constexpr std::string_view kKeep = "keep=";
    if (words[i] == "xor" || words[i] == "overwrite") {
      engine->overwrite = words[i] == "overwrite";
    } else if (words[i].starts_with(kKeep)) {
      const char* const end = words[i].data() + words[i].size();
      const auto [at, error] = std::from_chars(words[i].data() + kKeep.size(), end, engine->keep);
      if (error != std::errc() || at != end || engine->keep == 0 || engine->keep > kMostKept) {
        return Errorf(StatusCode::kInvalidArgument, "\"{}\": keep= wants 1 to {}", words[i],
                      kMostKept);
      }
    } else {
      return Errorf(StatusCode::kInvalidArgument,
                    "\"{}\" is none of xor, overwrite and keep=N, which may follow the directory",
                    words[i]);
    }
  }
  return {};
}

/// What may follow the URL of an engine that has a plug-in.
Status ReadAttachWords(std::string_view text, EngineOptions* engine) {
  for (const std::string& word : Words(text)) {
    if (word == "loader_tensors") {
      engine->loader_tensors = true;
    } else if (word == "plans") {
      engine->plans = true;
    } else if (word == "second_instance" && engine->kind == EngineKind::kVllm) {
      engine->second_instance = true;
    } else {
      return Errorf(StatusCode::kInvalidArgument,
                    "\"{}\" is none of loader_tensors, plans and (vllm) second_instance, which may "
                    "follow the URL",
                    word);
    }
  }
  return {};
}

Status ReadUrl(std::string_view url, EngineOptions* engine) {
  if (!url.starts_with(kScheme)) {
    return Errorf(StatusCode::kInvalidArgument,
                  "\"{}\" is not http://HOST:PORT (there is no TLS to engines yet)", url);
  }
  url.remove_prefix(kScheme.size());
  if (engine->kind == EngineKind::kVllm || engine->kind == EngineKind::kSglang) {
    const size_t space = std::min(url.find(' '), url.size());
    DW_RETURN_IF_ERROR(ReadAttachWords(url.substr(space), engine));
    url = url.substr(0, space);
  }
  const size_t slash = std::min(url.find('/'), url.size());
  DW_ASSIGN_OR_RETURN(engine->address, ParseEndpoint(url.substr(0, slash)));
  if (engine->address.port == 0) {
    return Errorf(StatusCode::kInvalidArgument, "\"{}\": port 0 cannot be dialled", url);
  }
  engine->path = url.substr(slash);
  if (!IsPath(engine->path)) {
    return Errorf(StatusCode::kInvalidArgument,
                  "\"{}\" has a path with spaces or with characters that are not ASCII", url);
  }
  if (engine->kind == EngineKind::kHttp) {
    if (engine->path.empty()) engine->path = "/";
  } else {
    while (engine->path.ends_with('/')) engine->path.pop_back();
  }
  return {};
}

}  // namespace

std::string_view ToString(EngineKind kind) { return kKinds[static_cast<size_t>(kind)]; }
std::string_view ToString(EngineFailure what) { return kFailures[static_cast<size_t>(what)]; }

std::string NameOf(const EngineOptions& engine) {
  if (engine.kind == EngineKind::kExec) return fmt::format("{}", fmt::join(engine.command, " "));
  if (engine.kind == EngineKind::kDiskDelta) return engine.directory;
  return ToString(engine.address) + engine.path;
}

StatusOr<EngineOptions> ParseEngine(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    return Errorf(StatusCode::kInvalidArgument, "\"{}\" is not KIND=TARGET", text);
  }
  EngineOptions engine;
  std::string_view kind = text.substr(0, equals);
  const std::string_view target = text.substr(equals + 1);
  if (const size_t colon = kind.find(':'); colon != std::string_view::npos) {
    engine.model = kind.substr(0, colon);
    DW_RETURN_IF_ERROR(CheckModelName(engine.model));
    kind.remove_prefix(colon + 1);
  }
  const auto* const found = std::find(std::begin(kKinds), std::end(kKinds), kind);
  if (found == std::end(kKinds)) {
    return Errorf(StatusCode::kInvalidArgument, "\"{}\" is not a kind of engine: {}", kind,
                  fmt::join(kKinds, ", "));
  }
  engine.kind = static_cast<EngineKind>(found - std::begin(kKinds));
  const auto read = engine.kind == EngineKind::kExec        ? &ReadProgram
                    : engine.kind == EngineKind::kDiskDelta ? &ReadDiskDelta
                                                            : &ReadUrl;
  DW_RETURN_IF_ERROR(read(target, &engine));
  return engine;
}

}  // namespace deltawire
