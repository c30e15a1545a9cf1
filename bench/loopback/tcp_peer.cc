#include "bench/loopback/tcp_peer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "bench/harness/buffers.h"
#include "bench/harness/machine.h"
#include "common/base/human.h"
#include "common/security/certificate_issuer.h"

namespace deltawire::bench {
namespace {

constexpr size_t kMaxCall = size_t{4} << 20;  // bytes per send or recv
// An order on the control socket is the size of a list of pairs that will come, or this value for
// the whole source. The peer answers with the same number when all is in its mapping.
constexpr uint64_t kEverything = ~uint64_t{0};

bool SendFully(int fd, Bytes data) {
  while (!data.empty()) {
    const ssize_t n = send(fd, data.data(), std::min(data.size(), kMaxCall), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data = data.subspan(static_cast<size_t>(n));
  }
  return true;
}

bool ReceiveFully(int fd, MutableBytes data) {
  while (!data.empty()) {
    const ssize_t n = recv(fd, data.data(), std::min(data.size(), kMaxCall), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data = data.subspan(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

// One end of all streams under TLS.
class TlsEnd {
 public:
  /// REQUIRES: `pair` outlives the end.
  TlsEnd(bool server, const security::IssuedCertificate& pair)
      : server_(server), context_(SSL_CTX_new(TLS_method())) {
    SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(context_, "TLS_AES_128_GCM_SHA256");  // as deltawire chooses
    SSL_CTX_set_read_ahead(context_, 1);
    SSL_CTX_set_default_read_buffer_len(context_, kReadAhead);
    if (!server) return;
    BIO* in = BIO_new_mem_buf(pair.certificate.data(), static_cast<int>(pair.certificate.size()));
    X509* certificate = PEM_read_bio_X509(in, nullptr, nullptr, nullptr);
    BIO_free(in);
    in = BIO_new_mem_buf(pair.key.data(), static_cast<int>(pair.key.size()));
    EVP_PKEY* key = PEM_read_bio_PrivateKey(in, nullptr, nullptr, nullptr);
    BIO_free(in);
    SSL_CTX_use_certificate(context_, certificate);
    SSL_CTX_use_PrivateKey(context_, key);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  ~TlsEnd() {
    for (SSL* stream : streams_) SSL_free(stream);
    SSL_CTX_free(context_);
  }
  bool Add(int fd) {
    SSL* const stream = streams_.emplace_back(SSL_new(context_));
    return SSL_set_fd(stream, fd) == 1 && (server_ ? SSL_accept(stream) : SSL_connect(stream)) == 1;
  }
  bool Send(size_t stream, Bytes data) {
    for (size_t n = 0; !data.empty(); data = data.subspan(n)) {
      if (SSL_write_ex(streams_[stream], data.data(), data.size(), &n) != 1) return false;
    }
    return true;
  }
  bool Receive(size_t stream, MutableBytes data) {
    for (size_t n = 0; !data.empty(); data = data.subspan(n)) {
      if (SSL_read_ex(streams_[stream], data.data(), data.size(), &n) != 1) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kReadAhead = size_t{256} << 10;
  const bool server_;
  SSL_CTX* const context_;
  std::vector<SSL*> streams_;
};

namespace {

template <typename T>
bool SendValue(int fd, const T& value) {
  return SendFully(fd, std::as_bytes(std::span(&value, 1)));
}
template <typename T>
bool ReceiveValue(int fd, T& value) {
  return ReceiveFully(fd, std::as_writable_bytes(std::span(&value, 1)));
}

// Part i of n of `all`, cut at multiples of a page.
template <typename Span>
Span Part(Span all, size_t i, size_t n) {
  constexpr size_t kPage = 4096;
  const size_t step = (all.size() / n + kPage - 1) / kPage * kPage;
  const size_t begin = std::min(i * step, all.size());
  const size_t end = i + 1 == n ? all.size() : std::min(begin + step, all.size());
  return all.subspan(begin, end - begin);
}

void Tune(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// ---- the peer's process ---------------------------------------------------------------------

void ApplyPairs(Bytes pairs, MutableBytes to) {
  for (size_t i = 0; i + kPairBytes <= pairs.size(); i += kPairBytes) {
    const size_t index = LoadLe<uint32_t>(&pairs[i]);
    StoreLe<uint16_t>(&to[index * 2], LoadLe<uint16_t>(&pairs[i + 4]));
  }
}

bool ReceiveAll(const std::vector<int>& streams, TlsEnd* tls, MutableBytes to) {
  std::atomic<bool> ok{true};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < streams.size(); ++i) {
    threads.emplace_back([&, i] {
      const MutableBytes part = Part(to, i, streams.size());
      if (!(tls != nullptr ? tls->Receive(i, part) : ReceiveFully(streams[i], part))) ok = false;
    });
  }
  for (std::thread& t : threads) t.join();
  return ok;
}

void RunPeer(int control, int listener, MutableBytes to, size_t stream_count, TlsEnd* tls) {
  // Fills this process's page tables; the pages themselves exist already.
  madvise(to.data(), to.size(), MADV_POPULATE_WRITE);
  std::vector<int> streams;  // in the order in which they were connected
  for (size_t i = 0; i < stream_count; ++i) {
    streams.push_back(accept(listener, nullptr, nullptr));
    Tune(streams.back());
    if (tls != nullptr && !tls->Add(streams.back())) return;
  }
  std::vector<std::byte> pairs;
  uint64_t order = 0;
  while (ReceiveValue(control, order)) {
    if (order == kEverything) {
      if (!ReceiveAll(streams, tls, to)) break;
    } else {
      pairs.resize(order);
      if (!ReceiveFully(streams[0], pairs)) break;
      ApplyPairs(pairs, to);
    }
    if (!SendValue(control, order)) break;
  }
}

}  // namespace

TcpPeer::TcpPeer() = default;
TcpPeer::~TcpPeer() = default;

StatusOr<std::unique_ptr<TcpPeer>> TcpPeer::Start(const std::filesystem::path& file, uint64_t bytes,
                                                  size_t streams, Way way) {
  auto peer = std::unique_ptr<TcpPeer>(new TcpPeer);
  DW_ASSIGN_OR_RETURN(peer->landed_, MapNewFile(file, bytes));
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  int ends[2];
  if (bind(listener.get(), name, size) != 0 ||
      listen(listener.get(), static_cast<int>(streams)) != 0 ||
      getsockname(listener.get(), name, &size) != 0 ||
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoError("sockets for the bare TCP peer");
  }
  peer->control_ = UniqueFd(ends[0]);
  const UniqueFd theirs(ends[1]);
  std::unique_ptr<TlsEnd> theirs_tls;
  if (way == Way::kTls) {
    DW_ASSIGN_OR_RETURN(const auto pair, security::MakeAuthority("peer", std::chrono::days(1)));
    theirs_tls = std::make_unique<TlsEnd>(true, pair);
    peer->tls_ = std::make_unique<TlsEnd>(false, pair);
  }
  peer->process_.emplace(
      [&] { RunPeer(ends[1], listener.get(), peer->landed(), streams, theirs_tls.get()); });
  for (size_t i = 0; i < streams; ++i) {
    peer->streams_.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(peer->streams_.back().get(), name, size) != 0) {
      return ErrnoError("connect to the bare TCP peer");
    }
    Tune(peer->streams_.back().get());
    if (peer->tls_ != nullptr && !peer->tls_->Add(peer->streams_.back().get())) {
      return absl::UnavailableError("the bare TLS peer refuses the handshake");
    }
  }
  return peer;
}

StatusOr<double> TcpPeer::Send(uint64_t order, const std::vector<Bytes>& parts) {
  const auto start = SteadyClock::now();
  std::atomic<bool> ok = SendValue(control_.get(), order);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < parts.size(); ++i) {
    threads.emplace_back([&, i] {
      if (!(tls_ != nullptr ? tls_->Send(i, parts[i]) : SendFully(streams_[i].get(), parts[i]))) {
        ok = false;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  if (!ok || !ReceiveValue(control_.get(), order)) {
    return absl::UnavailableError("the bare TCP peer is gone; was it killed for memory?");
  }
  return SecondsSince(start);
}

StatusOr<double> TcpPeer::SendAll(Bytes source) {
  std::vector<Bytes> parts;
  for (size_t i = 0; i < streams_.size(); ++i) parts.push_back(Part(source, i, streams_.size()));
  return Send(kEverything, parts);
}

StatusOr<double> TcpPeer::SendPairs(Bytes pairs) { return Send(pairs.size(), {pairs}); }

double TcpPeer::CpuSeconds() const {
  return bench::CpuSeconds(getpid()) + bench::CpuSeconds(process_->pid());
}

}  // namespace deltawire::bench
