// A trainer, a sender and (if wanted) a receiver: the real daemons as child processes.
// Owner: the suite; the destructor ends the daemons and removes their directory. One caller; writes
// run on the pool. Errors: the daemons' own, with the end of their logs.
#pragma once

#include <filesystem>
#include <memory>

#include "bench/harness/peak_memory.h"
#include "bench/loopback/weights.h"
#include "sender/export/client/trainer_client.h"
#include "tests/support/certificates.h"
#include "tests/support/daemons.h"

namespace deltawire::bench {

struct ClusterOptions {
  bool receiver = true;
  size_t streams = 4;
  bool eager_diff = true;
  int buffers = 0;   ///< the receiver's; 0: as it chooses
  bool tls = false;  ///< on both ports, with certificates at both ends
};

/// One publish as the trainer saw it.
struct Publication {
  PublishedVersion info;
  double begin_seconds = 0;  ///< the call of BeginOffload, with the mapping of a new half
  double write_seconds = 0;  ///< BeginOffload returned -> all tensors written
};

class Cluster {
 public:
  static StatusOr<std::unique_ptr<Cluster>> Start(const std::filesystem::path& root,
                                                  const ModelSource& source,
                                                  const ClusterOptions& options, ThreadPool& pool);
  ~Cluster();

  /// Writes all of `weights` with the pool's threads and publishes them as the next version.
  StatusOr<Publication> Publish(const Weights& weights);
  /// Waits until the receiver has committed the version that was published last.
  StatusOr<v1::CommitInfo> WaitCommitted();
  StatusOr<v1::PullStats> Sync(bool force_full);
  /// Whether the receiver pulls new versions by itself.
  Status Follow(bool follow);

  /// "" when the receiver's directory holds `weights`, else the first tensor that differs.
  std::string Compare(const Weights& weights) const;
  v1::SenderModelStatus SenderStatus() { return sender_->Status(kModel); }
  uint64_t sender_peak() const { return sender_memory_->peak(); }
  uint64_t receiver_peak() const { return receiver_memory_->peak(); }
  /// CPU time of both daemons so far.
  double CpuSeconds() const;
  std::filesystem::path sender_dir() const { return sender_->dir(); }
  std::filesystem::path receiver_dir() const { return receiver_->dir(); }

 private:
  static constexpr const char* kModel = "bench";
  Cluster(std::filesystem::path root, const ModelSource& source, ThreadPool& pool)
      : root_(std::move(root)), source_(source), pool_(pool) {}
  Status Failed(const Status& status) const;  // adds the ends of the daemons' logs
  void StartReceiver(const ClusterOptions& options);
  /// Arguments of a daemon with TLS; none without.
  std::vector<std::string> Secured(const std::string& name) const;

  const std::filesystem::path root_;
  const ModelSource& source_;
  ThreadPool& pool_;
  std::unique_ptr<testing::SenderProcess> sender_;
  std::unique_ptr<testing::ReceiverProcess> receiver_;
  std::unique_ptr<MemoryWatch> sender_memory_, receiver_memory_;
  std::unique_ptr<TrainerClient> trainer_;
  uint64_t version_ = 0;
  std::unique_ptr<testing::TestAuthority> authority_;  // null: no TLS
  grpc::ClientContext watch_context_;
  std::unique_ptr<grpc::ClientReader<v1::CommitInfo>> commits_;
};

}  // namespace deltawire::bench
