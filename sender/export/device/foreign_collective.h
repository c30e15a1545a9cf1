// A Collective whose sources the CPU cannot read: device memory, or bytes behind a callback. They
// reach the transfers over the gather's two buckets. Each gather has one; the inner collective and
// the tensors outlive it. Errors of a copy or callback have the parameter's name.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kernels/gpu.h"
#include "sender/export/device/live_tensor.h"
#include "sender/export/gather/collective.h"

namespace deltawire {

class ForeignCollective final : public Collective {
 public:
  static StatusOr<std::unique_ptr<ForeignCollective>> Create(Collective& inner,
                                                             std::span<const LiveTensor> live);
  ~ForeignCollective() override;

  /// Returns the range that stands for tensor `i` as a source. For a callback it is reserved
  /// address space without memory: a program that reads it crashes.
  Bytes source(size_t i) const { return sources_[i]; }

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  int root() const override { return inner_.root(); }
  Status Barrier(Deadline d) override { return inner_.Barrier(d); }
  StatusOr<std::vector<std::vector<std::byte>>> AllGather(Bytes mine, Deadline d) override {
    return inner_.AllGather(mine, d);
  }
  StatusOr<std::unique_ptr<PendingGather>> StartGather(uint32_t slot, Bytes mine,
                                                       std::span<const MutableBytes> parts,
                                                       Deadline deadline) override {
    return inner_.StartGather(slot, mine, parts, deadline);
  }
  StatusOr<std::unique_ptr<CollectiveBuffer>> NewBuffer(BufferUse use, uint64_t bytes) override {
    return inner_.NewBuffer(use, bytes);
  }
  bool CanSendFrom(Bytes bytes) const override {
    return Find(bytes) == nullptr && inner_.CanSendFrom(bytes);
  }
  bool CanRead(Bytes bytes) const override {
    return Find(bytes) == nullptr && inner_.CanRead(bytes);
  }
  int device() const override { return inner_.device(); }
  Status Copy(std::span<const CopyJob> jobs, Deadline deadline) override;
  void Abort(const Status& why) override { inner_.Abort(why); }

 private:
  explicit ForeignCollective(Collective& inner) : inner_(inner) {}
  /// Returns these bytes' tensor if the inner collective cannot send it, else null.
  const LiveTensor* Find(Bytes bytes) const;
  Status CopyOne(const LiveTensor& live, const CopyJob& job, Deadline deadline);

  Collective& inner_;
  std::vector<Bytes> sources_;
  std::map<const std::byte*, std::pair<Bytes, const LiveTensor*>> foreign_;  // by first byte
  std::map<int, std::unique_ptr<kernels::GpuQueue>> queues_;
  void* reserved_ = nullptr;  // address space that stands for callbacks' bytes
  size_t reserved_bytes_ = 0;
};

}  // namespace deltawire
