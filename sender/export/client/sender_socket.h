// A check of the sender's trainer socket before a client trusts it: who listens there, and that no
// other user could replace the socket. Errors name the path and its owner.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "common/base/status.h"

namespace deltawire {

struct SenderPeer {
  uid_t uid = 0;
  std::string bound;  ///< the socket file's path, as the sender reports it
};

/// Identifies the process that listens at `socket`, or returns nullopt if none does yet.
/// kPermissionDenied: it runs as another user than this process, root or (for a root client) a
/// system account, or others could replace the socket.
StatusOr<std::optional<SenderPeer>> LookAtSender(const std::string& socket);

/// Returns OK if the open regular file belongs to this user, root or `sender`.
Status CheckHalfOwner(int fd, const std::string& path, uid_t sender);

/// Makes children that this process forks close its connections to `bound`. Otherwise a child that
/// outlives the trainer would hide the trainer's death from the sender.
void CloseInForkedChildren(const std::string& bound);

}  // namespace deltawire
