// link_emulator: joins two network namespaces by a link with a rate, a delay, a queue, losses,
// reordering and duplicates. It is netem's twin for kernels without it, and needs no privilege
// beyond making a TUN device in each namespace.
//
//   link_emulator --a NAMESPACE:DEVICE --b NAMESPACE:DEVICE [--rate 1G --delay-ms 50 ...]
//
// Both devices are up when it prints {"event": "ready"}; addresses are the caller's business. Lines
// on stdin direct it: "cut", "heal" and "report" are each answered by a line with the counters of
// both directions; the end of stdin ends it. One seed makes the same decisions for the same
// packets in the same order; when packets come is up to the hosts.
//
// Its own ceiling is that of one thread with a system call for each packet and end
// (tests/network/link_figures.py ceiling measures it). A report says by how much the worst packet
// came late, which packets a device did not take, and the processor time that it all took.
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "tests/support/emulated_link.h"

namespace deltawire::test {
namespace {

constexpr int kBatch = 64;           // packets of one direction before the other has its turn
constexpr int kQueueLength = 10000;  // packets that a device keeps for us
// After a pass that moved something it sleeps so long before it looks again: as a network card
// gathers interrupts, which it would otherwise take for each packet.
constexpr int64_t kGatherNs = 50'000;

struct Options {
  std::array<std::string, 2> ends;  // NAMESPACE:DEVICE
  LinkOptions link;
  double delay_ms = 0;
  uint64_t seed = 1;
};

int64_t Now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

/// A TUN device in a namespace of `ip netns`, up, with our MTU. The calling thread is in that
/// namespace afterwards.
StatusOr<UniqueFd> OpenDevice(const std::string& end, uint32_t mtu) {
  const size_t colon = end.find(':');
  const std::string device = end.substr(colon + 1);
  const std::string path = "/run/netns/" + end.substr(0, colon);
  const UniqueFd space(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (space.get() < 0 || ::setns(space.get(), CLONE_NEWNET) != 0) {
    return ErrnoError("enter namespace " + path);
  }
  UniqueFd tun(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (tun.get() < 0) return ErrnoError("open /dev/net/tun");
  ifreq request{};
  std::strncpy(request.ifr_name, device.c_str(), IFNAMSIZ - 1);
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (::ioctl(tun.get(), TUNSETIFF, &request) != 0) return ErrnoError("make " + end);
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto set = [&](unsigned long what) { return ::ioctl(socket.get(), what, &request) == 0; };
  request.ifr_mtu = static_cast<int>(mtu);
  bool done = set(SIOCSIFMTU);
  request.ifr_qlen = kQueueLength;
  done = done && set(SIOCSIFTXQLEN) && set(SIOCGIFFLAGS);
  request.ifr_flags |= IFF_UP;
  if (!done || !set(SIOCSIFFLAGS)) return ErrnoError("set up " + end);
  return tun;
}

class Emulator {
 public:
  Emulator(const Options& options, std::array<UniqueFd, 2> devices)
      : devices_(std::move(devices)),
        links_{EmulatedLink(options.link, 2 * options.seed),
               EmulatedLink(options.link, 2 * options.seed + 1)},
        packet_(options.link.mtu) {}

  /// Until the end of stdin.
  void Run() {
    Report("ready");
    while (!ended_) {
      bool moved = false;
      for (size_t from = 0; from < 2; ++from) moved = Move(from) || moved;
      Wait(moved);
    }
    Report("end");
  }

 private:
  /// Whether a packet came in at device `from`, or went out at the other one.
  bool Move(size_t from) {
    int in = 0;
    for (; in < kBatch; ++in) {
      const ssize_t size = ::read(devices_[from].get(), packet_.data(), packet_.size());
      if (size <= 0) break;
      links_[from].Offer({packet_.data(), static_cast<size_t>(size)}, Now());
    }
    const int out = links_[from].Take(Now(), kBatch, [&](EmulatedLink::Packet packet) {
      const ssize_t written = ::write(devices_[1 - from].get(), packet.data(), packet.size());
      if (written < 0) ++refused_[from];
    });
    full_ = full_ || in == kBatch || out == kBatch;
    return in + out > 0;
  }

  /// Sleeps until there is something to do; not at all after a full batch.
  void Wait(bool moved) {
    if (full_) {
      full_ = false;
      if (++without_look_ < kBatch) return;  // stdin is looked at now and then all the same
    }
    without_look_ = 0;
    if (moved) {
      const timespec gather{0, kGatherNs};
      clock_nanosleep(CLOCK_MONOTONIC, 0, &gather, nullptr);
    }
    int64_t wait_ns = moved ? 0 : 1'000'000'000;
    for (const EmulatedLink& link : links_) {
      if (const auto next = link.next_ns()) wait_ns = std::min(wait_ns, *next - Now());
    }
    wait_ns = std::max<int64_t>(wait_ns, 0);
    const timespec rest{wait_ns / 1'000'000'000, wait_ns % 1'000'000'000};
    std::array<pollfd, 3> fds{pollfd{devices_[0].get(), POLLIN, 0},
                              pollfd{devices_[1].get(), POLLIN, 0}, pollfd{0, POLLIN, 0}};
    if (::ppoll(fds.data(), fds.size(), &rest, nullptr) > 0 && fds[2].revents != 0) Obey();
  }

  void Obey() {
    std::array<char, 256> text;
    const ssize_t size = ::read(0, text.data(), text.size());
    ended_ = size <= 0;
    for (ssize_t i = 0; i < size; ++i) {
      if (text[i] != '\n') {
        line_ += text[i];
        continue;
      }
      if (line_ == "cut" || line_ == "heal") {
        for (EmulatedLink& link : links_) link.Cut(line_ == "cut");
      }
      const bool known = line_ == "cut" || line_ == "heal" || line_ == "report";
      Report(known ? line_.c_str() : "not understood");
      line_.clear();
    }
  }

  void Report(const char* event) const {
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
    };
    std::printf("{\"event\": \"%s\", \"cpu_seconds\": %.3f", event,
                seconds(used.ru_utime) + seconds(used.ru_stime));
    for (size_t from = 0; from < 2; ++from) {
      const LinkCounters& c = links_[from].counters();
      std::printf(", \"%s\": {", from == 0 ? "a_to_b" : "b_to_a");
      for (const auto& [name, value] :
           std::initializer_list<std::pair<const char*, uint64_t>>{{"packets_in", c.packets_in},
                                                                   {"bytes_in", c.bytes_in},
                                                                   {"packets_out", c.packets_out},
                                                                   {"bytes_out", c.bytes_out},
                                                                   {"queue_full", c.queue_full},
                                                                   {"lost", c.lost},
                                                                   {"cut", c.cut},
                                                                   {"reordered", c.reordered},
                                                                   {"duplicated", c.duplicated},
                                                                   {"refused", refused_[from]}}) {
        std::printf("\"%s\": %llu, ", name, static_cast<unsigned long long>(value));
      }
      std::printf("\"most_late_ms\": %.3f}", static_cast<double>(c.most_late_ns) / 1e6);
    }
    std::printf("}\n");
    std::fflush(stdout);
  }

  const std::array<UniqueFd, 2> devices_;
  std::array<EmulatedLink, 2> links_;  // [0]: from device 0 to device 1
  std::array<uint64_t, 2> refused_{};  // the device did not take the packet
  std::vector<uint8_t> packet_;
  std::string line_;
  bool full_ = false;
  int without_look_ = 0;
  bool ended_ = false;
};

void Declare(CLI::App& app, Options& o) {
  const auto space_and_device = [](const std::string& text) -> std::string {
    const size_t colon = text.find(':');
    const bool fine = colon > 0 && colon < text.size() - 1 && text.size() - colon <= IFNAMSIZ;
    return fine ? "" : "not NAMESPACE:DEVICE";
  };
  app.add_option("--a", o.ends[0], "One end, NAMESPACE:DEVICE")
      ->required()
      ->check(space_and_device);
  app.add_option("--b", o.ends[1], "The other")->required()->check(space_and_device);
  app.add_option("--rate", o.link.bits_per_s, "Bit/s each way, e.g. 100M; 0: no limit")
      ->transform(CLI::AsNumberWithUnit(
          std::map<std::string, uint64_t>{{"k", 1000}, {"M", 1000000}, {"G", 1000000000}}));
  app.add_option("--delay-ms", o.delay_ms, "One way")->check(CLI::Range(0.0, 10000.0));
  app.add_option("--queue", o.link.queue_bytes,
                 "Bytes that may wait each way; default: one round trip's, 64 KiB at least");
  app.add_option("--loss", o.link.loss, "Share of packets")->check(CLI::Range(0.0, 1.0));
  app.add_option("--reorder", o.link.reorder, "Share of packets")->check(CLI::Range(0.0, 1.0));
  app.add_option("--reorder-depth", o.link.reorder_depth, "By so many full packets")
      ->check(CLI::Range(1, 10000));
  app.add_option("--duplicate", o.link.duplicate, "Share of packets")->check(CLI::Range(0.0, 1.0));
  app.add_option("--mtu", o.link.mtu, "")->check(CLI::Range(576, 65535));
  app.add_option("--seed", o.seed, "");
}

Status Run(Options& o) {
  if (o.link.reorder > 0 && (o.link.bits_per_s == 0 || o.link.reorder_depth == 0)) {
    return Errorf(StatusCode::kInvalidArgument, "--reorder needs --rate and --reorder-depth");
  }
  o.link.delay_ns = static_cast<int64_t>(o.delay_ms * 1e6);
  if (o.link.queue_bytes == 0) {
    const double per_s = static_cast<double>(o.link.bits_per_s) / 8;
    o.link.queue_bytes =
        std::max<uint64_t>(64 << 10, static_cast<uint64_t>(per_s * 2 * o.delay_ms / 1000));
  }
  prctl(PR_SET_TIMERSLACK, 1);  // else the kernel rounds our short sleeps up
  // A link does not wait for a processor that others keep busy. Where this is refused, it does.
  const sched_param soon{1};
  sched_setscheduler(0, SCHED_FIFO, &soon);
  std::array<UniqueFd, 2> devices;
  for (size_t i = 0; i < 2; ++i) {
    DW_ASSIGN_OR_RETURN(devices[i], OpenDevice(o.ends[i], o.link.mtu));
  }
  Emulator(o, std::move(devices)).Run();
  return {};
}

}  // namespace
}  // namespace deltawire::test

int main(int argc, char** argv) {
  CLI::App app("Joins two network namespaces by an emulated link");
  deltawire::test::Options options;
  deltawire::test::Declare(app, options);
  CLI11_PARSE(app, argc, argv);
  const deltawire::Status done = deltawire::test::Run(options);
  if (!done.ok()) std::fprintf(stderr, "%s\n", std::string(deltawire::MessageOf(done)).c_str());
  return done.ok() ? 0 : 1;
}
