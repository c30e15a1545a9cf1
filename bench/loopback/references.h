// What a delta sync is compared with, in memory: the least that any scheme must do (read both
// halves, apply the differences), and the first that one would write (a list of pairs).
// All work on a pair of buffers: the old version in the peer's mapping, the new one in the
// trainer's weights. One caller; as many threads as the pool has.
#pragma once

#include <vector>

#include "bench/loopback/tcp_peer.h"
#include "common/base/thread_pool.h"
#include "common/layout/chunks.h"
#include "kernels/kernels.h"

namespace deltawire::bench {

/// Copies `from` to `to` with all threads, tensor by tensor as a trainer does. Seconds.
double CopyTensors(const Layout& layout, Bytes from, MutableBytes to, ThreadPool& pool);

/// Encoded differences of every chunk, and the seconds that applying them takes.
class ApplyReference {
 public:
  ApplyReference(ChunkTable chunks, ThreadPool& pool)
      : chunks_(std::move(chunks)), pool_(pool), payloads_(chunks_.size()) {}

  /// Seconds of memcmp over all chunks with all threads. The buffers should be equal, since memcmp
  /// stops at a difference.
  double Compare(Bytes a, Bytes b) const;
  void Encode(Bytes old_data, Bytes new_data);
  /// Applies what Encode found. Seconds.
  StatusOr<double> Apply(MutableBytes data);

 private:
  struct Payload {
    std::vector<std::byte> bytes;
    uint64_t digest_before = 0, digest_after = 0;
  };
  const ChunkTable chunks_;
  ThreadPool& pool_;
  const kernels::DigestKey key_{1};
  std::vector<Payload> payloads_;
};

/// Why NaivePairs cannot name this model's 16-bit words by u32 indices; "" when it can.
std::string WhyNoPairs(Bytes data);
/// One plain loop finds the pairs, one stream carries them, one plain loop stores them at the
/// peer; seconds of all three. The peer's mapping is the old version again afterwards.
/// REQUIRES: WhyNoPairs is empty.
StatusOr<double> NaivePairs(Bytes new_data, TcpPeer& peer);

}  // namespace deltawire::bench
