// All options of the two daemons, read once at start, by one thread, into const structs. Sources,
// strongest first: command line, TOML file (--config), defaults here. The environment is not read.
// The text of a parse error names the option, or the line of the file.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/config/endpoint.h"
#include "common/config/engine_options.h"
#include "common/config/group_options.h"
#include "kernels/format.h"

namespace deltawire {

/// The place where a sender diffs. kAuto uses a GPU if there is one, with the base in its memory if
/// it fits; kHostStaged never keeps the base there.
enum class GpuUse : uint8_t { kOff, kAuto, kHostStaged };
std::string_view ToString(GpuUse use);

/// The work that a sender does while the trainer still writes.
enum class Early : uint8_t {
  kOff,
  kDiff,  ///< diff tensors on the CPU as they are marked written
  kSend,  ///< send each chunk as soon as it is diffed, too
};

/// The most bytes a second that a daemon sends; 0: no limit.
struct RateLimits {
  uint64_t all = 0;           ///< to all receivers together
  uint64_t per_site = 0;      ///< to the receivers of each site together
  uint64_t per_receiver = 0;  ///< to each receiver of a model
  friend bool operator==(const RateLimits&, const RateLimits&) = default;
};

struct SenderOptions {
  std::string data_dir = "/dev/shm/deltawire";  ///< one directory per model below it
  std::string file_group;                       ///< group that may read models; empty: none
  Endpoint control{"127.0.0.1", 7700};          ///< gRPC for orchestrators and receivers
  Endpoint bulk{"127.0.0.1", 7701};             ///< raw TCP; by default the host of `control`
  std::string advertise_host;  ///< bulk host sent to receivers; empty: the host they dialed
  uint64_t delta_log_bytes = uint64_t{2} << 30;    ///< per model
  std::optional<kernels::Codec> codec;             ///< none: the one that commits soonest
  uint64_t scrub_bytes_per_s = uint64_t{8} << 20;  ///< of each published model, when idle; 0: off
  RateLimits rate_limits;
  std::chrono::milliseconds offload_timeout{600000};  ///< from the grant to the last rank; 0: none
  std::chrono::milliseconds stream_timeout{30000};    ///< closes a bulk stream without progress
  std::string congestion_control = "auto";            ///< for bulk streams; "system": the kernel's
  uint32_t threads = 0;                               ///< CPU workers; 0: one per core
  Early early = Early::kSend;
  GpuUse gpu = GpuUse::kOff;
  std::vector<GroupOptions> groups;                 ///< --group [MODEL:]NAME=ID[,ID...]
  bool group_commits = false;                       ///< every version is a round of each group
  std::chrono::milliseconds group_timeout{120000};  ///< for members to prepare a round
  bool group_skip_absent = false;                   ///< commit without long-absent members
  /// Largest number of receivers of a site that the sender assigns to one upstream; 0: assigns
  /// none.
  uint32_t fan_out = 0;
  std::string credentials;          ///< file of certificates, keys and token; empty: plaintext
  std::string principals;           ///< file of roles; empty: anyone who connects has all
  bool insecure_plaintext = false;  ///< allows listening beyond loopback without these two files
  bool insecure_metrics = false;    ///< allows plaintext metrics beyond loopback
  bool allow_code_files = false;    ///< publish side files that engines may execute
  std::string metrics;              ///< "host:port" for Prometheus; empty: off
  std::string log_level = "info";

  // Constants that no option sets. Tests set others.
  uint32_t history = 4;  ///< past deltas that `tight` may use, at most 8
  /// How long pulls may delay BeginOffload. After it they are cut, and the next pulls go on.
  std::chrono::milliseconds grace{250};
  bool huge_pages = true;  ///< where the mount offers them
  friend bool operator==(const SenderOptions&, const SenderOptions&) = default;
};

/// An update's response to a reader that keeps the only weight file open beyond the grace.
enum class OnBusyReader : uint8_t {
  kWait,
  kCopy,       ///< after 10 s the update goes to a fresh file
  kOverwrite,  ///< change bytes while readers have them open
};

struct ReceiverModelOptions {
  std::string name;
  std::string directory;        ///< empty: <data_dir>/<name>
  std::string start_from = {};  ///< a model directory with the initial bytes; empty: none
  friend bool operator==(const ReceiverModelOptions&, const ReceiverModelOptions&) = default;
};

struct ReceiverOptions {
  std::string data_dir = "/dev/shm/deltawire";
  std::string file_group;  ///< group that may read models; empty: none
  /// The sender's control address, or several with commas between, in order of preference
  /// (Alternatives). Several entries are the agents of one trainer, each with a part of the model.
  std::vector<std::string> senders = {"127.0.0.1:7700"};
  std::vector<ReceiverModelOptions> models;  ///< --model, at least one
  std::string receiver_id;                   ///< empty: <hostname>:<control port>
  std::string site;  ///< label; empty: the receiver chooses its upstream itself
  Endpoint control{"127.0.0.1", 7710};
  /// Raw TCP at which committed versions are served to other receivers; none: serves nobody.
  std::optional<Endpoint> bulk;
  std::string advertise_host;                    ///< as the sender's, with `bulk`
  uint64_t delta_log_bytes = uint64_t{2} << 30;  ///< per model, with `bulk`
  RateLimits rate_limits;                        ///< with `bulk`
  uint32_t streams = 0;  ///< TCP streams per pull, 1..64; 0: chosen for the link
  bool follow = true;    ///< pull new versions; false: only on `sync`
  uint64_t staging_bytes = uint64_t{128} << 20;  ///< a larger delta is applied as it arrives
  uint32_t buffers = 0;  ///< weight files, 1 or 2; 0: 2 if memory has room for both
  OnBusyReader on_busy_reader = OnBusyReader::kWait;
  uint64_t delta_file_bytes = uint64_t{256} << 20;  ///< per model, for engines; 0: none
  uint64_t scrub_bytes_per_s = uint64_t{8} << 20;   ///< of each model, when idle; 0: off
  std::vector<EngineOptions> engines;               ///< --engine [MODEL:]KIND=TARGET
  EngineFailure engine_failure = EngineFailure::kRetry;
  std::chrono::milliseconds engine_timeout{120000};  ///< for one request to an engine
  std::chrono::milliseconds stream_timeout{30000};
  std::string congestion_control = "auto";  ///< as the sender's
  uint32_t threads = 0;
  std::string credentials;
  std::string principals;
  bool insecure_plaintext = false;
  bool insecure_metrics = false;
  bool allow_code_files = false;
  std::string metrics;
  std::string log_level = "info";
  friend bool operator==(const ReceiverOptions&, const ReceiverOptions&) = default;
};

/// The result of reading a command line: run with `options`, or print `text` and exit with
/// `exit_code`. Code 0 is help or version, for stdout; code 2 is an error, for stderr.
template <typename Options>
struct Parsed {
  bool run = false;
  Options options;
  std::string text;
  int exit_code = 0;
};

/// Returns the path of the Unix socket for trainers.
std::string TrainerSocket(const SenderOptions& o);

/// Returns the addresses in one entry of ReceiverOptions::senders.
std::vector<std::string> Alternatives(const std::string& sender);

Parsed<SenderOptions> ParseSenderOptions(int argc, const char* const* argv);
Parsed<ReceiverOptions> ParseReceiverOptions(int argc, const char* const* argv);

}  // namespace deltawire
