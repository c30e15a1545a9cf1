// A Collective over Gloo: TCP between host memories, a star around the root. Ranks find one another
// through files in a shared directory. It is neither encrypted nor authenticated: use it only in
// the trainer's own network. It has one I/O thread. Gloo's exceptions are caught, and SIGPIPE,
// which Gloo can raise, is blocked.
#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"
#include "sender/export/gather/collective.h"

namespace deltawire {

struct GlooOptions {
  int rank = 0;
  int size = 1;
  int root = 0;
  /// "file:DIR" is the only supported kind. DIR exists, and all ranks see it.
  std::string rendezvous;
  /// One word for this group of ranks, never used before in DIR, where addresses of an earlier
  /// group may remain. After a failure the ranks meet again under a new word. The files (some
  /// kilobytes) stay until the maker of DIR removes it.
  std::string job;
  /// The listening address: a network interface ("eth0"), or a host name or address of this
  /// machine. The interface takes precedence. If both are empty: the address that the machine's
  /// host name resolves to.
  std::string interface;
  std::string address;
};

/// Returns when all ranks have met. kDeadlineExceeded names the missing ranks. If a rank dies while
/// they meet, the call may take up to twice the time.
StatusOr<std::unique_ptr<Collective>> NewGlooCollective(const GlooOptions& options,
                                                        Collective::Deadline deadline);

}  // namespace deltawire
