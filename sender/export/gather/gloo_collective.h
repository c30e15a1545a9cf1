// Collective over Gloo: TCP between host memories, a star around the root, one I/O thread.
// Ranks find one another through files in a directory that all of them share.
// Neither encrypted nor authenticated: for the trainer's own network only.
// Errors: Gloo's exceptions end here; SIGPIPE, which Gloo can raise, is kept from the process.
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
  /// "file:DIR" (all ranks see DIR, which exists) is the only kind there is.
  std::string rendezvous;
  /// One word for this group of ranks, never used before in that DIR: addresses of an earlier group
  /// may still be there. After a failure the ranks meet again under a new name. Files stay
  /// (some kilobytes) until whoever made DIR removes it.
  std::string job;
  /// Where to listen: a network interface ("eth0"), or a host name or address of this machine.
  /// An interface goes before an address; both empty: what the machine's host name resolves to.
  std::string interface;
  std::string address;
};

/// Returns when all ranks have met. Errors: kInvalidArgument; kDeadlineExceeded with the ranks that
/// did not come. A rank that dies while they meet can cost up to twice the time.
StatusOr<std::unique_ptr<Collective>> NewGlooCollective(const GlooOptions& options,
                                                        Collective::Deadline deadline);

}  // namespace deltawire
