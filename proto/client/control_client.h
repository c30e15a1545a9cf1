// A client for a daemon's orchestrator service that calls methods by name, in JSON (docs/json.md).
// The C ABI and, over it, Python use it. Any thread may start calls; one thread at a time calls a
// call's Next, and any thread its Cancel. The client has one connection with a thread, and makes a
// new one if credentials change or it breaks. Errors have the daemon's name and address.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"

namespace deltawire {

/// One call. It ends with OK or an error after any number of answers. The destructor cancels it.
class ControlCall {
 public:
  enum class Turn : uint8_t {
    kAnswer,  ///< there is another answer
    kEnd,     ///< the call has ended with OK
    kNotYet,  ///< no answer in time; ask again
  };

  ~ControlCall();
  /// Waits up to `patience` (negative: without limit) for the next answer, a JSON object in one
  /// line. An error ends the call, and further calls of Next return it again.
  StatusOr<Turn> Next(std::chrono::milliseconds patience, std::string* answer);
  /// Ends the call with kCancelled if it has not ended.
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
    std::string address;      ///< "host:port", "[v6]:port" or ":port" (loopback)
    std::string credentials;  ///< file (docs/security.md); empty: plaintext without a token
    std::chrono::milliseconds timeout = std::chrono::seconds(10);  ///< of connecting
  };

  /// Reads the credentials. It does not dial yet.
  static StatusOr<std::unique_ptr<ControlClient>> Create(const Options& options);
  ~ControlClient();

  /// Connects if necessary, and begins a call of `method`, such as "GetStatus". Fields that
  /// `request` leaves out have their defaults; unknown fields are kInvalidArgument. `timeout`
  /// covers the whole call (0: none).
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
