#include "receiver/buffer/buffer.h"

#include <utility>

#include "common/shm/file_lease.h"
#include "receiver/buffer/recovery.h"

namespace deltawire::receiver {

Buffer::Buffer(const std::filesystem::path& dir, std::shared_ptr<DirLock> lock, Layout layout,
               ChunkTable chunks, StateFile state, const Options& options)
    : layout_(std::move(layout)),
      chunks_(std::move(chunks)),
      options_(options),
      key_(state.shape().digest_seed),
      buffers_(options.buffers != 0 ? options.buffers : ChooseBuffers(dir, layout_.total_bytes())),
      lease_problem_(LeaseProblem(dir)),
      files_(dir, std::move(lock), std::move(state),
             {.layout = layout_,
              .chunks = chunks_,
              .key = key_,
              .backend = kernels::Best(),
              .huge_pages = options_.huge_pages,
              .pool = options_.pool,
              .unsafe_in_place = options_.unsafe_in_place,
              .leases = lease_problem_.empty()}),
      side_files_(dir),
      bases_(files_, layout_, chunks_, options_.pool),
      update_(*this) {}

Identity Buffer::committed() const {
  const int front = files_.front();
  return front < 0 ? Identity{} : files_.slot(front).identity();
}

std::vector<uint64_t> Buffer::CommittedDigests() const {
  std::vector<uint64_t> digests(chunks_.size());
  const int front = files_.front();
  for (uint32_t i = 0; front >= 0 && i < digests.size(); ++i) {
    digests[i] = files_.slot(front).digest(i);
  }
  return digests;
}

std::shared_ptr<ServedFile> Buffer::Serve() {
  const int front = files_.front();
  return front < 0 ? nullptr : files_.slot(front).Serve();
}

}  // namespace deltawire::receiver
