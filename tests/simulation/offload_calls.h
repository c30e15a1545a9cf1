// The calls of a trainer's rank that last: AttendModel, AttendOffload and WaitPublished, served as
// the sender's service serves them (sender/agent/service.cc), by listeners and without a slice of
// polling. Owner: the connection. Threads: a fiber of the sender's process for each. Cost: a wait
// on the connection. Errors: the last message's status.
#pragma once

#include <memory>

#include "sender/agent/agent.h"
#include "tests/simulation/network.h"

namespace deltawire::simulation {

inline constexpr const char* kOffloadPort = "offload";

/// The first message of a connection to kOffloadPort.
struct OffloadCall {
  enum class What : uint8_t { kUse, kAttend, kWaitPublished } what = What::kAttend;
  uint64_t client = 0;  ///< of kUse
  uint64_t lease = 0;
  uint32_t rank = 0;     ///< of kAttend
  uint64_t version = 0;  ///< of kWaitPublished, as `attempt` is
  uint64_t attempt = 0;
};

/// A use and an attendance are answered twice: once it is noted, and when it ends.
struct OffloadAnswer {
  Status status;
  VersionInfo info;  ///< of kWaitPublished
};

/// `agent` is null while the process starts.
void ServeOffloadCall(const std::shared_ptr<Connection>& connection, sender::Agent* agent);

}  // namespace deltawire::simulation
