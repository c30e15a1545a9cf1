// A daemon's service for orchestrators, called by a method's name and in JSON (docs/json.md), for
// programs that have no messages of ours: the C ABI and, over it, Python. Owner: the caller; a call
// may outlive its client. Threads: a client's from any; a call's Next from one at a time, Cancel
// from any. Cost: one connection and a thread, made anew where credentials change or it breaks.
// Errors: as the tool's, with the daemon's name and address; kInvalidArgument of a bad request.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"

namespace deltawire {

/// One call. It ends with OK or an error after any number of answers; one that is dropped before is
/// cancelled.
class ControlCall {
 public:
  enum class Turn : uint8_t {
    kAnswer,  ///< there is another answer
    kEnd,     ///< there is none any more, and the call has ended with OK
    kNotYet,  ///< nothing has come in time; ask again
  };

  ~ControlCall();
  /// Waits up to `patience` (negative: for ever) for the next answer, a JSON object in one line. An
  /// error has ended the call, and is told again each time.
  StatusOr<Turn> Next(std::chrono::milliseconds patience, std::string* answer);
  /// Ends the call with kCancelled, if it has not ended.
  void Cancel();

 private:
  friend class ControlClient;
  struct State;
  explicit ControlCall(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

class ControlClient {
 public:
  enum class Daemon : uint8_t { kSender, kReceiver };
  struct Options {
    Daemon daemon = Daemon::kSender;
    std::string address;      ///< as the tool's: "host:port", "[v6]:port" or ":port" (loopback)
    std::string credentials;  ///< file (docs/security.md); empty: plaintext, and nothing is shown
    std::chrono::milliseconds timeout = std::chrono::seconds(10);  ///< of connecting
  };

  /// Reads the credentials, and dials nobody yet.
  static StatusOr<std::unique_ptr<ControlClient>> Create(const Options& options);
  ~ControlClient();

  /// Connects where there is no connection, and begins a call of `method`, such as "GetStatus". In
  /// `request` fields that are left out have their defaults; one that the method's request does not
  /// have is refused. `timeout` is the whole call's; 0: none.
  StatusOr<std::unique_ptr<ControlCall>> Start(const std::string& method,
                                               const std::string& request,
                                               std::chrono::milliseconds timeout);

 private:
  class Connection;
  struct Line;
  friend class ControlCall;
  ControlClient();
  std::shared_ptr<Connection> connection_;
};

}  // namespace deltawire
