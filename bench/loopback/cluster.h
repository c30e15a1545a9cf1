// A trainer, a sender and (if wanted) a receiver: the real daemons as child processes.
// Owner: the suite; the daemons end and their directory goes with this object. One caller; writes
// run on the pool. Errors: the daemons' own, with the end of their logs.
#pragma once

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>

#include "bench/harness/machine.h"
#include "bench/loopback/workload.h"
#include "sender/export/client/trainer_client.h"
#include "tests/support/daemons.h"

namespace deltawire::bench {

inline constexpr const char* kModelName = "bench";

struct ClusterOptions {
  bool receiver = true;
  size_t streams = 4;
  bool eager_diff = true;
  int buffers = 0;  ///< the receiver's; 0: as it chooses
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

  /// Writes all of `workload` with the pool's threads and publishes it as the next version.
  StatusOr<Publication> Publish(const Workload& workload);
  /// Waits until the receiver has committed `version`.
  StatusOr<v1::CommitInfo> WaitCommitted(uint64_t version);
  StatusOr<v1::PullStats> Sync(bool force_full);
  /// Whether the receiver pulls new versions by itself.
  Status Follow(bool follow);

  /// "" when the receiver's directory holds `workload`, else the first tensor that differs.
  std::string Compare(const Workload& workload) const;
  v1::SenderModelStatus SenderStatus() { return sender_->Status(kModelName); }
  uint64_t sender_peak() const { return sender_memory_->peak(); }
  uint64_t receiver_peak() const { return receiver_memory_->peak(); }
  /// CPU time of both daemons so far.
  double CpuSeconds() const;
  /// Files of a daemon on tmpfs beyond `buffers` (state, side files).
  uint64_t SenderFilesBeyond(uint64_t buffers) const;
  uint64_t ReceiverFilesBeyond(uint64_t buffers) const;

 private:
  Cluster(std::filesystem::path root, const ModelSource& source, ThreadPool& pool);
  Status Failed(const Status& status) const;  // with the logs' ends
  void WatchCommits();

  const std::filesystem::path root_;
  const ModelSource& source_;
  ThreadPool& pool_;
  std::unique_ptr<testing::SenderProcess> sender_;
  std::unique_ptr<testing::ReceiverProcess> receiver_;
  std::unique_ptr<MemoryWatch> sender_memory_, receiver_memory_;
  std::unique_ptr<TrainerClient> trainer_;
  uint64_t version_ = 0;

  std::mutex mu_;
  std::condition_variable committed_;
  std::deque<v1::CommitInfo> commits_;  // guarded by mu_
  bool watch_ended_ = false;            // guarded by mu_
  std::unique_ptr<grpc::ClientContext> watch_context_;
  std::thread watch_;
};

}  // namespace deltawire::bench
