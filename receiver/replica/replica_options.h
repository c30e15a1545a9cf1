// The options of one model at a receiver, in the form that a Replica takes them.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include "common/base/stages.h"
#include "common/delta/chunk_history.h"
#include "common/net/pull_transport.h"
#include "receiver/buffer/downstream.h"

namespace deltawire::receiver {

struct ReplicaOptions {
  std::string model;
  std::filesystem::path directory;
  std::filesystem::path start_from;  ///< a model directory for a new buffer's first bytes, or empty
  uint32_t streams = 4;              ///< of each pull; 0: by the link figures
  net::SocketChoice sockets;
  bool connect_ahead = false;  ///< connect a pull's streams while it is asked for
  bool follow = true;
  uint64_t staging_bytes = uint64_t{128} << 20;
  uint64_t history_bytes = kHistoryBytes;  ///< limit on past deltas for the codec tight; 0: none
  uint64_t delta_file_bytes = 0;           ///< limit on delta files for engines; 0: none
  uint64_t scrub_bytes_per_s = 0;
  std::chrono::milliseconds stream_timeout{30000};
  bool huge_pages = true;
  uint32_t buffers = 0;  ///< weight files, 1 or 2; 0: as memory allows
  bool unsafe_in_place = false;
  /// With one file and copy_for_reader: the time for which an update waits for readers. After it
  /// the update goes to a fresh file, and the readers keep the old one. Without copy_for_reader an
  /// update waits without limit.
  std::chrono::milliseconds reader_grace{10000};
  bool copy_for_reader = false;
  uint64_t seed = 0;              ///< seed of the random part of pauses
  std::string file_group;         ///< group that may read the files; empty: only their owner
  bool allow_code_files = false;  ///< accept side files that an engine may execute
  /// Serves every version to other receivers, and outlives the replica. Null: none.
  Downstream* downstream = nullptr;
  uint64_t served_delta_bytes = 0;  ///< limit on a pull's delta that `downstream` may serve
  uint64_t relay_number = 0;        ///< of this daemon in RelayNews::path; 0: it is no relay
  StageObserver stages;             ///< gets the stages of each committed version
};

}  // namespace deltawire::receiver
