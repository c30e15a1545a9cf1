// What `deltawire doctor` looks at, and what it makes of it. Judge is pure, so that each remedy can
// be tested; doctor_facts.cc asks the machine. Owner: the command. Threads: one. Cost: Look makes a
// file in the data directory, and connects to the peers that are named. Errors: what cannot be
// looked at is a finding.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/security/tls_probe.h"
#include "kernels/gpu.h"
#include "proto/client/diagnosis.h"

namespace deltawire::cli {

/// One daemon as this machine reaches it.
struct PeerFacts {
  std::string kind;     ///< "sender" or "receiver"
  std::string address;  ///< of its gRPC service
  Status reached;
  std::optional<Diagnosis> diagnosis;    ///< of a connection that failed
  std::optional<security::PeerTls> tls;  ///< of a peer that was reached by TLS
  double certificate_days = 0;           ///< for which the certificate in `tls` is still valid
  std::string program_version;
  bool exposed = false;      ///< it listens beyond loopback, unencrypted
  std::string security;      ///< how its ports are guarded; empty: by nothing
  std::string bulk_address;  ///< a sender's; empty: not asked
  Status bulk_reached;
  double connect_seconds = 0;  ///< of a TCP connection to the bulk port: about one round trip
  /// How many seconds the daemon's clock is ahead of this machine's, give or take
  /// `clock_doubt_seconds`; nullopt if the daemon is of a release that does not report its time.
  std::optional<double> clock_ahead_seconds;
  double clock_doubt_seconds = 0;  ///< half of the time that the answer took
};

/// One certificate that this machine shows, or believes others by.
struct CertificateFacts {
  std::string subject;
  double valid_days = 0;      ///< from now; negative: it has ended
  bool valid_already = true;  ///< it has begun
};

struct MachineFacts {
  std::string kernel;  ///< "6.1.0-18-amd64"
  std::filesystem::path data_dir;
  /// A file can be made in it, or where it is missing in the directory that it would be made in.
  Status data_dir_usable;
  std::string data_dir_owner;  ///< whose it is, if that is why it cannot be looked at
  bool data_dir_missing = false;
  bool in_memory = false;       ///< it is on tmpfs or ramfs
  uint64_t free_bytes = 0;      ///< in the data directory
  uint64_t memory_bytes = 0;    ///< available, of the machine
  uint64_t room_bytes = 0;      ///< in the data directory: the smaller of both where it is memory
  std::filesystem::path model;  ///< the checkpoint that is asked about; empty: none
  Status model_read;            ///< whether its size could be told
  uint64_t model_bytes = 0;
  std::string no_leases;        ///< why the data directory has no leases; empty: it has
  std::string mount_point;      ///< of the data directory; empty: not known
  std::string huge_pages;       ///< its mount's option huge=, "never" if it has none
  std::string logind_removes;   ///< the user whose files go at the last logout; empty: they stay
  uint64_t descriptors = 0;     ///< soft limit of open files
  uint64_t socket_buffer = 0;   ///< the smaller limit of tcp_rmem and tcp_wmem; 0: not known
  std::string kernels;          ///< the instruction set that the kernels use
  kernels::GpuStatus gpu;       ///< whether a sender here can diff on a GPU
  std::string gpu_name;         ///< if it can
  std::string program_version;  ///< of this tool
  std::vector<PeerFacts> peers;
  Status credentials;  ///< whether the file of --credentials can be used
  std::vector<CertificateFacts> certificates;
};

struct Finding {
  enum class Level : uint8_t { kGood, kNote, kProblem };
  Level level = Level::kGood;
  std::string about;   ///< "leases", "sender 10.0.0.1:7700"
  std::string text;    ///< what was found
  std::string remedy;  ///< empty if good
};
/// "ok", "note", "PROBLEM"
std::string_view ToString(Finding::Level level);

std::vector<Finding> Judge(const MachineFacts& facts);

/// One line of /proc/PID/mountinfo.
struct MountLine {
  std::string device;      ///< "0:25", as in st_dev
  std::string point;       ///< where it is mounted
  std::string huge_pages;  ///< the option huge=, "never" if there is none
};
/// nullopt: it is not such a line. Spaces in `point` stay octal escapes.
std::optional<MountLine> ParseMountLine(const std::string& line);

/// The limit of the kernel's own tuning, from a line of net.ipv4.tcp_rmem or tcp_wmem: least,
/// default, most. 0: it is not such a line.
uint64_t TunedLimit(const std::string& line);

struct LookAt {
  std::filesystem::path data_dir;
  std::filesystem::path model;   ///< a checkpoint; empty: none
  std::string sender, receiver;  ///< addresses; empty: none
  std::chrono::milliseconds timeout{5000};
};
MachineFacts Look(const LookAt& at);

}  // namespace deltawire::cli
