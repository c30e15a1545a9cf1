// Engine::Publish: a whole publish as the sender runs it, in memory: diff, digests, root and delta
// of a workload, with the check of the old bytes and, for comparison, without.
#include <map>

#include "bench/delta/engine.h"
#include "common/base/human.h"
#include "common/layout/root.h"
#include "sender/agent/publish_job.h"

namespace deltawire::bench {
namespace {

/// The old bytes' digests that EncodeUnchecked believes, by the address of these bytes. They are
/// global, since a backend's functions have no argument for them; one publish runs at a time.
std::map<const std::byte*, uint64_t> g_believed;

kernels::EncodeResult EncodeUnchecked(const kernels::DigestKey& key, Bytes old_data, Bytes new_data,
                                      unsigned width, MutableBytes out) {
  return kernels::Best().diff_encode(key, old_data, new_data, width,
                                     g_believed.find(old_data.data())->second, out);
}

}  // namespace

StatusOr<double> Engine::Publish(ThreadPool& pool, bool check_base) {
  const uint32_t chunks = workload_.chunks.size();
  const Coverage all = Coverage::All(chunks);
  kernels::Backend backend = kernels::Best();
  if (!check_base) {
    backend.diff_encode_checked = EncodeUnchecked;
    g_believed.clear();
    for (uint32_t i = 0; i < chunks; ++i) {
      g_believed[workload_.OldOf(workload_.chunks[i]).data()] = digest_old_[i];
    }
  }
  auto published = std::make_shared<Published>();
  published->digests = std::make_shared<std::vector<uint64_t>>(digest_old_);
  published->damaged = std::make_unique<std::atomic<uint8_t>[]>(chunks);
  sender::PublishJob::Inputs in;
  in.chunks = &workload_.chunks;
  in.layout = &workload_.layout;
  in.backend = &backend;
  in.key = &workload_.key;
  in.active = workload_.old_data.data();
  // A publish writes to the inactive half only what is declared unchanged, which is nothing here.
  const Bytes fresh = workload_.new_data.data();
  in.inactive = {const_cast<std::byte*>(fresh.data()), fresh.size()};
  in.active_digests = published->digests;
  in.active_root = RootOf(digest_old_, all);
  in.payload_limit = uint64_t{1} << 40;
  in.published = published;
  const std::vector<bool> unchanged(workload_.layout.size());
  const auto start = SteadyClock::now();
  const auto job = std::make_shared<sender::PublishJob>(in);
  DW_ASSIGN_OR_RETURN(const sender::PublishJob::Result result,
                      job->Finish({1, 1}, {1, 2}, unchanged, pool));
  const double seconds = SecondsSince(start);
  if (result.root == RootOf(digest_new_, all) && result.changed_elements == workload_.changed) {
    return seconds;
  }
  return absl::DataLossError(workload_.name + ": a publish gave a wrong root or count");
}

}  // namespace deltawire::bench
