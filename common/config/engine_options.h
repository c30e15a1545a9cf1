// An inference engine that a receiver drives, as --engine names it, and the response to a failed
// update. docs/engine.md describes the requests to each kind. Errors are kInvalidArgument and
// describe the mistake in the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/config/endpoint.h"

namespace deltawire {

enum class EngineKind : uint8_t {
  kVllm,          ///< vLLM with deltawire's plug-in
  kVllmReload,    ///< vLLM without the plug-in: it reads the directory again
  kSglang,        ///< SGLang with deltawire's plug-in
  kSglangReload,  ///< SGLang without the plug-in: it reads the directory again
  kHttp,          ///< one POST; a 2xx answer means that the version is served
  kExec,          ///< a program; exit code 0 means that the version is served
  kDiskDelta,     ///< a directory of versions for engines that apply deltas themselves
};
/// Returns the word in --engine: "vllm", "vllm-reload", ...
std::string_view ToString(EngineKind kind);

/// The response to an update that may have changed an engine without making it serve the version.
enum class EngineFailure : uint8_t {
  kRetry,       ///< retry up to five times, then as kStayPaused
  kRollback,    ///< undo the update and serve the previous version; else as kStayPaused
  kStayPaused,  ///< leave the engine paused until the next version
  kTakeOut,     ///< no more updates until the engine or the receiver restarts
};
std::string_view ToString(EngineFailure what);

struct EngineOptions {
  std::string model;  ///< empty: the receiver's only one
  EngineKind kind = EngineKind::kHttp;
  Endpoint address;                  ///< for the kinds that have a URL
  std::string path;                  ///< http: the path of the POST; else a prefix of every path
  std::vector<std::string> command;  ///< exec: absolute path of the program, and its arguments
  std::string directory;             ///< disk-delta: absolute
  bool overwrite = false;            ///< disk-delta: positions and bytes in place of XOR
  uint32_t keep = 64;                ///< disk-delta: versions after which one is whole
  // Passed to a plug-in when it attaches (docs/engine.md, "How the layout is found").
  bool loader_tensors = false;
  bool second_instance = false;  ///< vllm
  bool plans = false;
  // For the kinds that have a URL.
  bool tls = false;        ///< https
  std::string token_file;  ///< absolute; holds the token of each request; empty: none
  std::string ca_file;     ///< absolute; trusted by https; empty: the system's authorities
  std::string pause;       ///< for engines that are paused, in their words; empty: their default
  friend bool operator==(const EngineOptions&, const EngineOptions&) = default;
};
/// Returns the engine's name in statuses, unique within a model: "127.0.0.1:8000/path", the program
/// and its arguments, or the directory.
std::string NameOf(const EngineOptions& engine);

/// Returns how an update pauses running requests: vLLM's abort, wait or keep (the default),
/// SGLang's abort, retract (the default) or in_place. REQUIRES: the kind is vLLM's or SGLang's.
std::string_view PauseOf(const EngineOptions& engine);

/// Parses "[MODEL:]KIND=http[s]://HOST:PORT[/PATH] [token_file=/FILE] [ca_file=/FILE] [pause=MODE]
/// [loader_tensors] [second_instance] [plans]", "[MODEL:]exec=/PROGRAM [ARGUMENT ...]" or
/// "[MODEL:]disk-delta=/DIRECTORY [xor|overwrite] [keep=N]". pause= is for vLLM and SGLang, the
/// three words after it for the kinds vllm and sglang, but second_instance for vllm alone. Words
/// are separated by spaces; there are no quotes.
StatusOr<EngineOptions> ParseEngine(std::string_view text);

}  // namespace deltawire
