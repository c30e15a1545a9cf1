// What a stand-in of an engine answers, whichever engine it stands for: its requests without HTTP,
// and what both contracts know of a server. Owner: an EngineStandIn, under whose lock all of it is
// used. Threads: one at a time. Cost: the model's bytes. Errors: in the answers, as the engine's
// own; what a caller must never do, in `wrong`.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/stand_in_weights.h"

namespace deltawire::testing {

struct StandInAnswer {
  int code = 200;
  nlohmann::json body = nlohmann::json::object();  ///< a string: text; null: none
};

struct StandInTarget {
  std::string path;
  std::map<std::string, std::string> query;
};
/// "/pause?mode=keep&x" as path and options.
StandInTarget ParseTarget(const std::string& text);

/// FastAPI's answer to a body or query that its model refuses.
StandInAnswer Unprocessable(std::string_view what);

class StandInContract {
 public:
  /// How a load of the directory goes.
  enum class Loads { kWell, kTorn, kStalls };
  static constexpr int kRunningRequests = 2;

  explicit StandInContract(std::filesystem::path directory) : weights(std::move(directory)) {}
  virtual ~StandInContract() = default;

  /// As a new process: nothing is known of before, and the directory is loaded if it has a version.
  virtual void Start();
  virtual StandInAnswer Get(const StandInTarget& target) = 0;
  virtual StandInAnswer Post(const StandInTarget& target, const nlohmann::json& body,
                             Loads loads) = 0;
  /// What a fault is set for and a test is told was called: the path, or the plug-in's call.
  virtual std::string NameOf(const StandInTarget& target, const nlohmann::json&) const {
    return target.path;
  }
  /// The answer of workers that refuse a call, as values; nothing is done.
  virtual StandInAnswer Refusal(const nlohmann::json& body, int code, const std::string& text) {
    (void)body;
    return {code, text};
  }
  /// Whether calls with this name wait for each other, in the order in which they come.
  virtual bool TakesTurns(const std::string&) const { return false; }

  StandInWeights weights;
  bool paused = false;
  std::string version;
  int running = kRunningRequests, aborted = 0;
  std::vector<std::string> wrong;
  std::function<void()> stall;  ///< called in the middle of a load that stalls
  /// Lets other requests be answered for a moment. False: the server ends.
  std::function<bool()> others;
  std::chrono::milliseconds request_time{0};  ///< for which requests run on, if they are waited for

 protected:
  Status Load(Loads loads);
  void Forbid(bool forbidden, const std::string& what) {
    if (forbidden) wrong.push_back(what);
  }
};

}  // namespace deltawire::testing
