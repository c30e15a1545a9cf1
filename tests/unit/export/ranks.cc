#include "tests/unit/export/ranks.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>

namespace deltawire::testing {
namespace {

constexpr int kHearMs = 60'000;

}  // namespace

void Line::Say(std::string text) const {
  std::replace(text.begin(), text.end(), '\n', ' ');
  text += '\n';
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = send(fd_, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (n <= 0) _exit(1);  // the test has ended
    at += n;
  }
}

void Line::AwaitGo() const {
  char go;
  if (read(fd_, &go, 1) != 1) _exit(1);
}

Ranks::Ranks(int n, const Body& body) {
  for (int r = 0; r < n; ++r) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
      throw std::runtime_error("socketpair");
    }
    auto child = std::make_unique<Forked>([&] {
      // SIGPIPE ends this process, as it does in a program that leaves the signal alone.
      signal(SIGPIPE, SIG_DFL);
      close(fds[0]);
      const Line line(fds[1]);
      line.Say(body(r, line));
    });
    close(fds[1]);
    children_.push_back({std::move(child), fds[0], {}});
  }
}

Ranks::~Ranks() {
  for (const Child& c : children_) close(c.fd);
}

std::string Ranks::Hear(int rank) {
  Child& c = children_[rank];
  for (;;) {
    if (const size_t end = c.read.find('\n'); end != std::string::npos) {
      const std::string line = c.read.substr(0, end);
      c.read.erase(0, end + 1);
      return line;
    }
    pollfd p{c.fd, POLLIN, 0};
    if (poll(&p, 1, kHearMs) <= 0) return "(silent)";
    char buffer[4096];
    const ssize_t n = read(c.fd, buffer, sizeof buffer);
    if (n <= 0) return "(ended)";
    c.read.append(buffer, n);
  }
}

void Ranks::Go(int rank) {
  if (send(children_[rank].fd, "g", 1, MSG_NOSIGNAL) != 1) throw std::runtime_error("Go");
}

void Ranks::Signal(int rank, int signal) { children_[rank].process->Signal(signal); }

Collective::Deadline In(std::chrono::milliseconds time) { return Collective::Clock::now() + time; }

GlooOptions Loopback(const std::string& dir, const std::string& job, int rank, int size, int root) {
  GlooOptions options;
  options.rank = rank;
  options.size = size;
  options.root = root;
  options.rendezvous = "file:" + dir;
  options.job = job;
  options.address = "127.0.0.1";
  return options;
}

StatusOr<std::unique_ptr<PendingGather>> CountingCollective::StartGather(
    uint32_t slot, Bytes mine, std::span<const MutableBytes> parts, Deadline deadline) {
  class Counted final : public PendingGather {
   public:
    Counted(std::unique_ptr<PendingGather> inner, Counts& counts)
        : inner_(std::move(inner)), counts_(counts) {
      counts_.peak_pending = std::max(counts_.peak_pending, ++counts_.pending);
    }
    ~Counted() override { --counts_.pending; }
    Status Wait(Deadline d) override { return inner_->Wait(d); }

   private:
    std::unique_ptr<PendingGather> inner_;
    Counts& counts_;
  };
  DW_ASSIGN_OR_RETURN(auto inner, inner_->StartGather(slot, mine, parts, deadline));
  return std::make_unique<Counted>(std::move(inner), counts_);
}

StatusOr<std::unique_ptr<CollectiveBuffer>> CountingCollective::NewBuffer(BufferUse use,
                                                                          uint64_t bytes) {
  class Counted final : public CollectiveBuffer {
   public:
    Counted(std::unique_ptr<CollectiveBuffer> inner, Counts& counts)
        : inner_(std::move(inner)), counts_(counts) {
      counts_.live_bytes += inner_->bytes().size();
      counts_.peak_bytes = std::max(counts_.peak_bytes, counts_.live_bytes);
    }
    ~Counted() override { counts_.live_bytes -= inner_->bytes().size(); }
    MutableBytes bytes() override { return inner_->bytes(); }

   private:
    std::unique_ptr<CollectiveBuffer> inner_;
    Counts& counts_;
  };
  DW_ASSIGN_OR_RETURN(auto inner, inner_->NewBuffer(use, bytes));
  return std::make_unique<Counted>(std::move(inner), counts_);
}

std::vector<std::byte> SeededItems::Contents(uint64_t item) const {
  std::mt19937_64 random(seed_ * 1'000'003 + item);
  std::vector<std::byte> bytes(items_[item].bytes);
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t v = random();
    std::memcpy(bytes.data() + at, &v, std::min(sizeof v, bytes.size() - at));
  }
  return bytes;
}

GatherSource SeededItems::Source(int rank) {
  mine_.resize(items_.size());
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].rank == static_cast<uint32_t>(rank)) mine_[i] = Contents(i);
  }
  return [this, rank](uint64_t item) -> StatusOr<Bytes> {
    if (items_[item].rank != static_cast<uint32_t>(rank)) {
      return absl::InternalError("asked for another rank's item");
    }
    return Bytes(mine_[item]);
  };
}

Status SeededItems::Consume(const GatherBucket& bucket, std::span<const Bytes> pieces) {
  consumed_.resize(items_.size());
  if (pieces.size() != bucket.size()) return absl::InternalError("another number of pieces");
  for (size_t p = 0; p < bucket.size(); ++p) {
    std::vector<std::byte>& to = consumed_[bucket[p].item];
    if (pieces[p].size() != bucket[p].bytes) return absl::InternalError("a piece of another size");
    if (to.size() != bucket[p].offset) return absl::InternalError("pieces out of order");
    to.insert(to.end(), pieces[p].begin(), pieces[p].end());
  }
  return absl::OkStatus();
}

std::string SeededItems::Check() const {
  for (size_t i = 0; i < items_.size(); ++i) {
    if (consumed_.size() <= i || consumed_[i] != Contents(i)) {
      return fmt::format("item {} of rank {} differs", i, items_[i].rank);
    }
  }
  return "ok";
}

std::vector<GatherItem> RandomItems(uint64_t seed, int ranks, size_t n, uint64_t bucket_bytes) {
  std::mt19937_64 random(seed);
  std::vector<GatherItem> items;
  for (size_t i = 0; i < n; ++i) {
    const auto rank = static_cast<uint32_t>(random() % ranks);
    switch (random() % 8) {
      case 0:
        items.push_back({rank, 0});
        break;
      case 1:
        items.push_back({rank, 1 + random() % 130});
        break;
      case 2:
        items.push_back({rank, bucket_bytes * (1 + random() % 3) + random() % 3});
        break;
      default:
        items.push_back({rank, random() % (bucket_bytes / 2)});
    }
  }
  return items;
}

}  // namespace deltawire::testing
