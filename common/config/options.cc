#include "common/config/options.h"

#include <sys/un.h>

#include <algorithm>
#include <iterator>

#include "common/config/option_table.h"
#include "common/config/values.h"

namespace deltawire {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kMaxMillis = 24ull * 60 * 60 * 1000;
constexpr uint64_t kMaxStreams = 64;
constexpr uint64_t kMaxThreads = 1024;
constexpr size_t kMaxReceiverId = 128;
constexpr size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;
constexpr std::string_view kLogLevels[] = {"trace", "debug", "info", "warn", "error", "off"};

using Setter = OptionTable::Setter;

Setter Text(std::string* target) {
  return [target](const std::string& text) {
    *target = text;
    return Status();
  };
}

Setter NonEmpty(std::string* target) {
  return [target](const std::string& text) {
    if (text.empty()) return Status(StatusCode::kInvalidArgument, "is empty");
    *target = text;
    return Status();
  };
}

Setter Listen(Endpoint* target) {
  return [target](const std::string& text) -> Status {
    DW_ASSIGN_OR_RETURN(*target, ParseEndpoint(text));
    return {};
  };
}

Setter Size(uint64_t* target) {
  return [target](const std::string& text) -> Status {
    DW_ASSIGN_OR_RETURN(*target, ParseSize(text));
    return {};
  };
}

Setter Number(uint32_t* target, uint64_t min, uint64_t max) {
  return [=](const std::string& text) -> Status {
    DW_ASSIGN_OR_RETURN(const uint64_t value, ParseNumber(text, min, max));
    *target = static_cast<uint32_t>(value);
    return {};
  };
}

Setter Millis(milliseconds* target, uint64_t min) {
  return [=](const std::string& text) -> Status {
    DW_ASSIGN_OR_RETURN(const uint64_t value, ParseNumber(text, min, kMaxMillis));
    *target = milliseconds(value);
    return {};
  };
}

/// "" (off) or an address to listen at.
Setter OptionalListen(std::string* target) {
  return [target](const std::string& text) -> Status {
    if (!text.empty()) DW_RETURN_IF_ERROR(ParseEndpoint(text).status());
    *target = text;
    return {};
  };
}

Status SetLogLevel(std::string* target, const std::string& text) {
  if (std::find(std::begin(kLogLevels), std::end(kLogLevels), text) == std::end(kLogLevels)) {
    return Errorf(StatusCode::kInvalidArgument,
                  "\"{}\" is not trace, debug, info, warn, error or off", text);
  }
  *target = text;
  return {};
}

Status SetHost(std::string* target, const std::string& text) {
  if (!text.empty()) DW_RETURN_IF_ERROR(CheckHost(text));
  *target = text;
  return {};
}

Status SetSender(std::string* target, const std::string& text) {
  DW_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(text));
  if (endpoint.port == 0) {
    return Errorf(StatusCode::kInvalidArgument, "\"{}\": port 0 cannot be dialled", text);
  }
  *target = ToString(endpoint);
  return {};
}

Status SetReceiverId(std::string* target, const std::string& text) {
  const bool printable =
      std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (text.size() > kMaxReceiverId || !printable) {
    return Errorf(StatusCode::kInvalidArgument,
                  "\"{}\" is not 1 to {} visible ASCII characters without spaces", text,
                  kMaxReceiverId);
  }
  *target = text;
  return {};
}

Status AddModel(std::vector<ReceiverModelOptions>* models, const std::string& text) {
  ReceiverModelOptions model;
  const size_t equals = text.find('=');
  model.name = text.substr(0, equals);
  DW_RETURN_IF_ERROR(CheckModelName(model.name));
  if (equals != std::string::npos) {
    model.directory = text.substr(equals + 1);
    if (model.directory.empty()) {
      return Errorf(StatusCode::kInvalidArgument, "\"{}\" names no directory after '='", text);
    }
  }
  for (const ReceiverModelOptions& other : *models) {
    if (other.name == model.name) {
      return Errorf(StatusCode::kInvalidArgument, "model {} is named twice", model.name);
    }
  }
  models->push_back(std::move(model));
  return {};
}

/// Refuses an address beyond loopback unless that was asked for.
Status CheckExposure(const OptionTable& table, const std::string& name, const Endpoint& endpoint,
                     bool allowed) {
  if (allowed || IsLoopback(endpoint)) return {};
  return Errorf(StatusCode::kInvalidArgument,
                "{}: {} can be reached from other machines, and deltawire neither encrypts nor "
                "authenticates: whoever reaches it can read the weights and direct the daemon. "
                "Where the network is trusted, add --insecure-plaintext (in the file: "
                "insecure-plaintext = true); elsewhere listen on 127.0.0.1 behind a tunnel",
                table.Origin(name), ToString(endpoint));
}

Status CheckMetricsExposure(const OptionTable& table, const std::string& metrics, bool allowed) {
  if (metrics.empty()) return {};
  DW_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(metrics));
  return CheckExposure(table, "metrics-listen", endpoint, allowed);
}

std::string Show(milliseconds time) { return fmt::format("{}", time.count()); }

template <typename Options>
void DeclareProcess(OptionTable& table, Options& o) {
  table.Group("Process");
  table.Value("threads", "N", fmt::format("{}", o.threads), "CPU workers; 0: one per core",
              Number(&o.threads, 0, kMaxThreads));
  table.Switch("huge-pages", "Use huge pages where the mount offers them", &o.huge_pages);
  table.Value("metrics-listen", "HOST:PORT", o.metrics, "Serve Prometheus metrics here; empty: off",
              OptionalListen(&o.metrics));
  table.Value("log-level", "LEVEL", o.log_level, "trace, debug, info, warn, error or off",
              [&o](const std::string& text) { return SetLogLevel(&o.log_level, text); });
}

void DeclareSender(OptionTable& table, SenderOptions& o) {
  table.Group("Files");
  table.Value("data-dir", "DIR", o.data_dir, "Where models live, one directory each; best on tmpfs",
              NonEmpty(&o.data_dir));
  table.Value("trainer-socket", "PATH", "",
              "Unix socket for trainers; empty: DATA-DIR/trainer.sock", Text(&o.trainer_socket));
  table.Group("Network");
  table.Value("control-listen", "HOST:PORT", ToString(o.control),
              "gRPC for orchestrators and receivers", Listen(&o.control));
  table.Value("bulk-listen", "HOST:PORT", ToString(o.bulk), "Raw TCP for weights", Listen(&o.bulk));
  table.Value("advertise-host", "HOST", "",
              "Host that receivers dial for weights; empty: the one they dialled for control",
              [&o](const std::string& text) { return SetHost(&o.advertise_host, text); });
  table.Value("stream-timeout-ms", "MS", Show(o.stream_timeout),
              "A stream without progress for so long is closed", Millis(&o.stream_timeout, 1));
  table.Flag("insecure-plaintext",
             "Allow listening beyond loopback, unencrypted and unauthenticated",
             &o.insecure_plaintext);
  table.Group("Publishing");
  table.Value("delta-log", "SIZE", SizeText(o.delta_log_bytes),
              "Memory for each model's encoded deltas", Size(&o.delta_log_bytes));
  table.Value("grace-ms", "MS", Show(o.grace),
              "A pull may hold up the trainer's next version for so long", Millis(&o.grace, 0));
  table.Switch("eager-diff", "Diff tensors as the trainer marks them written", &o.eager_diff);
  DeclareProcess(table, o);
}

void DeclareReceiver(OptionTable& table, ReceiverOptions& o) {
  table.Group("Models");
  table.List(
      "model", "NAME[=DIR]", "Keep this model, in DIR or DATA-DIR/NAME; at least one",
      [&o] { o.models.clear(); },
      [&o](const std::string& text) { return AddModel(&o.models, text); });
  table.Value("data-dir", "DIR", o.data_dir, "Where models live, one directory each; best on tmpfs",
              NonEmpty(&o.data_dir));
  table.Switch("follow", "Pull every new version; off: only when told to sync", &o.follow);
  table.Group("Network");
  table.Value("sender", "HOST:PORT", o.sender, "The sender's control address",
              [&o](const std::string& text) { return SetSender(&o.sender, text); });
  table.Value("receiver-id", "ID", "", "Name told to the sender; empty: HOSTNAME:CONTROL-PORT",
              [&o](const std::string& text) { return SetReceiverId(&o.receiver_id, text); });
  table.Value("control-listen", "HOST:PORT", ToString(o.control), "gRPC for orchestrators",
              Listen(&o.control));
  table.Value("streams", "N", fmt::format("{}", o.streams), "TCP streams per pull, 1 to 64",
              Number(&o.streams, 1, kMaxStreams));
  table.Value("stream-timeout-ms", "MS", Show(o.stream_timeout),
              "A stream without progress for so long is closed", Millis(&o.stream_timeout, 1));
  table.Flag("insecure-plaintext",
             "Allow listening beyond loopback, unencrypted and unauthenticated",
             &o.insecure_plaintext);
  table.Group("Applying");
  table.Value("staging", "SIZE", SizeText(o.staging_bytes),
              "Hold a delta up to this size and check it whole before it is applied",
              Size(&o.staging_bytes));
  DeclareProcess(table, o);
}

Status CheckSender(const OptionTable& table, const SenderOptions& o) {
  const bool allowed = o.insecure_plaintext;
  DW_RETURN_IF_ERROR(CheckExposure(table, "control-listen", o.control, allowed));
  DW_RETURN_IF_ERROR(CheckExposure(table, "bulk-listen", o.bulk, allowed));
  DW_RETURN_IF_ERROR(CheckMetricsExposure(table, o.metrics, allowed));
  const bool own_socket = !o.trainer_socket.empty();
  const std::string socket = own_socket ? o.trainer_socket : o.data_dir + "/trainer.sock";
  if (socket.size() > kMaxSocketPath) {
    return Errorf(StatusCode::kInvalidArgument,
                  "{}: {} has {} bytes, and the path of a Unix socket at most {}; set a shorter "
                  "--trainer-socket",
                  table.Origin(own_socket ? "trainer-socket" : "data-dir"), socket, socket.size(),
                  kMaxSocketPath);
  }
  return {};
}

Status CheckReceiver(const OptionTable& table, const ReceiverOptions& o) {
  if (o.models.empty()) {
    return Errorf(StatusCode::kInvalidArgument,
                  "{}: no model is named; add --model NAME (in the file: model = [\"NAME\"])",
                  table.Origin("model"));
  }
  const bool allowed = o.insecure_plaintext;
  DW_RETURN_IF_ERROR(CheckExposure(table, "control-listen", o.control, allowed));
  return CheckMetricsExposure(table, o.metrics, allowed);
}

template <typename Options>
Parsed<Options> Run(OptionTable& table, Options& options, int argc, const char* const* argv,
                    Status (*check)(const OptionTable&, const Options&)) {
  OptionTable::Outcome outcome = table.Parse(argc, argv);
  if (outcome.run) {
    const Status status = check(table, options);
    if (!status.ok()) outcome = OptionTable::Failure(status);
  }
  return {outcome.run, std::move(options), std::move(outcome.text), outcome.exit_code};
}

}  // namespace

Parsed<SenderOptions> ParseSenderOptions(int argc, const char* const* argv) {
  OptionTable table("deltawire-sender",
                    "Publishes a trainer's model versions as deltas that receivers pull.");
  SenderOptions options;
  DeclareSender(table, options);
  return Run(table, options, argc, argv, CheckSender);
}

Parsed<ReceiverOptions> ParseReceiverOptions(int argc, const char* const* argv) {
  OptionTable table("deltawire-receiver",
                    "Keeps local copies of models up to date with a deltawire sender.");
  ReceiverOptions options;
  DeclareReceiver(table, options);
  return Run(table, options, argc, argv, CheckReceiver);
}

}  // namespace deltawire
