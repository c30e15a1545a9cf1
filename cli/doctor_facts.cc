#include <fcntl.h>
#include <linux/magic.h>
#include <pwd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "cli/connect.h"
#include "cli/doctor.h"
#include "cli/logind.h"
#include "common/base/human.h"
#include "common/base/machine.h"
#include "common/base/unique_fd.h"
#include "common/config/endpoint.h"
#include "common/layout/model_dir.h"
#include "common/shm/file_lease.h"
#include "common/shm/mapped_file.h"
#include "kernels/kernels.h"
#include "proto/client/tcp.h"

namespace deltawire::cli {
namespace fs = std::filesystem;
namespace {

double DaysUntil(std::chrono::system_clock::time_point then) {
  using Days = std::chrono::duration<double, std::ratio<86400>>;
  return std::chrono::duration_cast<Days>(then - std::chrono::system_clock::now()).count();
}

std::string FirstLine(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// Returns `dir`, or if it does not exist its nearest existing parent, where a daemon would create
// it.
fs::path FirstThatIsThere(const fs::path& dir) {
  std::error_code unknown;
  fs::path at = fs::absolute(dir, unknown);
  while (at.has_relative_path() &&
         fs::symlink_status(at, unknown).type() == fs::file_type::not_found) {
    at = at.parent_path();
  }
  return at;
}

/// Returns the owner's name if the directory is neither this user's nor root's, else "".
std::string OtherOwner(const fs::path& dir) {
  struct stat info;
  if (::stat(dir.c_str(), &info) != 0 || info.st_uid == ::geteuid() || info.st_uid == 0) return "";
  const struct passwd* const user = ::getpwuid(info.st_uid);
  return user == nullptr ? fmt::format("'#{}'", info.st_uid) : user->pw_name;
}

void LookAtDirectory(MachineFacts& f) {
  const fs::path there = FirstThatIsThere(f.data_dir);
  f.data_dir_missing = there != fs::absolute(f.data_dir);
  const fs::path probe = there / fmt::format(".doctor-{}", ::getpid());
  const UniqueFd fd(::open(probe.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (fd.get() < 0) {
    f.data_dir_usable = ErrnoError("a file cannot be made in " + there.native());
    if (f.data_dir_usable.code() == StatusCode::kPermissionDenied) {
      f.data_dir_owner = OtherOwner(there);
    }
    return;
  }
  struct statfs at;
  if (::fstatfs(fd.get(), &at) == 0) {
    f.in_memory = at.f_type == TMPFS_MAGIC || at.f_type == RAMFS_MAGIC;
    f.free_bytes = static_cast<uint64_t>(at.f_bavail) * static_cast<uint64_t>(at.f_bsize);
  }
  FileLease lease(fd.get());
  if (lease.Try() == FileLease::Answer::kUnsupported) f.no_leases = lease.reason();
  lease.Release();
  ::unlink(probe.c_str());
}

void LookAtModel(const fs::path& path, MachineFacts& f) {
  f.model = path;
  const auto model = ModelDir::Open(path, ModelDir::Access::kRead);
  f.model_read = model.status();
  if (model.ok()) f.model_bytes = model->layout().total_bytes();
}

void LookAtMount(MachineFacts& f) {
  struct stat at;
  if (::stat(FirstThatIsThere(f.data_dir).c_str(), &at) != 0) return;
  const std::string device = fmt::format("{}:{}", major(at.st_dev), minor(at.st_dev));
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const auto mount = ParseMountLine(line);
    if (!mount || mount->device != device) continue;
    f.mount_point = mount->point;
    f.huge_pages = mount->huge_pages;
  }
}

/// With RemoveIPC=yes, logind removes a user's files from /dev/shm when the user's last session
/// ends. System users and users with lingering are exempt.
void LookAtLogind(MachineFacts& f) {
  constexpr uid_t kLastSystemUser = 999;
  std::error_code none;
  const struct passwd* const user = ::getpwuid(::geteuid());
  if (user == nullptr || user->pw_uid <= kLastSystemUser || f.mount_point != "/dev/shm") return;
  if (!fs::exists("/run/systemd/seats", none)) return;  // no logind on this machine
  if (fs::exists(fs::path("/var/lib/systemd/linger") / user->pw_name, none)) return;
  if (LogindRemovesIpc()) f.logind_removes = user->pw_name;
}

// Finds out facts that gRPC does not report: why the connection failed, or the peer's certificate.
void LookAtConnection(PeerFacts& p, std::chrono::milliseconds timeout) {
  const auto endpoint = ParseEndpoint(p.address);
  const auto credentials = ToolCredentials();
  if (!endpoint.ok() || !credentials.ok()) return;
  if (IsUnreachable(p.reached)) {
    const DialedPeer peer{p.kind, p.address, **credentials, WordsFor(p.kind)};
    p.diagnosis = WhyNotReached(LookAtPort(peer, timeout), peer);
    return;
  }
  if (absl::IsFailedPrecondition(p.reached)) {  // the daemon does not have the call
    const DialedPeer peer{p.kind, p.address, **credentials, WordsFor(p.kind)};
    p.diagnosis = WhyUnimplemented(peer, timeout);
    return;
  }
  if (!(*credentials)->dials_tls()) return;
  const auto fd = ConnectTcp(p.address, timeout);
  if (!fd.ok()) return;
  SetTimeout(fd->get(), timeout);
  auto tls = security::ProbeTls(fd->get(), endpoint->host, *(*credentials)->Now());
  if (!tls.ok()) return;
  p.tls = *std::move(tls);
  p.certificate_days = DaysUntil(p.tls->certificate.to);
}

/// Asks the daemon at `address` for its status. The facts that senders and receivers share go into
/// `facts`.
template <typename Daemon>
auto LookAtPeer(StatusOr<Daemon> (*dial)(const std::string&, std::chrono::milliseconds),
                const std::string& address, std::chrono::milliseconds timeout, PeerFacts* facts) {
  int64_t before = 0, after = 0;
  using Answer = decltype(GetStatus(std::declval<Daemon&>(), "", timeout));
  const auto answer = [&]() -> Answer {
    DW_ASSIGN_OR_RETURN(Daemon daemon, dial(address, timeout));
    before = UnixNanos();
    Answer status = GetStatus(daemon, "", timeout);
    after = UnixNanos();
    return status;
  }();
  facts->address = address;
  facts->reached = answer.status();
  LookAtConnection(*facts, timeout);
  if (!answer.ok()) return answer;
  facts->program_version = answer->program_version();
  facts->exposed = answer->plaintext_exposed();
  facts->security = answer->security();
  if (answer->unix_nanos() != 0) {
    const int64_t middle = before + (after - before) / 2;
    facts->clock_ahead_seconds = 1e-9 * static_cast<double>(answer->unix_nanos() - middle);
    facts->clock_doubt_seconds = 1e-9 * static_cast<double>(after - before) / 2;
  }
  return answer;
}

PeerFacts LookAtSender(const std::string& address, std::chrono::milliseconds timeout) {
  PeerFacts p{.kind = "sender"};
  const auto answer = LookAtPeer(DialSender, address, timeout, &p);
  if (!answer.ok()) return p;
  p.bulk_address = answer->bulk_address();
  // A sender that listens on 0.0.0.0 or :: reports no address to dial, so its bulk port is tried at
  // the control port's host.
  StatusOr<Endpoint> bulk = ParseEndpoint(p.bulk_address);
  const StatusOr<Endpoint> control = ParseEndpoint(address);
  if (bulk.ok() && control.ok() && IsWildcard(*bulk)) {
    bulk->host = control->host;
    p.bulk_address = ToString(*bulk);
  }
  const auto start = SteadyClock::now();
  p.bulk_reached = ConnectTcp(p.bulk_address, timeout).status();
  p.connect_seconds = SecondsSince(start);
  return p;
}

PeerFacts LookAtReceiver(const std::string& address, std::chrono::milliseconds timeout) {
  PeerFacts p{.kind = "receiver"};
  (void)LookAtPeer(DialReceiver, address, timeout, &p);
  return p;
}

// Reads the tool's certificates and authorities, which in a usual set-up are the machine's.
void LookAtCredentials(MachineFacts& f) {
  const auto credentials = ToolCredentials();
  f.credentials = credentials.status();
  if (!credentials.ok()) return;
  const auto material = (*credentials)->Now();
  const auto now = std::chrono::system_clock::now();
  for (const std::string& pem : {material->certificate, material->authorities}) {
    if (pem.empty()) continue;
    const auto dates = security::DatesOf(pem);
    if (!dates.ok()) continue;  // cannot fail: Load has parsed these files already
    for (const security::CertificateDates& one : *dates) {
      f.certificates.push_back({one.subject, DaysUntil(one.to), one.from <= now});
    }
  }
}

}  // namespace

std::optional<MountLine> ParseMountLine(const std::string& line) {
  std::istringstream in(line);
  MountLine mount;
  std::string number, parent, root, word;
  if (!(in >> number >> parent >> mount.device >> root >> mount.point)) return std::nullopt;
  while (in >> word && word != "-") {
  }
  std::string type, source, options;
  if (!(in >> type >> source >> options)) return std::nullopt;
  mount.huge_pages = "never";
  std::istringstream each(options);
  for (std::string option; std::getline(each, option, ',');) {
    if (option.starts_with("huge=")) mount.huge_pages = option.substr(std::strlen("huge="));
  }
  return mount;
}

uint64_t TunedLimit(const std::string& line) {
  std::istringstream in(line);
  uint64_t least = 0, usual = 0, most = 0;
  return in >> least >> usual >> most ? most : 0;
}

MachineFacts Look(const LookAt& at) {
  MachineFacts f;
  utsname name;
  if (::uname(&name) == 0) f.kernel = name.release;
  f.data_dir = at.data_dir;
  LookAtDirectory(f);
  f.memory_bytes = AvailableMemory().value_or(0);
  f.room_bytes = RoomFor(FirstThatIsThere(at.data_dir));
  if (!at.model.empty()) LookAtModel(at.model, f);
  LookAtMount(f);
  LookAtLogind(f);
  rlimit files;
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) f.descriptors = files.rlim_cur;
  // The maximum of the kernel's autotuning. Where that is too small, a daemon requests more, up to
  // net.core.rmem_max and wmem_max; those limits slow no link down.
  f.socket_buffer = std::min(TunedLimit(FirstLine("/proc/sys/net/ipv4/tcp_rmem")),
                             TunedLimit(FirstLine("/proc/sys/net/ipv4/tcp_wmem")));
  f.kernels = kernels::Best().name;
  kernels::GpuInfo gpu;
  f.gpu = kernels::FindGpu(0, &gpu);
  f.gpu_name = gpu.name;
  f.program_version = DELTAWIRE_VERSION;
  LookAtCredentials(f);
  if (!at.sender.empty()) f.peers.push_back(LookAtSender(at.sender, at.timeout));
  if (!at.receiver.empty()) f.peers.push_back(LookAtReceiver(at.receiver, at.timeout));
  return f;
}

}  // namespace deltawire::cli
