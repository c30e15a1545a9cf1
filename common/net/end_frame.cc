// The end of a stream. It is not in pull_server.cc, because the simulation uses this function and
// cannot link sockets.
#include "common/net/pull_server.h"

namespace deltawire::net {

OutFrame EndFrame(const PullEnd& end) {
  const Identity& identity = end.identity;
  const auto payload = std::make_shared<const std::vector<std::byte>>(
      wire::Encode(wire::End{.lineage = identity.lineage,
                             .root = identity.root,
                             .attempt = identity.attempt,
                             .side_files_hash = end.side_files_hash}));
  OutFrame frame;
  frame.header.type = wire::FrameType::kEnd;
  frame.header.epoch = identity.id.epoch;
  frame.header.version = identity.id.version;
  frame.header.payload_bytes = static_cast<uint32_t>(payload->size());
  frame.header.payload_xxh3 = Xxh3(*payload);
  frame.payload = *payload;
  frame.keep = payload;
  return frame;
}

}  // namespace deltawire::net
