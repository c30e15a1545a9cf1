#include "sender/export/gloo_collective.h"

#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "sender/export/rendezvous_dir.h"

namespace deltawire {
namespace {

using Clock = Collective::Clock;
using Deadline = Collective::Deadline;

// Slots of the collective's own messages; gathers use those below 2^32.
constexpr uint64_t kSizeSlot = 1ULL << 32;
constexpr uint64_t kDataSlot = 2ULL << 32;
constexpr uint64_t kReplySizeSlot = 3ULL << 32;
constexpr uint64_t kReplySlot = 4ULL << 32;

// Gloo writes to sockets without MSG_NOSIGNAL: a peer's death would end this process. While one of
// these lives, SIGPIPE is blocked in this thread and in those that it starts; one that came is
// taken.
class SigpipeBlocked {
 public:
  SigpipeBlocked() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SigpipeBlocked() {
    const timespec none{};
    if (!was_pending_) {
      while (sigtimedwait(&pipe_, nullptr, &none) == -1 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_;
};

// At least 1: zero and less mean "for ever" to Gloo.
std::chrono::milliseconds MillisecondsUntil(Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return std::clamp(left, std::chrono::milliseconds(1),
                    std::chrono::milliseconds(std::chrono::hours(24)));
}

using GlooBuffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

// What handles and the collective share: the connections, and whether they are still good.
class Star {
 public:
  Star(const GlooOptions& options, RendezvousDir dir)
      : rank_(options.rank), size_(options.size), root_(options.root), dir_(std::move(dir)) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  int root() const { return root_; }
  bool is_root() const { return rank_ == root_; }
  const Status& broken() const { return broken_; }

  Status Connect(const GlooOptions& options, Deadline deadline);

  StatusOr<GlooBuffer> Send(int to, uint64_t slot, Bytes from);
  StatusOr<GlooBuffer> Receive(int from, uint64_t slot, MutableBytes to);
  // REQUIRES: what Send or Receive began with `peer`.
  Status WaitSent(gloo::transport::UnboundBuffer& buffer, int peer, Deadline deadline);
  Status WaitReceived(gloo::transport::UnboundBuffer& buffer, int peer, Deadline deadline);

  // Ends everything: closes the connections, so that peers see it, after a word for them.
  Status Break(Status why);

 private:
  Status ConnectRoot(Deadline deadline);
  Status ConnectOther(Deadline deadline);
  Status Run(int peer, Deadline deadline, const char* what, const std::function<bool()>& gloo_call);
  Status PeerFailed(int peer, Deadline deadline, const char* what, const char* gloo_says);
  void Close();

  const int rank_, size_, root_;
  RendezvousDir dir_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  Status broken_;
};

Status Star::Connect(const GlooOptions& options, Deadline deadline) {
  if (size_ == 1) return absl::OkStatus();
  const SigpipeBlocked no_sigpipe;  // Gloo's thread starts here and keeps the mask
  try {
    gloo::transport::tcp::attr attr;
    attr.iface = options.interface;
    if (options.interface.empty()) attr.hostname = options.address;
    device_ = gloo::transport::tcp::CreateDevice(attr);
    context_ = device_->createContext(rank_, size_);
  } catch (const std::exception& e) {
    return Errorf(StatusCode::kInvalidArgument,
                  "rank {}: Gloo cannot listen on interface '{}', address '{}': {}", rank_,
                  options.interface, options.address, e.what());
  }
  try {
    // Gloo waits five times as long for a connection.
    context_->setTimeout(std::max(MillisecondsUntil(deadline) / 5, std::chrono::milliseconds(1)));
    return is_root() ? ConnectRoot(deadline) : ConnectOther(deadline);
  } catch (const std::exception& e) {
    const auto code =
        Clock::now() >= deadline ? StatusCode::kDeadlineExceeded : StatusCode::kUnavailable;
    return Errorf(code, "rank {} of job '{}' could not connect: {}", rank_, options.job, e.what());
  }
}

// The root listens once for every other rank and says where, all in one entry.
Status Star::ConnectRoot(Deadline deadline) {
  std::vector<char> addresses;
  for (int r = 0; r < size_; ++r) {
    if (r == root_) continue;
    const std::vector<char> address = context_->createPair(r)->address().bytes();
    addresses.insert(addresses.end(), address.begin(), address.end());
  }
  DW_RETURN_IF_ERROR(dir_.Set("root", addresses));
  std::vector<std::string> keys;
  for (int r = 0; r < size_; ++r) {
    if (r != root_) keys.push_back(fmt::format("rank {}", r));
  }
  DW_ASSIGN_OR_RETURN(const auto others, dir_.WaitForAll(keys, deadline));
  size_t next = 0;
  for (int r = 0; r < size_; ++r) {
    if (r != root_) context_->getPair(r)->connect(others[next++]);
  }
  return absl::OkStatus();
}

Status Star::ConnectOther(Deadline deadline) {
  auto& pair = context_->createPair(root_);
  const std::vector<char> mine = pair->address().bytes();
  DW_RETURN_IF_ERROR(dir_.Set(fmt::format("rank {}", rank_), mine));
  DW_ASSIGN_OR_RETURN(const auto found, dir_.WaitForAll({"root"}, deadline));
  const std::vector<char>& all = found.front();
  if (all.size() != mine.size() * (size_ - 1)) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "rank {}: the root of this job has another number of ranks than {}", rank_,
                  size_);
  }
  const size_t index = rank_ < root_ ? rank_ : rank_ - 1;
  pair->connect(std::vector<char>(all.begin() + index * mine.size(),
                                  all.begin() + (index + 1) * mine.size()));
  return absl::OkStatus();
}

StatusOr<GlooBuffer> Star::Send(int to, uint64_t slot, Bytes from) {
  GlooBuffer buffer;
  DW_RETURN_IF_ERROR(Run(to, Deadline::max(), "sending to", [&] {
    buffer = context_->createUnboundBuffer(const_cast<std::byte*>(from.data()), from.size());
    buffer->send(to, slot);
    return true;
  }));
  return buffer;
}

StatusOr<GlooBuffer> Star::Receive(int from, uint64_t slot, MutableBytes to) {
  GlooBuffer buffer;
  DW_RETURN_IF_ERROR(Run(from, Deadline::max(), "receiving from", [&] {
    buffer = context_->createUnboundBuffer(to.data(), to.size());
    buffer->recv(from, slot);
    return true;
  }));
  return buffer;
}

Status Star::WaitSent(gloo::transport::UnboundBuffer& buffer, int peer, Deadline deadline) {
  return Run(peer, deadline, "sending to",
             [&] { return buffer.waitSend(nullptr, MillisecondsUntil(deadline)); });
}

Status Star::WaitReceived(gloo::transport::UnboundBuffer& buffer, int peer, Deadline deadline) {
  return Run(peer, deadline, "receiving from",
             [&] { return buffer.waitRecv(nullptr, MillisecondsUntil(deadline)); });
}

Status Star::Run(int peer, Deadline deadline, const char* what,
                 const std::function<bool()>& gloo_call) {
  DW_RETURN_IF_ERROR(broken_);
  const SigpipeBlocked no_sigpipe;
  try {
    if (gloo_call()) return absl::OkStatus();
    return PeerFailed(peer, deadline, what, "given up");
  } catch (const std::exception& e) {
    return PeerFailed(peer, deadline, what, e.what());
  }
}

Status Star::PeerFailed(int peer, Deadline deadline, const char* what, const char* gloo_says) {
  const char* root = peer == root_ ? " (the root)" : "";
  // A peer that left on purpose has said why, before it closed.
  if (const auto note = dir_.Find(fmt::format("left {}", peer))) {
    return Break(Errorf(StatusCode::kUnavailable, "rank {}{} gave up: {}", peer, root, *note));
  }
  if (Clock::now() >= deadline) {
    return Break(Errorf(StatusCode::kDeadlineExceeded,
                        "rank {}{} is silent: {} it did not end in time; it hangs, or it is slower "
                        "than the deadline allows",
                        peer, root, what));
  }
  return Break(Errorf(StatusCode::kUnavailable,
                      "rank {}{} is gone: {} it failed ({}); see its log, and meet again under a "
                      "new job name",
                      peer, root, what, gloo_says));
}

Status Star::Break(Status why) {
  if (!broken_.ok()) return broken_;
  broken_ = std::move(why);
  dir_.Set(fmt::format("left {}", rank_), MessageOf(broken_)).IgnoreError();
  Close();
  return broken_;
}

// A broken star's connections are reset at once, and nothing is received any more into memory whose
// owner is about to free it; a whole one's are left to the destructors, which let sent bytes
// arrive.
void Star::Close() {
  if (context_ == nullptr || broken_.ok()) return;
  const SigpipeBlocked no_sigpipe;
  try {
    for (int r = 0; r < size_; ++r) {
      if (auto& pair = context_->getPair(r)) pair->close();
    }
  } catch (const std::exception&) {
    // What cannot be closed now is closed by its destructor.
  }
}

class GlooGather final : public PendingGather {
 public:
  struct Transfer {
    int peer;
    GlooBuffer buffer;
  };

  GlooGather(std::shared_ptr<Star> star, std::vector<Transfer> transfers)
      : star_(std::move(star)), transfers_(std::move(transfers)) {}
  ~GlooGather() override {
    if (transfers_.empty()) return;
    // Connections first: a buffer that goes in the middle of a message would stall its connection.
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
  std::shared_ptr<Star> star_;
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
  explicit GlooCollective(std::shared_ptr<Star> star) : star_(std::move(star)) {}

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

  std::shared_ptr<Star> star_;
};

Status GlooCollective::SendNow(int to, uint64_t slot, Bytes from, Deadline deadline) {
  if (from.empty()) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const GlooBuffer buffer, star_->Send(to, slot, from));
  return star_->WaitSent(*buffer, to, deadline);
}

Status GlooCollective::ReceiveNow(int from, uint64_t slot, MutableBytes to, Deadline deadline) {
  if (to.empty()) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const GlooBuffer buffer, star_->Receive(from, slot, to));
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

// Collects every rank's bytes, and answers each with all of them behind a table of their sizes.
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
      DW_ASSIGN_OR_RETURN(GlooBuffer buffer, star_->Send(root(), slot, mine));
      transfers.push_back({root(), std::move(buffer)});
    }
  } else {
    if (parts.size() != static_cast<size_t>(size())) {
      return Errorf(StatusCode::kInvalidArgument, "a gather to {} places, but there are {} ranks",
                    parts.size(), size());
    }
    for (int r = 0; r < size(); ++r) {
      if (r == rank() || parts[r].empty()) continue;
      DW_ASSIGN_OR_RETURN(GlooBuffer buffer, star_->Receive(r, slot, parts[r]));
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
  auto star = std::make_shared<Star>(options, std::move(dir));
  if (Status s = star->Connect(options, deadline); !s.ok()) return star->Break(std::move(s));
  auto collective = std::make_unique<GlooCollective>(std::move(star));
  // The last to connect is here: everybody is, or nobody goes on.
  DW_RETURN_IF_ERROR(collective->Barrier(deadline));
  return std::unique_ptr<Collective>(std::move(collective));
}

}  // namespace deltawire
