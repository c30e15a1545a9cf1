// A trainer, a sender and (if wanted) a receiver: the real daemons as child processes. The
// destructor ends the daemons and removes their directory. One caller; writes run on the pool.
// Errors are the daemons' own, with the end of their logs.
#pragma once

#include <filesystem>
#include <memory>

#include "bench/harness/machine.h"
#include "bench/loopback/weights.h"
#include "sender/export/client/trainer_client.h"
#include "tests/support/certificates.h"
#include "tests/support/daemons.h"

namespace deltawire::bench {

struct ClusterOptions {
  bool receiver = true;
  size_t streams = 4;
  int buffers = 0;   ///< the receiver's; 0: it chooses
  bool tls = false;  ///< on both ports, with certificates at both ends
  /// The rate of the trainer's bytes, which then use little processor time, like a GPU's copy
  /// engine's. 0: as fast as the pool copies.
  double trainer_bytes_per_s = 0;
  std::vector<std::string> sender = {};  ///< further options
};

/// One publish, as the trainer measures it.
struct Publication {
  VersionInfo info;
  double begin_seconds = 0;       ///< the call of BeginOffload, with the mapping of a new half
  double write_seconds = 0;       ///< from BeginOffload's return until all tensors are written
  double seconds = 0;             ///< in total
  SteadyClock::time_point ready;  ///< when all tensors were written
};

class Cluster {
 public:
  static constexpr const char* kModel = "bench";

  /// Starts the sender. REQUIRES: `source` and `pool` outlive the cluster.
  Cluster(const std::filesystem::path& root, const ModelSource& source,
          const ClusterOptions& options, ThreadPool& pool);
  ~Cluster();

  /// Registers the model, publishes `content`, and starts the receiver, if one is wanted. Returns
  /// when it has committed that first version.
  Status Begin(Bytes content);
  Status Register();
  /// Writes `content` tensor by tensor, as the next version: with the pool's threads, or with one
  /// at the trainer's rate.
  StatusOr<Publication> Publish(Bytes content);
  void StartReceiver();
  /// Waits until the receiver has committed the last published version.
  StatusOr<v1::CommitInfo> WaitCommitted();
  StatusOr<v1::PullStats> Sync(bool force_full);
  /// Sets whether the receiver, if there is one, pulls new versions by itself.
  Status Follow(bool follow);

  /// Returns "" when the receiver's directory holds `content`, else the first tensor that differs.
  std::string Compare(Bytes content) const;
  uint64_t version() const { return version_; }
  v1::SenderModelStatus SenderStatus() { return sender_->Status(kModel); }
  uint64_t sender_peak() const { return sender_memory_->peak(); }
  uint64_t receiver_peak() const { return receiver_memory_->peak(); }
  double CpuSeconds() const;
  testing::SenderProcess& sender() { return *sender_; }
  std::filesystem::path receiver_dir() const { return receiver_->dir(); }

 private:
  Status Failed(const Status& status) const;  // adds the ends of the daemons' logs
  std::vector<std::string> Secured(const std::string& name) const;

  const std::filesystem::path root_;
  const ModelSource& source_;
  const ClusterOptions options_;
  ThreadPool& pool_;
  std::unique_ptr<testing::TestAuthority> authority_;  // null: no TLS
  std::unique_ptr<testing::SenderProcess> sender_;
  std::unique_ptr<testing::ReceiverProcess> receiver_;
  std::unique_ptr<MemoryWatch> sender_memory_, receiver_memory_;
  std::unique_ptr<TrainerClient> trainer_;
  uint64_t version_ = 0;
  grpc::ClientContext watch_context_;
  std::unique_ptr<grpc::ClientReader<v1::CommitInfo>> commits_;
};

}  // namespace deltawire::bench
