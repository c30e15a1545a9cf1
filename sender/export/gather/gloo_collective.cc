#include "sender/export/gather/gloo_collective.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "sender/export/gather/gloo_star.h"

namespace deltawire {
namespace {

using Deadline = Collective::Deadline;

// The slots of the collective's own messages. Gathers use those below 2^32.
constexpr uint64_t kSizeSlot = 1ULL << 32;
constexpr uint64_t kDataSlot = 2ULL << 32;
constexpr uint64_t kReplySizeSlot = 3ULL << 32;
constexpr uint64_t kReplySlot = 4ULL << 32;

class GlooGather final : public PendingGather {
 public:
  struct Transfer {
    int peer;
    GlooStar::Buffer buffer;
  };

  GlooGather(std::shared_ptr<GlooStar> star, std::vector<Transfer> transfers)
      : star_(std::move(star)), transfers_(std::move(transfers)) {}
  ~GlooGather() override {
    if (transfers_.empty()) return;
    // Close connections first: destroying a buffer in the middle of a message would block on its
    // connection.
    star_->Break(absl::CancelledError("a gather was dropped before its end")).IgnoreError();
  }

  Status Wait(Deadline deadline) override {
    DW_RETURN_IF_ERROR(star_->broken());
    for (Transfer& t : transfers_) {
      DW_RETURN_IF_ERROR(star_->is_root() ? star_->WaitReceived(*t.buffer, t.peer, deadline)
                                          : star_->WaitSent(*t.buffer, t.peer, deadline));
    }
    transfers_.clear();
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<GlooStar> star_;
  std::vector<Transfer> transfers_;
};

class HostBuffer final : public CollectiveBuffer {
 public:
  explicit HostBuffer(uint64_t bytes)
      : size_(bytes),
        data_(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64))) {}
  ~HostBuffer() override { std::free(data_); }
  MutableBytes bytes() override { return {data_, size_}; }
  bool ok() const { return data_ != nullptr; }

 private:
  const uint64_t size_;
  std::byte* const data_;
};

class GlooCollective final : public Collective {
 public:
  explicit GlooCollective(std::shared_ptr<GlooStar> star) : star_(std::move(star)) {}

  int rank() const override { return star_->rank(); }
  int size() const override { return star_->size(); }
  int root() const override { return star_->root(); }

  Status Barrier(Deadline deadline) override { return AllGather({}, deadline).status(); }
  StatusOr<std::vector<std::vector<std::byte>>> AllGather(Bytes mine, Deadline deadline) override;
  StatusOr<std::unique_ptr<PendingGather>> StartGather(uint32_t slot, Bytes mine,
                                                       std::span<const MutableBytes> parts,
                                                       Deadline deadline) override;
  StatusOr<std::unique_ptr<CollectiveBuffer>> NewBuffer(BufferUse use, uint64_t bytes) override;
  bool CanSendFrom(Bytes) const override { return true; }
  bool CanRead(Bytes) const override { return true; }
  Status Copy(std::span<const CopyJob> jobs, Deadline) override {
    for (const CopyJob& job : jobs) std::memcpy(job.to.data(), job.from.data(), job.from.size());
    return absl::OkStatus();
  }
  void Abort(const Status& why) override { star_->Break(why).IgnoreError(); }

 private:
  using Blobs = std::vector<std::vector<std::byte>>;
  StatusOr<Blobs> AllGatherOnRoot(Bytes mine, Deadline deadline);
  StatusOr<Blobs> AllGatherElsewhere(Bytes mine, Deadline deadline);
  Status SendNow(int to, uint64_t slot, Bytes from, Deadline deadline);
  Status ReceiveNow(int from, uint64_t slot, MutableBytes to, Deadline deadline);
  StatusOr<uint64_t> ReceiveSize(int from, uint64_t slot, uint64_t limit, Deadline deadline);

  std::shared_ptr<GlooStar> star_;
};

Status GlooCollective::SendNow(int to, uint64_t slot, Bytes from, Deadline deadline) {
  if (from.empty()) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const GlooStar::Buffer buffer, star_->Send(to, slot, from));
  return star_->WaitSent(*buffer, to, deadline);
}

Status GlooCollective::ReceiveNow(int from, uint64_t slot, MutableBytes to, Deadline deadline) {
  if (to.empty()) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const GlooStar::Buffer buffer, star_->Receive(from, slot, to));
  return star_->WaitReceived(*buffer, from, deadline);
}

StatusOr<uint64_t> GlooCollective::ReceiveSize(int from, uint64_t slot, uint64_t limit,
                                               Deadline deadline) {
  std::array<std::byte, sizeof(uint64_t)> size;
  DW_RETURN_IF_ERROR(ReceiveNow(from, slot, size, deadline));
  const auto n = LoadLe<uint64_t>(size.data());
  if (n > limit) {
    return star_->Break(Errorf(StatusCode::kInternal,
                               "rank {} announces {} bytes of metadata, above the limit of {}",
                               from, n, limit));
  }
  return n;
}

StatusOr<GlooCollective::Blobs> GlooCollective::AllGather(Bytes mine, Deadline deadline) {
  DW_RETURN_IF_ERROR(star_->broken());
  if (mine.size() > kMaxMetadataBytes) {
    return Errorf(StatusCode::kInvalidArgument,
                  "rank {}: {} bytes of metadata, above the limit of {}", rank(), mine.size(),
                  kMaxMetadataBytes);
  }
  return star_->is_root() ? AllGatherOnRoot(mine, deadline) : AllGatherElsewhere(mine, deadline);
}

// Collects every rank's bytes, then sends every rank a table of sizes followed by all the bytes.
StatusOr<GlooCollective::Blobs> GlooCollective::AllGatherOnRoot(Bytes mine, Deadline deadline) {
  Blobs all(size());
  all[rank()].assign(mine.begin(), mine.end());
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    DW_ASSIGN_OR_RETURN(const uint64_t bytes,
                        ReceiveSize(r, kSizeSlot, kMaxMetadataBytes, deadline));
    all[r].resize(bytes);
    DW_RETURN_IF_ERROR(ReceiveNow(r, kDataSlot, all[r], deadline));
  }
  std::vector<std::byte> reply(size() * sizeof(uint64_t));
  for (int r = 0; r < size(); ++r) {
    StoreLe<uint64_t>(reply.data() + r * sizeof(uint64_t), all[r].size());
    reply.insert(reply.end(), all[r].begin(), all[r].end());
  }
  std::array<std::byte, sizeof(uint64_t)> bytes;
  StoreLe<uint64_t>(bytes.data(), reply.size());
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    DW_RETURN_IF_ERROR(SendNow(r, kReplySizeSlot, bytes, deadline));
    DW_RETURN_IF_ERROR(SendNow(r, kReplySlot, reply, deadline));
  }
  return all;
}

StatusOr<GlooCollective::Blobs> GlooCollective::AllGatherElsewhere(Bytes mine, Deadline deadline) {
  std::array<std::byte, sizeof(uint64_t)> bytes;
  StoreLe<uint64_t>(bytes.data(), mine.size());
  DW_RETURN_IF_ERROR(SendNow(root(), kSizeSlot, bytes, deadline));
  DW_RETURN_IF_ERROR(SendNow(root(), kDataSlot, mine, deadline));
  const uint64_t table_bytes = size() * sizeof(uint64_t);
  DW_ASSIGN_OR_RETURN(
      const uint64_t reply_bytes,
      ReceiveSize(root(), kReplySizeSlot, table_bytes + size() * kMaxMetadataBytes, deadline));
  std::vector<std::byte> reply(reply_bytes);
  DW_RETURN_IF_ERROR(ReceiveNow(root(), kReplySlot, reply, deadline));
  Blobs all(size());
  uint64_t at = table_bytes;
  for (int r = 0; r < size(); ++r) {
    if (reply.size() < table_bytes) break;
    const auto n = LoadLe<uint64_t>(reply.data() + r * sizeof(uint64_t));
    if (n > reply.size() - at) break;
    all[r].assign(reply.begin() + at, reply.begin() + at + n);
    at += n;
    if (r + 1 == size() && at == reply.size()) return all;
  }
  return star_->Break(Errorf(
      StatusCode::kInternal,
      "the root (rank {}) sent an answer for another number of ranks than {}", root(), size()));
}

StatusOr<std::unique_ptr<PendingGather>> GlooCollective::StartGather(
    uint32_t slot, Bytes mine, std::span<const MutableBytes> parts, Deadline) {
  DW_RETURN_IF_ERROR(star_->broken());
  std::vector<GlooGather::Transfer> transfers;
  if (!star_->is_root()) {
    if (!mine.empty()) {
      DW_ASSIGN_OR_RETURN(GlooStar::Buffer buffer, star_->Send(root(), slot, mine));
      transfers.push_back({root(), std::move(buffer)});
    }
  } else {
    if (parts.size() != static_cast<size_t>(size())) {
      return Errorf(StatusCode::kInvalidArgument, "a gather to {} places, but there are {} ranks",
                    parts.size(), size());
    }
    for (int r = 0; r < size(); ++r) {
      if (r == rank() || parts[r].empty()) continue;
      DW_ASSIGN_OR_RETURN(GlooStar::Buffer buffer, star_->Receive(r, slot, parts[r]));
      transfers.push_back({r, std::move(buffer)});
    }
  }
  return std::make_unique<GlooGather>(star_, std::move(transfers));
}

StatusOr<std::unique_ptr<CollectiveBuffer>> GlooCollective::NewBuffer(BufferUse, uint64_t bytes) {
  auto buffer = std::make_unique<HostBuffer>(bytes);
  if (!buffer->ok()) {
    return Errorf(StatusCode::kResourceExhausted, "no memory for a gather's buffer of {} bytes",
                  bytes);
  }
  return std::unique_ptr<CollectiveBuffer>(std::move(buffer));
}

}  // namespace

StatusOr<std::unique_ptr<Collective>> NewGlooCollective(const GlooOptions& options,
                                                        Deadline deadline) {
  const auto in_range = [&](int r) { return r >= 0 && r < options.size; };
  if (options.size < 1 || !in_range(options.rank) || !in_range(options.root)) {
    return Errorf(StatusCode::kInvalidArgument, "rank {} and root {} of {} ranks: out of range",
                  options.rank, options.root, options.size);
  }
  DW_ASSIGN_OR_RETURN(RendezvousDir dir, RendezvousDir::Open(options.rendezvous, options.job));
  auto star = std::make_shared<GlooStar>(options, std::move(dir));
  if (Status s = star->Connect(options, deadline); !s.ok()) return star->Break(std::move(s));
  auto collective = std::make_unique<GlooCollective>(std::move(star));
  // Returns only after every rank has connected; otherwise all fail.
  DW_RETURN_IF_ERROR(collective->Barrier(deadline));
  return std::unique_ptr<Collective>(std::move(collective));
}

}  // namespace deltawire
