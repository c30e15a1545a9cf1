// A trainer, a sender and (if wanted) a receiver: the real daemons as child processes.
// Owner: a case; the destructor ends the daemons and removes their directory. One caller; writes
// run on the pool. Errors: the daemons' own, with the end of their logs.
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
  int buffers = 0;   ///< the receiver's; 0: as it chooses
  bool tls = false;  ///< on both ports, with certificates at both ends
  /// At which the trainer's bytes come, with little processor time, as from a GPU's copy engine. 0:
  /// as fast as the pool copies.
  double trainer_bytes_per_s = 0;
  std::vector<std::string> sender = {};  ///< further options
};

/// One publish as the trainer saw it.
struct Publication {
  PublishedVersion info;
  double begin_seconds = 0;       ///< the call of BeginOffload, with the mapping of a new half
  double write_seconds = 0;       ///< BeginOffload returned -> all tensors written
  double seconds = 0;             ///< of all
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
  /// Waits until the receiver has committed the version that was published last.
  StatusOr<v1::CommitInfo> WaitCommitted();
  StatusOr<v1::PullStats> Sync(bool force_full);
  /// Whether the receiver, if there is one, pulls new versions by itself.
  Status Follow(bool follow);

  /// "" when the receiver's directory holds `content`, else the first tensor that differs.
  std::string Compare(Bytes content) const;
  uint64_t version() const { return version_; }
  v1::SenderModelStatus SenderStatus() { return sender_->Status(kModel); }
  uint64_t sender_peak() const { return sender_memory_->peak(); }
  uint64_t receiver_peak() const { return receiver_memory_->peak(); }
  /// CPU time of both daemons so far.
  double CpuSeconds() const;
  testing::SenderProcess& sender() { return *sender_; }
  std::filesystem::path receiver_dir() const { return receiver_->dir(); }

 private:
  Status Failed(const Status& status) const;  // adds the ends of the daemons' logs
  /// Arguments of a daemon with TLS; none without.
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
