// A whole publish as the sender runs it, in memory: diff, digests, root and delta of a workload,
// with the check of the old bytes and, for comparison, without.
// Owner: a benchmark's case; the workload must outlive it. One caller at a time.
// Memory: the payloads of one delta. Errors: kDataLoss when it does not give the right digests.
#pragma once

#include <memory>
#include <vector>

#include "bench/delta/workload.h"
#include "common/base/thread_pool.h"
#include "kernels/kernels.h"
#include "sender/agent/version_store.h"

namespace deltawire::bench {

class PublishRun {
 public:
  PublishRun(const Workload& w, const kernels::Backend& kernels, const kernels::DigestKey& key);

  /// Seconds of one publish.
  StatusOr<double> Run(ThreadPool& pool, bool check_base) const;

 private:
  const Workload& workload_;
  const kernels::Backend& kernels_;
  const kernels::DigestKey& key_;
  std::shared_ptr<sender::Published> published_;
  uint64_t root_old_ = 0, root_new_ = 0;
};

}  // namespace deltawire::bench
