#include "common/config/options.h"

#include <sys/un.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "common/base/model_name.h"
#include "common/base/receiver_id.h"
#include "common/config/command_line.h"
#include "common/config/option_kinds.h"
#include "common/config/options_parts.h"

namespace deltawire {
namespace {

constexpr uint32_t kMaxStreams = 64;
constexpr uint32_t kMaxThreads = 1024;
constexpr size_t kMaxSenders = 1024;
constexpr size_t kMaxSite = 128;  // kMaxSiteName of common/base/assignment.h
constexpr uint32_t kMaxFanOut = 1024;
constexpr const char* kBulkListen = "--bulk-listen";
constexpr size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;

void AddCodec(CLI::App& app, std::optional<kernels::Codec>* target) {
  std::vector<std::string> codecs(kernels::kFormNames + 1, std::end(kernels::kFormNames));
  const std::string help =
      fmt::format("Codec of deltas on the way: {}; or auto, the one that is committed soonest",
                  fmt::join(codecs, ", "));
  const auto set = [target](const std::string& text) {
    target->reset();
    for (size_t form = 1; form < kernels::kForms; ++form) {
      if (text == kernels::kFormNames[form]) *target = static_cast<kernels::Codec>(form);
    }
  };
  codecs.emplace_back("auto");
  app.add_option_function<std::string>("--codec", set, help)
      ->check(CLI::IsMember(codecs))
      ->option_text(Shown("NAME", *target ? kernels::NameOf(**target) : "auto"));
}

constexpr Word<GpuUse> kGpuUses[] = {
    {"off", GpuUse::kOff}, {"auto", GpuUse::kAuto}, {"host-staged", GpuUse::kHostStaged}};
constexpr Word<Early> kEarly[] = {
    {"off", Early::kOff}, {"diff", Early::kDiff}, {"send", Early::kSend}};
constexpr Word<OnBusyReader> kOnBusyReader[] = {{"wait", OnBusyReader::kWait},
                                                {"copy", OnBusyReader::kCopy},
                                                {"unsafe-overwrite", OnBusyReader::kOverwrite}};

void AddReaders(CLI::App& app, ReceiverOptions& o) {
  const auto set_buffers = [&o](const std::string& text) {
    o.buffers = text == "auto" ? 0 : text == "1" ? 1 : 2;
  };
  app.add_option_function<std::string>(
         "--buffers", set_buffers,
         "Files of the weights: 1 is updated in place when nobody reads it, 2 take turns and cost "
         "twice the memory; auto: 2 where there is room")
      ->check(CLI::IsMember({"auto", "1", "2"}))
      ->option_text(Shown("N", "auto"));
  AddWord(app, "--on-busy-reader", "WHAT",
          "With one file, what an update does about a process that has it open: wait for it; wait "
          "10 s, then copy, and leave the old file to it; or unsafe-overwrite: change the bytes "
          "under it, so that it may see two versions mixed",
          kOnBusyReader, &o.on_busy_reader);
}

void AddScrub(CLI::App& app, uint64_t* target) {
  AddSize(app, "--scrub-bytes-per-s",
          "When idle, compare so much of each model's memory with its digests a second; 0: off",
          target);
}

Status CheckDataDir(std::string& text) {
  return text.empty() ? Status(StatusCode::kInvalidArgument, "is empty") : Status();
}

Status CheckMetrics(std::string& text) {
  return text.empty() ? Status() : ParseEndpoint(text).status();
}

Status CheckHost(std::string& text) {
  if (text.empty() || ParseEndpoint(ToString({text, 1})).ok()) return {};
  return Errorf(StatusCode::kInvalidArgument, "\"{}\" is not a host name or address", text);
}

Status CheckSender(std::string& text) {
  DW_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(text));
  if (endpoint.port == 0) {
    return Errorf(StatusCode::kInvalidArgument, "\"{}\": port 0 cannot be dialled", text);
  }
  text = ToString(endpoint);
  return {};
}

/// Parses one address, or several with commas between.
Status AddSender(std::vector<std::string>* senders, const std::string& text) {
  std::vector<std::string> named;
  for (const std::string& sender : *senders) {
    for (std::string& address : Alternatives(sender)) named.push_back(std::move(address));
  }
  std::string checked;
  for (std::string& address : Alternatives(text)) {
    DW_RETURN_IF_ERROR(CheckSender(address));
    if (std::find(named.begin(), named.end(), address) != named.end()) {
      return Errorf(StatusCode::kInvalidArgument, "{} is named twice", address);
    }
    checked += (checked.empty() ? "" : ",") + address;
    named.push_back(std::move(address));
  }
  if (senders->size() == kMaxSenders) {
    return Errorf(StatusCode::kInvalidArgument, "more than {} senders", kMaxSenders);
  }
  senders->push_back(std::move(checked));
  return {};
}

Status CheckReceiverId(std::string& text) {
  const auto visible = [](char c) { return c > ' ' && c <= '~'; };
  if (text.size() <= kMaxReceiverId && std::all_of(text.begin(), text.end(), visible)) return {};
  return Errorf(StatusCode::kInvalidArgument,
                "\"{}\" is not 1 to {} visible ASCII characters without spaces", text,
                kMaxReceiverId);
}

Status CheckSiteName(std::string& text) {
  const auto visible = [](char c) { return c > ' ' && c <= '~'; };
  if (text.size() <= kMaxSite && std::all_of(text.begin(), text.end(), visible)) return {};
  return Errorf(StatusCode::kInvalidArgument,
                "\"{}\" is not 1 to {} visible ASCII characters without spaces", text, kMaxSite);
}

/// Checks that a receiver with a site has one sender, which assigns its upstream, and that other
/// receivers can dial it if it serves.
Status CheckSite(const ReceiverOptions& o) {
  if (o.site.empty()) return {};
  if (o.senders.size() > 1 || Alternatives(o.senders.front()).size() > 1) {
    return Errorf(StatusCode::kInvalidArgument,
                  "--site: the sender says whom this receiver follows, so --sender names that one "
                  "address alone (here: {})",
                  fmt::join(o.senders, " "));
  }
  if (o.bulk && (o.control.port == 0 || (IsWildcard(o.control) && o.advertise_host.empty()))) {
    return Errorf(
        StatusCode::kInvalidArgument,
        "--site with --bulk-listen: others are told to dial --control-listen {}, which names no "
        "{}: give it one{}",
        ToString(o.control), o.control.port == 0 ? "port" : "machine",
        o.control.port == 0 ? "" : ", or --advertise-host");
  }
  return {};
}

/// Parses "NAME[=DIR][ start-from=DIR]".
Status AddModel(std::vector<ReceiverModelOptions>* models, std::string text) {
  constexpr std::string_view kStartFrom = " start-from=";
  ReceiverModelOptions model;
  if (const size_t at = text.find(kStartFrom); at != std::string::npos) {
    model.start_from = text.substr(at + kStartFrom.size());
    if (model.start_from.empty()) {
      return Errorf(StatusCode::kInvalidArgument,
                    "\"{}\" names no directory after start-from=", text);
    }
    text.resize(at);
  }
  const size_t equals = text.find('=');
  model.name = text.substr(0, equals);
  DW_RETURN_IF_ERROR(CheckModelName(model.name));
  if (equals != std::string::npos) model.directory = text.substr(equals + 1);
  if (equals + 1 == text.size()) {
    return Errorf(StatusCode::kInvalidArgument, "\"{}\" names no directory after '='", text);
  }
  const auto same = [&](const ReceiverModelOptions& other) { return other.name == model.name; };
  if (std::any_of(models->begin(), models->end(), same)) {
    return Errorf(StatusCode::kInvalidArgument, "model {} is named twice", model.name);
  }
  const auto place = [](const std::string& directory) {
    return std::filesystem::path(directory + "/").lexically_normal();
  };
  for (const ReceiverModelOptions& other : *models) {
    if (model.directory.empty() || place(other.directory) != place(model.directory)) continue;
    return Errorf(StatusCode::kInvalidArgument,
                  "models {} and {} would have one directory, {}; give each its own", other.name,
                  model.name, model.directory);
  }
  models->push_back(std::move(model));
  return {};
}

/// Rejects an address that other machines can reach, unless `allowed`.
Status CheckExposure(std::string_view option, const Endpoint& endpoint, bool allowed) {
  if (allowed || IsLoopback(endpoint)) return {};
  return Errorf(StatusCode::kInvalidArgument,
                "{}: {} can be reached from other machines, and without --credentials and "
                "--principals deltawire neither encrypts nor authenticates: whoever reaches it can "
                "read the weights and direct the daemon. `deltawire certs` makes both files; where "
                "the network is trusted, --insecure-plaintext goes without (in the file: "
                "insecure-plaintext = true)",
                option, ToString(endpoint));
}

/// The same for metrics, which are plaintext whatever the credentials are.
Status CheckMetricsExposure(const Endpoint& endpoint, bool allowed) {
  if (allowed || IsLoopback(endpoint)) return {};
  return Errorf(
      StatusCode::kInvalidArgument,
      "--metrics-listen: {} can be reached from other machines, and metrics go out in "
      "plaintext to anybody who asks (figures, names, last failures, no weights): listen on "
      "127.0.0.1, or allow it by --insecure-metrics",
      ToString(endpoint));
}

// The options of both daemons, declared once so that they have the same words and limits.

void AddDataDir(CLI::App& app, std::string* target) {
  AddText(app, "--data-dir", "DIR", "Where models live, one directory each; best on tmpfs", target,
          CheckDataDir);
}

void AddFileGroup(CLI::App& app, std::string* target) {
  app.add_option("--file-group", *target,
                 "Group that may read the models' directories and files; empty: only their owner")
      ->option_text("GROUP");
}

Status CheckCongestionControl(std::string& text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  constexpr size_t kMostName = 15;  // the kernel's TCP_CA_NAME_MAX without its NUL
  if (!text.empty() && text.size() <= kMostName && std::all_of(text.begin(), text.end(), plain)) {
    return {};
  }
  return Errorf(StatusCode::kInvalidArgument,
                "\"{}\" is not auto, system or the name of a congestion control (those that there "
                "are: sysctl net.ipv4.tcp_available_congestion_control)",
                text);
}

template <typename Options>
void AddStreamLimits(CLI::App& app, Options& o) {
  AddText(
      app, "--congestion-control", "NAME",
      "Of bulk streams: auto (bbr from a round trip of 5 ms on, if the kernel allows it), system "
      "(what the kernel gives) or a name",
      &o.congestion_control, CheckCongestionControl);
  AddMillis(app, "--stream-timeout-ms", "A stream without progress for so long is closed", 1000,
            &o.stream_timeout);
  app.add_option("--credentials", o.credentials,
                 "TOML file of this daemon's certificate, key, token and authorities: TLS")
      ->option_text("FILE");
  app.add_option("--principals", o.principals, "TOML file of who may do what here")
      ->option_text("FILE");
  app.add_flag("--insecure-plaintext", o.insecure_plaintext,
               "Allow listening beyond loopback, unencrypted and unauthenticated");
  app.add_flag("--insecure-metrics", o.insecure_metrics,
               "Allow --metrics-listen beyond loopback: figures, names and failures, in plaintext");
  app.add_flag("--allow-code-files", o.allow_code_files,
               "Let side files travel that engines may execute (*.py)");
}

template <typename Options>
void AddProcess(CLI::App& app, Options& o) {
  app.option_defaults()->group("Process");
  AddNumber(app, "--threads", "CPU workers; 0: one per core", 0, kMaxThreads, &o.threads);
  AddText(app, "--metrics-listen", "HOST:PORT",
          "Serve Prometheus metrics (/metrics) and a status page (/) here; empty: off", &o.metrics,
          CheckMetrics);
  app.add_option("--log-level", o.log_level, "trace, debug, info, warn, error or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->option_text(Shown("LEVEL", o.log_level));
}

void AddAdvertiseHost(CLI::App& app, std::string* target) {
  AddText(app, "--advertise-host", "HOST",
          "Host that receivers dial for weights; empty: the one they dialled for control", target,
          CheckHost);
}

void Declare(CLI::App& app, SenderOptions& o) {
  app.option_defaults()->group("Files");
  AddDataDir(app, &o.data_dir);
  AddFileGroup(app, &o.file_group);
  app.option_defaults()->group("Network");
  AddListen(app, "--control-listen", "gRPC for orchestrators and receivers", &o.control);
  AddListen(app, kBulkListen, "Raw TCP for weights", &o.bulk)
      ->option_text(Shown("HOST:PORT", fmt::format("CONTROL-HOST:{}", o.bulk.port)));
  AddAdvertiseHost(app, &o.advertise_host);
  AddStreamLimits(app, o);
  AddRateLimits(app, &o.rate_limits);
  app.option_defaults()->group("Publishing");
  AddSize(app, "--delta-log", "Memory for each model's encoded deltas", &o.delta_log_bytes);
  AddCodec(app, &o.codec);
  AddScrub(app, &o.scrub_bytes_per_s);
  AddMillis(app, "--offload-timeout-ms",
            "An offload whose ranks are not all ready after so long is abandoned; 0: never", 0,
            &o.offload_timeout);
  AddWord(app, "--early", "WHAT",
          "While the trainer still writes: diff what it marks written (diff), and send it to "
          "receivers, who commit at the publish (send; not with --codec tight or dense)",
          kEarly, &o.early);
  AddWord(app, "--gpu", "USE",
          "Diff on a GPU, which holds the published half as well if that fits (auto), or to which "
          "both halves travel (host-staged)",
          kGpuUses, &o.gpu);
  app.option_defaults()->group("Groups");
  AddGroups(app, o);
  app.option_defaults()->group("Sites");
  AddNumber(app, "--fan-out",
            "Assign upstreams to receivers that report a --site: one of each site pulls from here, "
            "the others follow it in a tree, at most so many on one; 0: assign none",
            0, kMaxFanOut, &o.fan_out);
  AddProcess(app, o);
}

void Declare(CLI::App& app, ReceiverOptions& o) {
  app.option_defaults()->group("Models");
  AddEach(app, "--model", "NAME[=DIR][ start-from=DIR] ...",
          "Keep this model, in DIR or DATA-DIR/NAME; at least one. start-from: a model directory, "
          "such as the checkpoint that training begins with, of which a new model takes its first "
          "bytes; the sender is asked for what differs",
          [&o](const std::string& text) { return AddModel(&o.models, text); })
      ->required();
  AddDataDir(app, &o.data_dir);
  AddFileGroup(app, &o.file_group);
  AddSwitch(app, "follow", "Pull every new version; off: only when told to sync", &o.follow);
  app.option_defaults()->group("Network");
  AddEach(
      app, "--sender", Shown("HOST:PORT[,HOST:PORT...] ...", o.senders.front()),
      "The sender's control address, or a relay's, or several with commas between in order of "
      "preference; again for each further agent of a trainer whose nodes each publish a part of "
      "the model",
      [&o, is_default = true](const std::string& text) mutable {
        if (std::exchange(is_default, false)) o.senders.clear();
        return AddSender(&o.senders, text);
      });
  AddText(app, "--receiver-id", "ID", "Name told to the sender; empty: HOSTNAME:CONTROL-PORT",
          &o.receiver_id, CheckReceiverId);
  AddText(
      app, "--site", "NAME",
      "Let the sender assign an upstream of this site (--fan-out there); empty: follow --sender",
      &o.site, CheckSiteName);
  AddListen(app, "--control-listen", "gRPC for orchestrators", &o.control);
  AddNumber(app, "--streams",
            "TCP streams per pull, 1 to 64; 0: 4 to 32, by the link's measured round trip and rate",
            0, kMaxStreams, &o.streams);
  AddStreamLimits(app, o);
  app.option_defaults()->group("Serving other receivers");
  AddListen(app, kBulkListen,
            "Be a relay: serve what is committed here, by raw TCP at this address, to receivers "
            "whose --sender is this one's --control-listen; empty: serve nobody",
            &o.bulk);
  AddAdvertiseHost(app, &o.advertise_host);
  AddSize(app, "--delta-log", "Memory for each model's deltas to be served", &o.delta_log_bytes);
  AddRateLimits(app, &o.rate_limits);
  app.option_defaults()->group("Applying");
  AddSize(app, "--staging", "Hold a delta up to this size and check it whole before it is applied",
          &o.staging_bytes);
  AddReaders(app, o);
  AddSize(app, "--delta-files",
          "Keep each model's last committed deltas beside its weights, for engines; 0: none",
          &o.delta_file_bytes);
  AddScrub(app, &o.scrub_bytes_per_s);
  app.option_defaults()->group("Engines");
  AddEngines(app, o);
  AddProcess(app, o);
}

template <typename Options>
bool MayBeReached(const Options& o) {
  return o.insecure_plaintext || (!o.credentials.empty() && !o.principals.empty());
}

template <typename Options>
Status CheckCommon(const Options& o) {
  DW_RETURN_IF_ERROR(CheckExposure("--control-listen", o.control, MayBeReached(o)));
  if (o.metrics.empty()) return {};
  DW_ASSIGN_OR_RETURN(const Endpoint metrics, ParseEndpoint(o.metrics));
  return CheckMetricsExposure(metrics, o.insecure_metrics || o.insecure_plaintext);
}

/// Rejects a bulk port that is not at the host where receivers dial it. Compares addresses only,
/// since host names are not looked up.
Status CheckBulkHost(const Endpoint& control, const Endpoint& bulk,
                     const std::string& advertise_host) {
  const std::string& dialled = control.host;
  // Receivers of other machines dial a wildcard control port, but can never reach a bulk port at
  // loopback.
  const bool everywhere = (IsWildcard(control) && !IsLoopback(bulk)) || bulk.host == "::" ||
                          (bulk.host == "0.0.0.0" && dialled.find(':') == std::string::npos);
  const bool comparable = IsAddress(control) && IsAddress(bulk);
  if (!advertise_host.empty() || everywhere || !comparable || bulk.host == dialled) return {};
  return Errorf(StatusCode::kInvalidArgument,
                "{}: receivers fetch weights from the host of --control-listen ({}), and {} is "
                "another one; give both options one host, or name the bulk host by "
                "--advertise-host",
                kBulkListen, ToString(control), ToString(bulk));
}

Status Check(const ReceiverOptions& o) {
  DW_RETURN_IF_ERROR(CheckCommon(o));
  if (o.bulk) {
    DW_RETURN_IF_ERROR(CheckExposure(kBulkListen, *o.bulk, MayBeReached(o)));
    DW_RETURN_IF_ERROR(CheckBulkHost(o.control, *o.bulk, o.advertise_host));
  }
  DW_RETURN_IF_ERROR(CheckSite(o));
  return CheckEngines(o);
}

Status Check(const SenderOptions& o) {
  DW_RETURN_IF_ERROR(CheckCommon(o));
  DW_RETURN_IF_ERROR(CheckExposure(kBulkListen, o.bulk, MayBeReached(o)));
  DW_RETURN_IF_ERROR(CheckBulkHost(o.control, o.bulk, o.advertise_host));
  DW_RETURN_IF_ERROR(CheckGroups(o.groups));
  const std::string socket = TrainerSocket(o);
  if (socket.size() <= kMaxSocketPath) return {};
  return Errorf(StatusCode::kInvalidArgument,
                "--data-dir: the trainer socket {} has {} bytes, and the path of a Unix socket at "
                "most {}; name a shorter directory",
                socket, socket.size(), kMaxSocketPath);
}

template <typename Options>
Parsed<Options> Parse(const char* program, const char* description, int argc,
                      const char* const* argv) {
  CLI::App app(description, program);
  AddGeneralOptions(app);
  Options options;
  Declare(app, options);
  CommandLineOutcome outcome = ParseCommandLine(app, argc, argv, [&app, &options] {
    if constexpr (std::is_same_v<Options, SenderOptions>) {
      if (app.get_option(kBulkListen)->empty()) options.bulk.host = options.control.host;
    }
    return Check(options);
  });
  return {outcome.run, std::move(options), std::move(outcome.text), outcome.exit_code};
}

}  // namespace

std::string_view ToString(GpuUse use) { return NameOf(use, kGpuUses); }

std::string TrainerSocket(const SenderOptions& o) { return o.data_dir + "/trainer.sock"; }

std::vector<std::string> Alternatives(const std::string& sender) {
  std::vector<std::string> addresses(1);
  for (const char c : sender) {
    if (c == ',') {
      addresses.emplace_back();
    } else {
      addresses.back() += c;
    }
  }
  return addresses;
}

Parsed<SenderOptions> ParseSenderOptions(int argc, const char* const* argv) {
  return Parse<SenderOptions>("deltawire-sender",
                              "Publishes a trainer's model versions as deltas that receivers pull.",
                              argc, argv);
}

Parsed<ReceiverOptions> ParseReceiverOptions(int argc, const char* const* argv) {
  return Parse<ReceiverOptions>("deltawire-receiver",
                                "Keeps local copies of models up to date with a deltawire sender.",
                                argc, argv);
}

}  // namespace deltawire
