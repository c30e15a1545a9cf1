#include "bench/delta/publish_run.h"

#include <algorithm>
#include <chrono>

#include "common/layout/root.h"
#include "sender/agent/publish_job.h"

namespace deltawire::bench {
namespace {

/// What an encode without the check takes for the old bytes' digests. The backend's functions have
/// no argument for it, and one publish runs at a time.
struct Believed {
  const ChunkTable* chunks = nullptr;
  const std::byte* old_data = nullptr;
  const std::vector<uint64_t>* digests = nullptr;
  const kernels::Backend* kernels = nullptr;
};
Believed g_believed;

kernels::EncodeResult EncodeUnchecked(const kernels::DigestKey& key, Bytes old_data, Bytes new_data,
                                      unsigned width, MutableBytes out) {
  const auto offset = static_cast<uint64_t>(old_data.data() - g_believed.old_data);
  uint32_t first = 0, last = g_believed.chunks->size();
  while (last - first > 1) {
    const uint32_t middle = first + (last - first) / 2;
    ((*g_believed.chunks)[middle].offset <= offset ? first : last) = middle;
  }
  return g_believed.kernels->diff_encode(key, old_data, new_data, width,
                                         (*g_believed.digests)[first], out);
}

std::shared_ptr<std::vector<uint64_t>> DigestsOf(const Workload& w, const kernels::Backend& kernels,
                                                 const kernels::DigestKey& key, Bytes data) {
  auto digests = std::make_shared<std::vector<uint64_t>>();
  for (uint32_t i = 0; i < w.chunks.size(); ++i) {
    const Chunk& c = w.chunks[i];
    digests->push_back(kernels.digest(key, data.subspan(c.offset, c.bytes)));
  }
  return digests;
}

}  // namespace

PublishRun::PublishRun(const Workload& w, const kernels::Backend& kernels,
                       const kernels::DigestKey& key)
    : workload_(w), kernels_(kernels), key_(key), published_(new sender::Published) {
  const Coverage all = Coverage::All(w.chunks.size());
  const auto digests = DigestsOf(w, kernels, key, w.old_data.data());
  root_old_ = RootOf(*digests, all);
  root_new_ = RootOf(*DigestsOf(w, kernels, key, w.new_data.data()), all);
  published_->digests = digests;
  published_->damaged = std::make_unique<std::atomic<uint8_t>[]>(w.chunks.size());
}

StatusOr<double> PublishRun::Run(ThreadPool& pool, bool check_base) const {
  kernels::Backend unchecked = kernels_;
  unchecked.diff_encode_checked = EncodeUnchecked;
  g_believed = {&workload_.chunks, workload_.old_data.data().data(), published_->digests.get(),
                &kernels_};
  sender::PublishJob::Inputs in;
  in.chunks = &workload_.chunks;
  in.layout = &workload_.layout;
  in.backend = check_base ? &kernels_ : &unchecked;
  in.key = &key_;
  in.active = workload_.old_data.data();
  // Written only for tensors that are declared unchanged, of which there are none.
  const Bytes fresh = workload_.new_data.data();
  in.inactive = {const_cast<std::byte*>(fresh.data()), fresh.size()};
  in.active_digests = published_->digests;
  in.active_root = root_old_;
  in.payload_limit = uint64_t{1} << 40;
  in.published = published_;
  const std::vector<bool> unchanged(workload_.layout.size());
  const auto start = std::chrono::steady_clock::now();
  const auto job = std::make_shared<sender::PublishJob>(in);
  const sender::PublishJob::Result result = job->Finish({1, 1}, {1, 2}, unchanged, pool);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (result.root != root_new_ || result.changed_elements != workload_.changed) {
    return absl::DataLossError(workload_.name + ": a publish gave a wrong root or count");
  }
  return took.count();
}

}  // namespace deltawire::bench
