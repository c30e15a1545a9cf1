#include "tests/support/proxy.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "common/base/checksum.h"
#include "common/wire/frame.h"
#include "tests/support/tcp.h"

namespace deltawire::testing {
namespace {

// Small, so that the sender soon notices a slow link.
constexpr int kBuffer = 64 << 10;
constexpr size_t kPiece = 8 << 10;

bool ReadAll(int fd, MutableBytes to) {
  for (size_t done = 0; done < to.size();) {
    const ssize_t n = recv(fd, to.data() + done, to.size() - done, 0);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

bool WriteAll(int fd, Bytes from) {
  for (size_t done = 0; done < from.size();) {
    const ssize_t n = send(fd, from.data() + done, from.size() - done, MSG_NOSIGNAL);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

Proxy::Proxy(uint16_t port) : port_(port) {
  listener_ = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(listener_, SOL_SOCKET, SO_SNDBUF, &kBuffer, sizeof kBuffer);
  Listen(listener_, kHost, port);
  accepting_ = std::thread([this] { Accept(); });
}

Proxy::~Proxy() {
  stopping_ = true;
  shutdown(listener_, SHUT_RDWR);
  accepting_.join();  // from here on no thread is added
  {
    std::lock_guard lock(mu_);
    for (const int fd : sockets_) shutdown(fd, SHUT_RDWR);
  }
  for (std::thread& t : threads_) t.join();
  for (const int fd : sockets_) close(fd);
  close(listener_);
}

void Proxy::set_edit(std::function<void(wire::Have&)> edit) {
  std::lock_guard lock(mu_);
  edit_ = std::move(edit);
}

void Proxy::Accept() {
  while (!stopping_) {
    const int receiver = accept(listener_, nullptr, nullptr);
    if (receiver < 0) return;
    const int sender = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(sender, SOL_SOCKET, SO_RCVBUF, &kBuffer, sizeof kBuffer);
    std::lock_guard lock(mu_);
    sockets_.push_back(receiver);
    sockets_.push_back(sender);
    if (!ConnectHere(sender, port_)) {
      shutdown(receiver, SHUT_RDWR);
      continue;
    }
    threads_.emplace_back([this, receiver, sender] { PumpUp(receiver, sender); });
    threads_.emplace_back([this, receiver, sender] { PumpDown(sender, receiver); });
  }
}

void Proxy::PumpUp(int receiver, int sender) {
  std::vector<std::byte> header(wire::kFrameHeaderBytes), payload;
  while (ReadAll(receiver, header)) {
    const auto decoded = wire::DecodeHeader(header);
    if (!decoded.ok()) break;
    payload.resize(decoded->payload_bytes);
    if (!ReadAll(receiver, payload)) break;
    if (decoded->type == wire::FrameType::kHave) EditHave(header, payload);
    if (!WriteAll(sender, header) || !WriteAll(sender, payload)) break;
  }
  shutdown(sender, SHUT_WR);
}

void Proxy::EditHave(std::vector<std::byte>& header, std::vector<std::byte>& payload) {
  std::lock_guard lock(mu_);
  if (!edit_) return;
  auto have = wire::DecodeHave(payload, LoadLe<uint32_t>(&payload[40]));
  if (!have.ok()) return;
  edit_(*have);
  payload = wire::Encode(*have);
  wire::FrameHeader h;
  h.type = wire::FrameType::kHave;
  h.payload_bytes = static_cast<uint32_t>(payload.size());
  h.payload_xxh3 = Xxh3(payload);
  const wire::HeaderBytes bytes = wire::EncodeHeader(h);
  header.assign(bytes.begin(), bytes.end());
}

void Proxy::PumpDown(int sender, int receiver) {
  std::vector<std::byte> piece(kPiece);
  while (true) {
    const ssize_t n = recv(sender, piece.data(), piece.size(), 0);
    if (n <= 0) break;
    Pass(static_cast<size_t>(n));
    if (!WriteAll(receiver, Bytes(piece).first(static_cast<size_t>(n)))) break;
  }
  shutdown(receiver, SHUT_WR);
}

void Proxy::Pass(size_t bytes) {
  const uint64_t rate = rate_;
  if (rate == 0) return;
  std::chrono::steady_clock::time_point until;
  {
    std::lock_guard lock(mu_);
    const auto now = std::chrono::steady_clock::now();
    const auto takes =
        std::chrono::duration<double>(static_cast<double>(bytes) / static_cast<double>(rate));
    free_at_ = std::max(free_at_, now) +
               std::chrono::duration_cast<std::chrono::steady_clock::duration>(takes);
    until = free_at_;
  }
  while (!stopping_ && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_until(
        std::min(until, std::chrono::steady_clock::now() + std::chrono::milliseconds(20)));
  }
}

}  // namespace deltawire::testing
