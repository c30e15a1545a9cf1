// What tests of relays with real daemons share: how a receiver is started that serves others, and
// what is looked for in its files and at its ports. The model is called kModel in all of them.
// Functions own nothing, and take daemons that run or have run. Threads: the test's. Errors: a wait
// that fails says so by `false`, with the receiver's log as the test's message.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "common/layout/chunks.h"
#include "tests/support/daemons.h"

namespace deltawire::testing {

inline constexpr const char* kModel = "m";

/// The arguments of a receiver that serves others.
inline std::vector<std::string> Serving(const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = {"--bulk-listen", fmt::format("127.0.0.1:{}", FreePort())};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

/// "lineage/epoch/version/root", as a daemon names its state.
inline std::string NameOf(const v1::Identity& id) {
  return fmt::format("{}/{}/{}/{:016x}", id.lineage(), id.epoch(), id.version(), id.root());
}

inline std::string Published(SenderProcess& sender) {
  return NameOf(sender.Status(kModel).newest().id());
}

/// Waits until the receiver has committed what the sender has published.
inline bool Follows(SenderProcess& sender, ReceiverProcess& receiver) {
  const bool follows =
      Eventually([&] { return NameOf(receiver.Status().committed()) == Published(sender); },
                 std::chrono::seconds(60));
  if (!follows) {
    UNSCOPED_INFO(receiver.dir() << ":\n" << ReadText(receiver.log()) << ReadText(sender.log()));
  }
  return follows;
}

inline uint32_t ChunksOf(const Trainer& trainer) {
  return ChunkTable::Create(trainer.layout())->size();
}

/// Chunks of the receiver's first file that hold `version`; 0: none yet.
inline uint32_t Arrived(const ReceiverProcess& receiver, uint64_t version) {
  const auto state = StateReader::Open(receiver.dir() / ".deltawire.state");
  if (!state.ok()) return 0;
  uint32_t n = 0;
  for (uint32_t c = 0; c < state->shape().chunks; ++c) n += state->chunk_version(0, c) == version;
  return n;
}

/// Whether the receiver's log has `text`.
inline bool Says(const ReceiverProcess& receiver, const std::string& text) {
  return ReadText(receiver.log()).find(text) != std::string::npos;
}

}  // namespace deltawire::testing
