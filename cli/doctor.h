// The facts that `deltawire doctor` collects, and the findings that it derives from them. Judge is
// pure, so that each remedy can be tested; doctor_facts.cc reads the machine. Look creates a file
// in the data directory and connects to the named peers. A fact that cannot be read becomes a
// finding.
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

/// One daemon, as seen from this machine.
struct PeerFacts {
  std::string kind;     ///< "sender" or "receiver"
  std::string address;  ///< of its gRPC service
  Status reached;
  std::optional<Diagnosis> diagnosis;    ///< of a connection that failed
  std::optional<security::PeerTls> tls;  ///< of a peer that was reached by TLS
  double certificate_days = 0;           ///< remaining validity of the certificate in `tls`
  std::string program_version;
  bool exposed = false;      ///< it listens beyond loopback, unencrypted
  std::string security;      ///< its ports' guards; empty: none
  std::string bulk_address;  ///< a sender's; empty: not asked
  Status bulk_reached;
  double connect_seconds = 0;  ///< to the bulk port by TCP: about one round trip
  /// Seconds by which the daemon's clock is ahead of this machine's, plus or minus
  /// `clock_doubt_seconds`. nullopt if the daemon's release does not report its time.
  std::optional<double> clock_ahead_seconds;
  double clock_doubt_seconds = 0;  ///< half of the answer's time
};

/// A certificate that this machine presents, or an authority that it trusts.
struct CertificateFacts {
  std::string subject;
  double valid_days = 0;      ///< from now; negative: expired
  bool valid_already = true;  ///< its validity has begun
};

struct MachineFacts {
  std::string kernel;  ///< "6.1.0-18-amd64"
  std::filesystem::path data_dir;
  /// OK if a file can be created in the directory or else in its nearest existing parent.
  Status data_dir_usable;
  std::string data_dir_owner;  ///< the owner, if only the owner may read it
  bool data_dir_missing = false;
  bool in_memory = false;       ///< on tmpfs or ramfs
  uint64_t free_bytes = 0;      ///< in the data directory
  uint64_t memory_bytes = 0;    ///< available, of the machine
  uint64_t room_bytes = 0;      ///< in the data directory: the smaller of both where it is memory
  std::filesystem::path model;  ///< the checkpoint to fit; empty: none
  Status model_read;            ///< the error if its size is unknown
  uint64_t model_bytes = 0;
  std::string no_leases;        ///< why the data directory has no leases; empty: it has
  std::string mount_point;      ///< of the data directory; empty: unknown
  std::string huge_pages;       ///< its mount's option huge=, "never" if it has none
  std::string logind_removes;   ///< the user whose files logind removes; empty: none
  uint64_t descriptors = 0;     ///< soft limit of open files
  uint64_t socket_buffer = 0;   ///< the smaller limit of tcp_rmem and tcp_wmem; 0: unknown
  std::string kernels;          ///< the instruction set that the kernels use
  kernels::GpuStatus gpu;       ///< whether a sender here can diff on a GPU
  std::string gpu_name;         ///< if it can
  std::string program_version;  ///< of this tool
  std::vector<PeerFacts> peers;
  Status credentials;  ///< the error of the --credentials file
  std::vector<CertificateFacts> certificates;
};

struct Finding {
  enum class Level : uint8_t { kGood, kNote, kProblem };
  Level level = Level::kGood;
  std::string about;   ///< "leases", "sender 10.0.0.1:7700"
  std::string text;    ///< the fact
  std::string remedy;  ///< empty: nothing to do
};
/// Returns "ok", "note" or "PROBLEM".
std::string_view ToString(Finding::Level level);

std::vector<Finding> Judge(const MachineFacts& facts);

/// One line of /proc/PID/mountinfo.
struct MountLine {
  std::string device;      ///< "0:25", as in st_dev
  std::string point;       ///< where it is mounted
  std::string huge_pages;  ///< the option huge=, "never" if there is none
};
/// Returns nullopt if the line has another form. Spaces in `point` stay octal escapes.
std::optional<MountLine> ParseMountLine(const std::string& line);

/// Returns the maximum of the kernel's autotuning from a line of net.ipv4.tcp_rmem or tcp_wmem
/// (minimum, default, maximum), or 0 if the line has another form.
uint64_t TunedLimit(const std::string& line);

struct LookAt {
  std::filesystem::path data_dir;
  std::filesystem::path model;   ///< a checkpoint; empty: none
  std::string sender, receiver;  ///< addresses; empty: none
  std::chrono::milliseconds timeout{5000};
};
MachineFacts Look(const LookAt& at);

}  // namespace deltawire::cli
