// A stand-in for a vLLM or SGLang server with deltawire's plug-in: their endpoints as strict as
// theirs, over a real socket, and the real engine client behind them; what is missing is a model
// that computes. Faults are set by the test. Owner: the test case, which outlives nothing of it.
// Threads: methods from any; some of its own. Cost: the model's bytes. Errors: violations().
#pragma once

#include <chrono>
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

  /// What becomes of the next requests of one path, or of one call of vLLM's plug-in ("apply").
  struct Fault {
    enum class Kind {
      kAnswer,   ///< `code` and `body`; nothing is done
      kRaise,    ///< the same; of a call of vLLM's plug-in: its workers refuse it
      kHang,     ///< no answer until the caller goes; nothing is done
      kCut,      ///< the connection is closed; nothing is done
      kCutDone,  ///< done, and then closed without an answer
      kGarbage,  ///< done, and then 200 with what is no JSON
      kTorn,     ///< a load of the directory: half the weights are garbage; then 500
      kStall,    ///< a load: reads half of the directory, and goes on at GoOn()
      kSlow,     ///< done after `takes`, also if the caller has gone by then
    };
    Kind kind = Kind::kAnswer;
    int code = 500;
    std::string body = R"({"error": {"message": "out of memory", "code": 500}})";
    int times = 1;
    std::chrono::milliseconds takes{0};
  };

  /// `directory`: of a receiver; loaded at Start, if it holds a version by then.
  EngineStandIn(Api api, std::filesystem::path directory);
  ~EngineStandIn();

  /// As a new process: nothing is known of before. It listens at the same port as ever.
  void Start();
  /// As a process that ends: connections are cut, and new ones refused.
  void Stop();

  std::string url() const;  ///< "http://127.0.0.1:PORT", or https
  /// From the next Start on: speaks TLS, with this certificate and key in PEM.
  void SpeakTls(const std::string& certificate, const std::string& key);
  /// From now on each request must show this key, as SGLang's --api-key and the gateways before
  /// engines want it; "": none. vLLM's own --api-key leaves these paths open.
  void WantKey(const std::string& key);
  void Set(const std::string& path, const Fault& fault);
  /// Ends what hangs by kStall.
  void GoOn();

  /// Of vLLM alone, as LackEncoderReset and probes. As POST /sleep and /wake_up from somebody else:
  /// level 1 keeps the weights, 2 drops them, and `tags` ("weights", "kv_cache") wakes a part; "":
  /// all. Fully awake, it goes on by itself.
  void Sleep(int level);
  void WakeUp(const std::string& tags = "");
  void Pause();  ///< as POST /pause?mode=keep from somebody else
  /// How often it was asked whether it sleeps.
  uint64_t probes() const;

  /// The paths of POST requests so far, as they came; since the last call of this.
  std::vector<std::string> TakeCalls();
  /// A POST of this path has come since the last TakeCalls.
  bool Called(const std::string& path) const;
  /// Of vLLM alone: as one without the plug-in; and as one whose workers' replies are out of step,
  /// since a call of somebody's has failed.
  void LackPlugin();
  void FailForeignCall();
  /// For so long the requests that run at a pause run on, if it waits for them.
  void SetRequestTime(std::chrono::milliseconds time);
  /// As a vLLM that is older than /reset_encoder_cache.
  void LackEncoderReset();
  bool paused() const;
  /// Requests that ran when it was paused and were ended by that.
  int aborted() const;
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
