// The sender's trainer socket, as a client sees it before it trusts it: who listens there, and that
// nobody else could put another socket in its place. Stateless but for CloseInForkedChildren.
// Owner: none. Threads: any. Cost: a connection and a few system calls. Errors name the path, and
// whose it is.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "common/base/status.h"

namespace deltawire {

struct SenderPeer {
  uid_t uid = 0;
  std::string bound;  ///< the socket file's path, as the sender gave it
};

/// Looks at the process that listens at `socket`; nullopt: none does yet. kPermissionDenied if it
/// runs as another user than this process, root or (for a root client) a system account, or if
/// others could replace the socket.
StatusOr<std::optional<SenderPeer>> LookAtSender(const std::string& socket);

/// OK if the open regular file belongs to this user, root or `sender`.
Status CheckHalfOwner(int fd, const std::string& path, uid_t sender);

/// From now on, children that this process forks close its connections to `bound`: else a child
/// that outlives the trainer would hide its death from the sender.
void CloseInForkedChildren(const std::string& bound);

}  // namespace deltawire
