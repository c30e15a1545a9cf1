#include "sender/export/gather/gloo_star.h"

#include <gloo/transport/tcp/device.h>
#include <limits.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "common/base/sigpipe_blocked.h"

namespace deltawire {
namespace {

using Clock = Collective::Clock;
using Deadline = Collective::Deadline;
using gloo::transport::UnboundBuffer;
using std::chrono::milliseconds;

constexpr uint64_t kProbeSlot = 1ULL << 63;
// The pause between two checks of the watch.
constexpr milliseconds kLook{20};
// Gloo closes all connections when one of its own waits times out. The watch ends waits instead, so
// Gloo's must not time out.
constexpr milliseconds kForEver = std::chrono::hours(10'000);
// The time to wait for the note of a root that has closed: it may be just about to write one.
constexpr milliseconds kNoteWait{1000};

// At least 1, because Gloo treats zero and less as "for ever".
std::chrono::milliseconds MillisecondsUntil(Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return std::clamp(left, std::chrono::milliseconds(1),
                    std::chrono::milliseconds(std::chrono::hours(24)));
}

std::vector<char> Chars(const std::string& s) { return {s.begin(), s.end()}; }

// Checked here because Gloo crashes on a name that does not resolve.
Status CheckResolves(const GlooOptions& options) {
  std::string name = options.address;
  if (!options.interface.empty()) return absl::OkStatus();
  if (name.empty()) {
    std::array<char, HOST_NAME_MAX + 1> host{};
    if (gethostname(host.data(), host.size() - 1) != 0) return ErrnoError("gethostname");
    name = host.data();
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int rv = getaddrinfo(name.c_str(), nullptr, &hints, &found); rv != 0) {
    return Errorf(StatusCode::kInvalidArgument,
                  "rank {}: '{}' does not resolve to an address to listen on: {}; give an "
                  "interface or an address of this machine",
                  options.rank, name, gai_strerror(rv));
  }
  freeaddrinfo(found);
  return absl::OkStatus();
}

}  // namespace

GlooStar::GlooStar(const GlooOptions& options, RendezvousDir dir)
    : rank_(options.rank), size_(options.size), root_(options.root), dir_(std::move(dir)) {}

GlooStar::~GlooStar() {
  if (!watch_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mu_);
    stopping_ = true;
  }
  cv_.notify_one();
  watch_.join();
}

Status GlooStar::Connect(const GlooOptions& options, Deadline deadline) {
  if (size_ == 1) return absl::OkStatus();
  DW_RETURN_IF_ERROR(CheckResolves(options));
  const SigpipeBlocked no_sigpipe;  // Gloo's thread starts here and keeps the mask
  try {
    gloo::transport::tcp::attr attr;
    attr.iface = options.interface;
    if (options.interface.empty()) attr.hostname = options.address;
    device_ = gloo::transport::tcp::CreateDevice(attr);
    context_ = device_->createContext(rank_, size_);
    probes_.resize(size_);
  } catch (const std::exception& e) {
    return Errorf(StatusCode::kInvalidArgument,
                  "rank {}: Gloo cannot listen on interface '{}', address '{}': {}", rank_,
                  options.interface, options.address, e.what());
  }
  try {
    // Gloo waits up to five times its timeout for a connection.
    context_->setTimeout(std::max(MillisecondsUntil(deadline) / 5, std::chrono::milliseconds(1)));
    DW_RETURN_IF_ERROR(is_root() ? ConnectRoot(deadline) : ConnectOther(deadline));
    watch_ = std::thread([this] { RunWatch(); });
    return absl::OkStatus();
  } catch (const std::exception& e) {
    const auto code =
        Clock::now() >= deadline ? StatusCode::kDeadlineExceeded : StatusCode::kUnavailable;
    return Errorf(code, "rank {} of job '{}' could not connect: {}", rank_, options.job, e.what());
  }
}

// Opens one listening address per other rank on the root, and publishes them all in one entry.
Status GlooStar::ConnectRoot(Deadline deadline) {
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
    if (r == root_) continue;
    context_->getPair(r)->connect(Chars(others[next++]));
    StartProbe(r);
  }
  return absl::OkStatus();
}

Status GlooStar::ConnectOther(Deadline deadline) {
  auto& pair = context_->createPair(root_);
  const std::vector<char> mine = pair->address().bytes();
  DW_RETURN_IF_ERROR(dir_.Set(fmt::format("rank {}", rank_), mine));
  DW_ASSIGN_OR_RETURN(const auto found, dir_.WaitForAll({"root"}, deadline));
  const std::string& all = found.front();
  if (all.size() != mine.size() * (size_ - 1)) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "rank {}: the root of this job has another number of ranks than {}", rank_,
                  size_);
  }
  const size_t index = rank_ < root_ ? rank_ : rank_ - 1;
  pair->connect(Chars(all.substr(index * mine.size(), mine.size())));
  StartProbe(root_);
  return absl::OkStatus();
}

void GlooStar::StartProbe(int peer) {
  probes_[peer] = context_->createUnboundBuffer(&unsent_, sizeof unsent_);
  probes_[peer]->recv(peer, kProbeSlot);
}

// When a connection ends, Gloo fails messages that have not begun, such as the probe, but not a
// message of which a part has passed. So check the probe.
bool GlooStar::IsConnected(int peer) {
  try {
    probes_[peer]->abortWaitRecv();
    probes_[peer]->waitRecv(kForEver);  // returns at once, because it was aborted
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void GlooStar::RunWatch() {
  std::unique_lock<std::mutex> lock(mu_);
  while (!stopping_) {
    if (!waiting_.interrupt) {
      cv_.wait(lock);
      continue;
    }
    if (Clock::now() >= waiting_.deadline || !IsConnected(waiting_.peer)) {
      waiting_.interrupt();
      waiting_.interrupt = nullptr;
      continue;
    }
    cv_.wait_until(lock, std::min(waiting_.deadline, Clock::now() + kLook));
  }
}

StatusOr<GlooStar::Buffer> GlooStar::Send(int to, uint64_t slot, Bytes from) {
  Buffer buffer;
  DW_RETURN_IF_ERROR(Begin(to, "sending to", [&] {
    buffer = context_->createUnboundBuffer(const_cast<std::byte*>(from.data()), from.size());
    buffer->send(to, slot);
  }));
  return buffer;
}

StatusOr<GlooStar::Buffer> GlooStar::Receive(int from, uint64_t slot, MutableBytes to) {
  Buffer buffer;
  DW_RETURN_IF_ERROR(Begin(from, "receiving from", [&] {
    buffer = context_->createUnboundBuffer(to.data(), to.size());
    buffer->recv(from, slot);
  }));
  return buffer;
}

Status GlooStar::Begin(int peer, const char* what, const std::function<void()>& gloo_call) {
  DW_RETURN_IF_ERROR(broken_);
  const SigpipeBlocked no_sigpipe;
  try {
    gloo_call();
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return PeerGone(peer, what, e.what());
  }
}

Status GlooStar::WaitSent(UnboundBuffer& buffer, int to, Deadline deadline) {
  return Wait(
      to, deadline, "sending to", [&] { buffer.abortWaitSend(); },
      [&](milliseconds timeout) { return buffer.waitSend(timeout); });
}

Status GlooStar::WaitReceived(UnboundBuffer& buffer, int from, Deadline deadline) {
  return Wait(
      from, deadline, "receiving from", [&] { buffer.abortWaitRecv(); },
      [&](milliseconds timeout) { return buffer.waitRecv(timeout); });
}

Status GlooStar::Wait(int peer, Deadline deadline, const char* what,
                      std::function<void()> interrupt,
                      const std::function<bool(milliseconds)>& gloo_wait) {
  DW_RETURN_IF_ERROR(broken_);
  const auto watch_this = [&](Waiting waiting) {
    std::lock_guard<std::mutex> lock(mu_);
    waiting_ = std::move(waiting);
    cv_.notify_one();
  };
  try {
    watch_this({std::move(interrupt), peer, deadline});
    const bool done = gloo_wait(kForEver);
    watch_this({});
    if (done) return absl::OkStatus();
    if (Clock::now() >= deadline) {
      return Break(Errorf(StatusCode::kDeadlineExceeded,
                          "rank {}{} is silent: {} it did not end in time; it hangs, or it is "
                          "slower than the deadline allows",
                          peer, peer == root_ ? " (the root)" : "", what));
    }
    // The peer has closed, but it may have sent this message completely before.
    if (gloo_wait(milliseconds(1))) return absl::OkStatus();
    return PeerGone(peer, what, "the connection ended");
  } catch (const std::exception& e) {
    watch_this({});
    return PeerGone(peer, what, e.what());
  }
}

Status GlooStar::PeerGone(int peer, const char* what, const char* gloo_says) {
  const char* root = peer == root_ ? " (the root)" : "";
  // A peer that left on purpose writes the reason, usually before it closes.
  const auto note = dir_.WaitForAll({fmt::format("left {}", peer)},
                                    Clock::now() + (is_root() ? milliseconds(0) : kNoteWait));
  if (note.ok()) {
    return Break(
        Errorf(StatusCode::kUnavailable, "rank {}{} gave up: {}", peer, root, note->front()));
  }
  return Break(Errorf(StatusCode::kUnavailable,
                      "rank {}{} is gone: {} it failed ({}); see its log, and meet again under a "
                      "new job name",
                      peer, root, what, gloo_says));
}

Status GlooStar::Break(Status why) {
  if (!broken_.ok()) return broken_;
  broken_ = std::move(why);
  dir_.Set(fmt::format("left {}", rank_), MessageOf(broken_)).IgnoreError();
  Close();
  return broken_;
}

// Resets a broken star's connections at once, so that no bytes arrive in memory that its owner is
// about to free. An intact star's connections are left to the destructors, which deliver sent
// bytes.
void GlooStar::Close() {
  if (context_ == nullptr || broken_.ok()) return;
  const SigpipeBlocked no_sigpipe;
  try {
    for (int r = 0; r < size_; ++r) {
      if (auto& pair = context_->getPair(r)) pair->close();
    }
  } catch (const std::exception&) {
    // The destructor closes a connection that cannot be closed now.
  }
}

}  // namespace deltawire
