#include "bench/loopback/tcp_peer.h"

#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <sys/mman.h>

#include <thread>

#include "bench/harness/machine.h"
#include "common/base/human.h"
#include "common/base/sigpipe_blocked.h"
#include "common/net/tls.h"
#include "tests/support/tcp.h"

namespace deltawire::bench {

// One end of a stream: OpenSSL's BIO over a socket, plain or with TLS.
class Stream {
 public:
  explicit Stream(int fd) : bio_(BIO_new_socket(fd, BIO_CLOSE)) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // fails for the control socket
  }
  bool Secure(SSL_CTX* context, bool client) {
    bio_.reset(BIO_push(BIO_new_ssl(context, client), bio_.release()));
    return BIO_do_handshake(bio_.get()) == 1;
  }
  bool Send(Bytes data) { return Fully(data, BIO_write_ex); }
  bool Receive(MutableBytes data) { return Fully(data, BIO_read_ex); }
  bool SendNumber(uint64_t n) { return Send(std::as_bytes(std::span(&n, 1))); }
  bool ReceiveNumber(uint64_t& n) { return Receive(std::as_writable_bytes(std::span(&n, 1))); }

 private:
  template <typename Span, typename Some>
  bool Fully(Span data, Some* some) {
    constexpr size_t kMaxCall = size_t{4} << 20;
    while (!data.empty()) {
      size_t n = 0;
      if (some(bio_.get(), data.data(), std::min(data.size(), kMaxCall), &n) == 1) {
        data = data.subspan(n);
      } else if (!BIO_should_retry(bio_.get())) {
        return false;
      }
    }
    return true;
  }
  struct Free {
    void operator()(BIO* bio) const { BIO_free_all(bio); }
  };
  std::unique_ptr<BIO, Free> bio_;
};

namespace {

using Streams = std::vector<std::unique_ptr<Stream>>;

// An order on the control socket is the number of pairs that follow, or this value for the whole
// source. The peer answers with the same number when all is in its mapping.
constexpr uint64_t kEverything = ~uint64_t{0};

// Returns part i of n of `all`, cut at multiples of a page.
template <typename Span>
Span Part(Span all, size_t i, size_t n) {
  constexpr size_t kPage = 4096;
  const size_t step = (all.size() / n / kPage + 1) * kPage;
  const size_t begin = std::min(i * step, all.size());
  return all.subspan(begin, std::min(step, all.size() - begin));
}

// Calls `work(i)` for each of `n` streams on its own thread; returns false when one returned false.
bool OnEach(size_t n, const std::function<bool(size_t)>& work) {
  std::atomic<bool> ok{true};
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < n; ++i) {
    threads.emplace_back([&, i] {
      if (!work(i)) ok = false;
    });
  }
  threads.clear();  // joins them
  return ok;
}

bool ReceivePairs(Stream& stream, uint64_t count, Lists& pairs, MutableBytes to) {
  pairs.where.resize(count * sizeof(uint32_t));
  pairs.what.resize(count * sizeof(uint16_t));
  return stream.Receive(pairs.where) && stream.Receive(pairs.what) &&
         Reference(kPairs).Apply(pairs, sizeof(uint16_t), to).ok();
}

void RunPeer(Stream& control, const UniqueFd& listener, MutableBytes to, size_t stream_count,
             SSL_CTX* tls) {
  const SigpipeBlocked blocked;
  // Fills this process's page tables; the pages themselves exist already.
  madvise(to.data(), to.size(), MADV_POPULATE_WRITE);
  Streams streams;  // in connection order
  for (size_t i = 0; i < stream_count; ++i) {
    streams.push_back(std::make_unique<Stream>(accept(listener.get(), nullptr, nullptr)));
    if (tls != nullptr && !streams.back()->Secure(tls, /*client=*/false)) return;
  }
  Lists pairs;
  uint64_t order = 0;
  while (control.ReceiveNumber(order)) {
    const bool received = order != kEverything
                              ? ReceivePairs(*streams[0], order, pairs, to)
                              : OnEach(stream_count, [&](size_t i) {
                                  return streams[i]->Receive(Part(to, i, stream_count));
                                });
    if (!received || !control.SendNumber(order)) break;
  }
}

StatusOr<std::shared_ptr<SSL_CTX>> ContextOf(const std::string& credentials, net::Tls::Side side) {
  if (credentials.empty()) return nullptr;
  DW_ASSIGN_OR_RETURN(auto loaded, security::Credentials::Load(credentials));
  DW_ASSIGN_OR_RETURN(const auto tls, net::Tls::Create(std::move(loaded), side));
  DW_ASSIGN_OR_RETURN(const auto context, tls->Now());
  return context->context;
}

}  // namespace

TcpPeer::TcpPeer() = default;
TcpPeer::~TcpPeer() = default;

StatusOr<std::unique_ptr<TcpPeer>> TcpPeer::Start(const std::filesystem::path& file, uint64_t bytes,
                                                  size_t streams, const std::string& credentials) {
  auto peer = std::unique_ptr<TcpPeer>(new TcpPeer);
  DW_ASSIGN_OR_RETURN(peer->landed_, MapNewFile(file, bytes));
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const uint16_t port = testing::Listen(listener.get(), "127.0.0.1", 0);
  DW_ASSIGN_OR_RETURN(const auto server, ContextOf(credentials, net::Tls::Side::kServer));
  DW_ASSIGN_OR_RETURN(const auto client, ContextOf(credentials, net::Tls::Side::kClient));
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoError("sockets for the bare TCP peer");
  }
  peer->control_ = std::make_unique<Stream>(ends[0]);
  Stream theirs(ends[1]);
  peer->process_.emplace([&] { RunPeer(theirs, listener, peer->landed(), streams, server.get()); });
  const sockaddr_in address = testing::Address("127.0.0.1", port);
  for (size_t i = 0; i < streams; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    peer->streams_.push_back(std::make_unique<Stream>(fd));
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      return ErrnoError("connect to the bare TCP peer");
    }
    if (client != nullptr && !peer->streams_.back()->Secure(client.get(), /*client=*/true)) {
      return absl::UnavailableError("the bare TLS peer refuses the handshake");
    }
  }
  return peer;
}

StatusOr<double> TcpPeer::Send(uint64_t order, const std::vector<std::vector<Bytes>>& parts) {
  const SigpipeBlocked blocked;
  const auto start = SteadyClock::now();
  const bool sent =
      control_->SendNumber(order) && OnEach(parts.size(), [&](size_t i) {
        return std::ranges::all_of(parts[i], [&](Bytes part) { return streams_[i]->Send(part); });
      });
  if (!sent || !control_->ReceiveNumber(order)) {
    return absl::UnavailableError("the bare TCP peer is gone; was it killed for memory?");
  }
  return SecondsSince(start);
}

StatusOr<double> TcpPeer::SendAll(Bytes source) {
  std::vector<std::vector<Bytes>> parts;
  for (size_t i = 0; i < streams_.size(); ++i) parts.push_back({Part(source, i, streams_.size())});
  return Send(kEverything, parts);
}

StatusOr<double> TcpPeer::SendPairs(const Lists& pairs) {
  return Send(pairs.where.size() / sizeof(uint32_t), {{pairs.where, pairs.what}});
}

double TcpPeer::CpuSeconds() const {
  return bench::CpuSeconds(getpid()) + bench::CpuSeconds(process_->pid());
}

}  // namespace deltawire::bench
