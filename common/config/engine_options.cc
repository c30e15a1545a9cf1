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

// In the engines' words; the last one is the default.
constexpr std::string_view kVllmPauses[] = {"abort", "wait", "keep"};
constexpr std::string_view kSglangPauses[] = {"abort", "in_place", "retract"};

constexpr std::string_view kScheme = "http://", kTlsScheme = "https://";
constexpr uint32_t kMostKept = 10'000;

/// Returns true for visible ASCII, as the first line of a request needs.
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

/// Parses "/DIRECTORY [xor|overwrite] [keep=N]".
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

bool IsVllm(EngineKind kind) {
  return kind == EngineKind::kVllm || kind == EngineKind::kVllmReload;
}
bool IsSglang(EngineKind kind) {
  return kind == EngineKind::kSglang || kind == EngineKind::kSglangReload;
}

/// Returns the words that may follow the URL of an engine of this kind, for an error message.
std::string UrlWords(EngineKind kind) {
  std::string words = "token_file=, ca_file=";
  if (IsVllm(kind) || IsSglang(kind)) words += ", pause=";
  if (kind == EngineKind::kVllm || kind == EngineKind::kSglang) words += ", loader_tensors, plans";
  if (kind == EngineKind::kVllm) words += ", second_instance";
  return words;
}

Status ReadFileName(std::string_view word, std::string_view path, std::string* file) {
  if (!path.starts_with('/')) {
    return Errorf(StatusCode::kInvalidArgument, "\"{}\" does not name a file by its absolute path",
                  word);
  }
  *file = path;
  return {};
}

Status ReadPause(std::string_view mode, EngineOptions* engine) {
  const auto& modes = IsVllm(engine->kind) ? kVllmPauses : kSglangPauses;
  if (std::find(std::begin(modes), std::end(modes), mode) == std::end(modes)) {
    return Errorf(StatusCode::kInvalidArgument, "pause={} is none of {}'s: {}", mode,
                  IsVllm(engine->kind) ? "vLLM" : "SGLang", fmt::join(modes, ", "));
  }
  engine->pause = mode;
  return {};
}

/// Parses a word that follows the URL.
Status ReadUrlWord(std::string_view word, EngineOptions* engine) {
  const EngineKind kind = engine->kind;
  const bool plug_in = kind == EngineKind::kVllm || kind == EngineKind::kSglang;
  const size_t equals = word.find('=');
  if (equals != std::string_view::npos) {
    const std::string_view name = word.substr(0, equals), value = word.substr(equals + 1);
    if (name == "token_file") return ReadFileName(word, value, &engine->token_file);
    if (name == "ca_file") return ReadFileName(word, value, &engine->ca_file);
    if (name == "pause" && (IsVllm(kind) || IsSglang(kind))) return ReadPause(value, engine);
  } else if (plug_in && word == "loader_tensors") {
    engine->loader_tensors = true;
    return {};
  } else if (plug_in && word == "plans") {
    engine->plans = true;
    return {};
  } else if (kind == EngineKind::kVllm && word == "second_instance") {
    engine->second_instance = true;
    return {};
  }
  return Errorf(StatusCode::kInvalidArgument,
                "\"{}\" is none of {}, which may follow the URL of this kind", word,
                UrlWords(kind));
}

Status ReadUrl(std::string_view url, EngineOptions* engine) {
  engine->tls = url.starts_with(kTlsScheme);
  if (!engine->tls && !url.starts_with(kScheme)) {
    return Errorf(StatusCode::kInvalidArgument,
                  "\"{}\" is neither http://HOST:PORT nor https://HOST:PORT", url);
  }
  url.remove_prefix(engine->tls ? kTlsScheme.size() : kScheme.size());
  const size_t space = std::min(url.find(' '), url.size());
  for (const std::string& word : Words(url.substr(space))) {
    DW_RETURN_IF_ERROR(ReadUrlWord(word, engine));
  }
  url = url.substr(0, space);
  if (!engine->tls && !engine->ca_file.empty()) {
    return Errorf(StatusCode::kInvalidArgument,
                  "ca_file={}: no certificate is looked at without https://", engine->ca_file);
  }
  const size_t slash = std::min(url.find('/'), url.size());
  DW_ASSIGN_OR_RETURN(engine->address, ParseEndpoint(url.substr(0, slash)));
  if (engine->address.port == 0) {
    return Errorf(StatusCode::kInvalidArgument, "\"{}\": port 0 cannot be dialled", url);
  }
  engine->path = url.substr(slash);
  if (!IsPath(engine->path)) {
    return Errorf(StatusCode::kInvalidArgument,
                  "\"{}\" has a path with characters that are not visible ASCII", url);
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

std::string_view PauseOf(const EngineOptions& engine) {
  if (!engine.pause.empty()) return engine.pause;
  return IsVllm(engine.kind) ? kVllmPauses[2] : kSglangPauses[2];
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
