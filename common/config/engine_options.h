// An inference engine that a receiver drives, as --engine names it, and what is done when an update
// of it fails. Plain values; pure functions. docs/engine.md says what each kind is asked.
// Errors: kInvalidArgument says what is wrong with the text.
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
  kVllmReload,    ///< vLLM as it is: it reads the directory again
  kSglang,        ///< SGLang with deltawire's plug-in
  kSglangReload,  ///< SGLang as it is: it reads the directory again
  kHttp,          ///< one POST; an answer of 2xx means that the version is served
  kExec,          ///< a program; its exit with 0 means that the version is served
  kDiskDelta,     ///< a directory of versions for engines that apply deltas themselves
};
/// As in --engine: "vllm", "vllm-reload", ...
std::string_view ToString(EngineKind kind);

/// What is done when an engine may have been changed and did not come to serve the version.
enum class EngineFailure : uint8_t {
  kRetry,       ///< try again, so many times; then as kStayPaused
  kRollback,    ///< take the update back and serve the version before; else as kStayPaused
  kStayPaused,  ///< leave the engine paused until the next version
  kTakeOut,     ///< leave the engine alone until it or the receiver starts anew
};
std::string_view ToString(EngineFailure what);

struct EngineOptions {
  std::string model;  ///< empty: the receiver's only one
  EngineKind kind = EngineKind::kHttp;
  Endpoint address;                  ///< of the kinds that have a URL
  std::string path;                  ///< http: what is posted to; else a prefix of every path
  std::vector<std::string> command;  ///< exec: absolute path of the program, and its arguments
  std::string directory;             ///< disk-delta: absolute
  bool overwrite = false;            ///< disk-delta: positions and bytes in place of XOR
  uint32_t keep = 64;                ///< disk-delta: versions after which one is written whole
  // What a plug-in is told when it attaches (docs/engine.md, "How the layout is found").
  bool loader_tensors = false;
  bool second_instance = false;  ///< vllm
  bool plans = false;
  // Of the kinds that have a URL.
  bool tls = false;        ///< https
  std::string token_file;  ///< absolute; what is shown with each request; empty: nothing
  std::string ca_file;     ///< absolute; whom https believes; empty: the system's authorities
  std::string pause;       ///< of engines that are paused, in their words; empty: their usual one
  friend bool operator==(const EngineOptions&, const EngineOptions&) = default;
};
/// The engine's name in statuses, unique within a model: "127.0.0.1:8000/path", the program and its
/// arguments, or the directory.
std::string NameOf(const EngineOptions& engine);

/// How requests that run are held for an update: vLLM's abort, wait or keep (its usual one here),
/// SGLang's abort, retract (its usual one) or in_place. REQUIRES: the kind is vLLM's or SGLang's.
std::string_view PauseOf(const EngineOptions& engine);

/// "[MODEL:]KIND=http[s]://HOST:PORT[/PATH] [token_file=/FILE] [ca_file=/FILE] [pause=MODE]
/// [loader_tensors] [second_instance] [plans]" (pause= for vLLM and SGLang, the three words after
/// it for the kinds vllm and sglang, and second_instance for vllm alone), "[MODEL:]exec=/PROGRAM
/// [ARGUMENT ...]" or "[MODEL:]disk-delta=/DIRECTORY [xor|overwrite] [keep=N]". Words are separated
/// by spaces, and nothing is quoted.
StatusOr<EngineOptions> ParseEngine(std::string_view text);

}  // namespace deltawire
