// Collective over Gloo: TCP between host memories, a star around the root. Ranks find one another
// through files in a shared directory. Neither encrypted nor authenticated: for the trainer's own
// network only. Owner: one per rank. Threads: as Collective, and one I/O thread. Cost: as
// Collective. Errors: as Collective; Gloo's exceptions are caught, and SIGPIPE, which Gloo can
// raise, is blocked.
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
  /// "file:DIR" is the only supported kind; DIR exists, and all ranks see it.
  std::string rendezvous;
  /// One word for this group of ranks, never used before in DIR, where addresses of an earlier
  /// group may remain. After a failure the ranks meet again under a new word. The files (some
  /// kilobytes) stay until the maker of DIR removes it.
  std::string job;
  /// Where to listen: a network interface ("eth0"), or a host name or address of this machine. The
  /// interface takes precedence; both empty: the address that the machine's host name resolves to.
  std::string interface;
  std::string address;
};

/// Returns when all ranks have met. Errors: kInvalidArgument; kDeadlineExceeded with the ranks that
/// did not come. If a rank dies while they meet, the call may take up to twice the time.
StatusOr<std::unique_ptr<Collective>> NewGlooCollective(const GlooOptions& options,
                                                        Collective::Deadline deadline);

}  // namespace deltawire
