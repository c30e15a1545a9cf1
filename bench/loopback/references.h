// What a delta sync is held against, in memory: the least that any scheme must do (read both
// halves, apply the differences), and the first thing that anyone would write (a list of pairs).
// All work on a pair of buffers: the old version in the peer's mapping, the new one in the
// workload.
#pragma once

#include <memory>
#include <vector>

#include "bench/loopback/tcp_peer.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/layout/chunks.h"
#include "kernels/kernels.h"

namespace deltawire::bench {

/// Copies `from` to `to` with all threads, tensor by tensor as a trainer does. Seconds.
double CopyTensors(const Layout& layout, Bytes from, MutableBytes to, ThreadPool& pool);

/// Encoded differences of every chunk, and the seconds that applying them takes.
class ApplyReference {
 public:
  explicit ApplyReference(const Layout& layout);

  /// Seconds of memcmp over all chunks with all threads. Meant for equal buffers: it reads all.
  double Compare(Bytes a, Bytes b, ThreadPool& pool) const;
  void Encode(Bytes old_data, Bytes new_data, ThreadPool& pool);
  /// Applies what Encode found. Seconds.
  StatusOr<double> Apply(MutableBytes data, ThreadPool& pool);

 private:
  struct Payload {
    std::vector<std::byte> bytes;
    uint64_t digest_before = 0, digest_after = 0;
  };
  ChunkTable chunks_;
  kernels::DigestKey key_;
  std::vector<Payload> payloads_;
};

struct NaiveTimes {
  double diff = 0;
  double send_and_apply = 0;
};

/// One plain loop finds the pairs, one stream carries them, one plain loop stores them at the
/// peer. The peer's mapping is the old version again afterwards. `why_not`: the model has an odd
/// number of bytes or more than 2^32 words. REQUIRES: why_not is empty.
std::string WhyNoPairs(Bytes data);
StatusOr<NaiveTimes> NaivePairs(Bytes new_data, TcpPeer& peer);

}  // namespace deltawire::bench
