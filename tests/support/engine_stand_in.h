// A stand-in for a vLLM or SGLang server with deltawire's plug-in: their endpoints as strict as
// theirs, over a real socket, and the real engine client behind them; what is missing is a model
// that computes. Faults are set by the test. Owner: the test case, which outlives nothing of it.
// Threads: methods from any; one of its own. Cost: the model's bytes. Errors: violations().
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/bytes.h"

namespace deltawire::testing {

class EngineStandIn {
 public:
  enum class Api { kVllm, kSglang };

  /// What becomes of the next requests of one path.
  struct Fault {
    enum class Kind {
      kAnswer,   ///< `code` and `body`; nothing is done
      kHang,     ///< no answer until the caller goes; nothing is done
      kCut,      ///< the connection is closed; nothing is done
      kCutDone,  ///< done, and then closed without an answer
      kGarbage,  ///< done, and then 200 with what is no JSON
      kTorn,     ///< a load of the directory: half the weights are garbage; then 500
      kStall,    ///< a load: reads half of the directory, and goes on at GoOn()
    };
    Kind kind = Kind::kAnswer;
    int code = 500;
    std::string body = R"({"error": {"message": "out of memory", "code": 500}})";
    int times = 1;
  };

  /// `directory`: of a receiver; loaded at Start, if it holds a version by then.
  EngineStandIn(Api api, std::filesystem::path directory);
  ~EngineStandIn();

  /// As a new process: nothing is known of before. It listens at the same port as ever.
  void Start();
  /// As a process that ends: connections are cut, and new ones refused.
  void Stop();

  std::string url() const;  ///< "http://127.0.0.1:PORT"
  void Set(const std::string& path, const Fault& fault);
  /// Ends what hangs by kStall.
  void GoOn();

  /// The paths of POST requests so far, as they came; since the last call of this.
  std::vector<std::string> TakeCalls();
  /// A POST of this path has come since the last TakeCalls.
  bool Called(const std::string& path) const;
  bool paused() const;
  std::string weight_version() const;
  /// Changes a byte of them, as nobody should. The next prepare, or check, finds it and refuses.
  void Corrupt(size_t byte);
  /// The weights that requests would be answered from: tensors in the layout's order.
  std::vector<std::byte> weights() const;
  /// What a caller must never do: resume with weights of no version, write while it computes.
  std::vector<std::string> violations() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace deltawire::testing
