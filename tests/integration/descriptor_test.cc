// Daemons that run out of descriptors, or get thousands of connections that send nothing or
// garbage: they stay up, and when those connections are gone they serve as before.
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <random>

#include "tests/support/daemons.h"
#include "tests/support/tcp.h"

namespace deltawire::testing::descriptor_test {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr const char* kModel = "m";
constexpr rlim_t kLimit = 1024;
constexpr size_t kIdle = 1000;

void SetLimit(pid_t pid, rlim_t descriptors) {
  const rlimit limit{descriptors, kLimit};
  REQUIRE(prlimit(pid, RLIMIT_NOFILE, &limit, nullptr) == 0);
}

size_t OpenDescriptors(pid_t pid) {
  const std::filesystem::directory_iterator fds(fmt::format("/proc/{}/fd", pid));
  return static_cast<size_t>(std::distance(begin(fds), end(fds)));
}

/// Connections to one port that are all closed at the end.
class Crowd {
 public:
  explicit Crowd(uint16_t port) : port_(port) {
    rlimit own{};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &own) == 0);
    own.rlim_cur = std::min<rlim_t>(own.rlim_max, 8192);
    setrlimit(RLIMIT_NOFILE, &own);
  }
  ~Crowd() { Leave(); }
  /// Dials and sends `bytes`. The daemon need not accept the connection: it waits in the kernel's
  /// queue.
  void Dial(std::string_view bytes = {}) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0);
    fds_.push_back(fd);
    // The timeout keeps a full queue from holding up the test.
    const timeval most{2, 0};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    if (!ConnectHere(fd, port_)) return;
    if (!bytes.empty()) send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void Leave() {
    for (const int fd : fds_) close(fd);
    fds_.clear();
  }

 private:
  const uint16_t port_;
  std::vector<int> fds_;
};

uint16_t PortIn(const std::string& address) {
  return static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)));
}

/// Whether a client without a connection to `control` gets one: gRPC's pool of shared connections
/// is not used.
bool Answers(const std::string& control) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel = grpc::CreateCustomChannel(control, grpc::InsecureChannelCredentials(), args);
  return channel->WaitForConnected(std::chrono::system_clock::now() + 100ms);
}

struct Setup {
  Setup() {
    REQUIRE(trainer.Publish(1).status() == absl::OkStatus());
    REQUIRE(receiver.WaitCommitted(1));
  }
  void PublishAndCommit(uint64_t version) {
    trainer.Step();
    REQUIRE(trainer.Publish(version).status() == absl::OkStatus());
    REQUIRE(receiver.WaitCommitted(version));
  }
  ShmDir root;
  SenderProcess sender{root.path()};
  ReceiverProcess receiver{root.path(), "r1", sender.control(), kModel};
  Trainer trainer{sender.socket(), kModel, 1, 41};
};

struct Port {
  std::string name;
  cli::ChildProcess& daemon;
  uint16_t port;
  std::string control;
};

std::vector<Port> Ports(Setup& s) {
  return {{"the sender's bulk port", s.sender.child(), s.sender.bulk_port(), s.sender.control()},
          {"the sender's control port", s.sender.child(), PortIn(s.sender.control()),
           s.sender.control()},
          {"the receiver's control port", s.receiver.child(), PortIn(s.receiver.control()),
           s.receiver.control()}};
}

// A sanitizer keeps what it knows of memory that was freed.
#ifdef __SANITIZE_THREAD__
constexpr bool kKeepsFreedMemory = true;
#else
constexpr bool kKeepsFreedMemory = false;
#endif

}  // namespace

TEST_CASE("a daemon that was out of descriptors serves as before within two seconds") {
  Setup s;
  uint64_t version = 1;
  for (const Port& at : Ports(s)) {
    INFO(at.name << "\n" << ReadText(s.sender.log()) << ReadText(s.receiver.log()));
    const pid_t pid = at.daemon.pid();
    const uint64_t before = AnonymousBytes(pid);
    SetLimit(pid, kLimit);
    Crowd crowd(at.port);
    for (size_t i = 0; i < kIdle; ++i) crowd.Dial();
    // The limit is now the number of open descriptors, so the daemon cannot open even those that it
    // keeps in reserve.
    SetLimit(pid, OpenDescriptors(pid));
    for (size_t i = 0; i < 20; ++i) crowd.Dial();
    SetLimit(pid, kLimit);
    crowd.Leave();
    const auto ended = Clock::now();
    CHECK(Eventually([&] { return Answers(at.control); }, 2s));
    s.PublishAndCommit(++version);
    const std::chrono::duration<double> took = Clock::now() - ended;
    CHECK(took < 2s);
    const bool back =
        kKeepsFreedMemory || Eventually([&] { return AnonymousBytes(pid) < before + (16 << 20); });
    CHECK(back);
    WARN(at.name << ": normal service " << took.count() << " s after the end of the shortage; MiB "
                 << (before >> 20) << " before and " << (AnonymousBytes(pid) >> 20) << " after");
    CHECK(s.trainer.Compare(s.receiver.dir()) == "");
  }
}

TEST_CASE("connections that say nothing leave descriptors for those that do") {
  Setup s;
  SetLimit(s.sender.child().pid(), kLimit);
  Crowd crowd(s.sender.bulk_port());
  for (size_t i = 0; i < kIdle; ++i) crowd.Dial();
  INFO(ReadText(s.sender.log()));
  // While all of them are open, the sender still has descriptors for new control connections and
  // for an offload's files.
  CHECK(Eventually([&] { return Answers(s.sender.control()); }, 2s));
  s.trainer.Step();
  CHECK(s.trainer.TryPublish(2).status() == absl::OkStatus());
  // The sender closes connections that stay silent, so the receiver's pull gets through.
  CHECK(s.receiver.WaitCommitted(2, 20s));
}

TEST_CASE("two thousand connections of garbage leave no memory behind") {
  if (kKeepsFreedMemory) {
    std::puts("SKIPPED: the sanitizer keeps what it knows of memory that was freed");
    return;
  }
  const uint64_t seed = 0x6A7BA6E;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  std::string garbage(4096, '\0');
  for (char& c : garbage) c = static_cast<char>(random());
  Setup s;
  for (const Port& at : Ports(s)) {
    INFO(at.name);
    const uint64_t before = AnonymousBytes(at.daemon.pid());
    Crowd crowd(at.port);
    for (size_t i = 0; i < 2000; ++i) crowd.Dial(i % 2 == 0 ? garbage : std::string());
    const uint64_t held = AnonymousBytes(at.daemon.pid());
    crowd.Leave();
    uint64_t after = 0;
    CHECK(Eventually(
        [&] {
          after = AnonymousBytes(at.daemon.pid());
          return after < before + (16 << 20);
        },
        20s));
    WARN(at.name << ": MiB before " << (before >> 20) << ", with 2,000 connections " << (held >> 20)
                 << ", after " << (after >> 20));
  }
  s.PublishAndCommit(2);
}

}  // namespace deltawire::testing::descriptor_test
