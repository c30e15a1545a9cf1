// deltawire-receiver: the inference-side daemon. Options: common/config/options.h.
#include <unistd.h>

#include <cstdio>

#include "common/base/log.h"
#include "common/config/options.h"
#include "common/daemon/lifetime.h"
#include "common/metrics/stage_histograms.h"
#include "common/net/io_threads.h"
#include "common/net/pull_server.h"
#include "common/net/tls.h"
#include "kernels/kernels.h"
#include "proto/control_server.h"
#include "proto/serving/pull_service.h"
#include "receiver/daemon.h"
#include "receiver/probe.h"
#include "receiver/service.h"
#include "receiver/status_page.h"

namespace deltawire {
namespace {

std::string DefaultId(const Endpoint& control) {
  char host[256] = "receiver";
  gethostname(host, sizeof host - 1);
  return fmt::format("{}:{}", host, control.port != 0 ? control.port : getpid());
}

/// Returns the line for `systemctl status`.
std::string StatusLine(const receiver::Daemon& daemon) {
  std::vector<std::string> models;
  for (const receiver::Replica* replica : daemon.Replicas()) {
    const receiver::ReplicaStatus status = replica->status();
    models.push_back(fmt::format("{}: {}, {}", replica->options().model, ToString(status.committed),
                                 ToString(status.phase)));
  }
  return fmt::format("{}", fmt::join(models, "; "));
}

/// The ports of a relay. Its streams have threads of their own, since a receiving thread waits for
/// readers of the weights.
struct Serving {
  net::IoThreads io;
  std::unique_ptr<net::PullServer> bulk;
  std::unique_ptr<PullServiceImpl> service;

  Status Start(const ReceiverOptions& options, receiver::Relay& relay,
               const std::shared_ptr<Access>& access) {
    net::PullServer::Options bulk_options{.stream_timeout = options.stream_timeout,
                                          .bytes_per_s = options.rate_limits.all,
                                          .sockets = {options.congestion_control}};
    if (access->credentials()->serves_tls()) {
      DW_ASSIGN_OR_RETURN(bulk_options.tls,
                          net::Tls::Create(access->credentials(), net::Tls::Side::kServer,
                                           access->requires_certificate()));
    }
    DW_ASSIGN_OR_RETURN(bulk, net::PullServer::Listen(io, options.bulk->host, options.bulk->port,
                                                      relay, bulk_options));
    service = std::make_unique<PullServiceImpl>(relay, access, bulk->port());
    LogInfo("serves other receivers, bulk {}",
            ToString(Endpoint{options.bulk->host, bulk->port()}));
    return absl::OkStatus();
  }
};

Status Run(const ReceiverOptions& options) {
  DW_ASSIGN_OR_RETURN(const auto access, Access::Load(options.credentials, options.principals));
  const bool exposed = !IsLoopback(options.control) || (options.bulk && !IsLoopback(*options.bulk));
  DW_RETURN_IF_ERROR(access->CheckExposure(exposed, options.insecure_plaintext));
  const auto stages = std::make_shared<metrics::StageHistograms>("receiver");
  receiver::Daemon daemon(
      options, options.receiver_id.empty() ? DefaultId(options.control) : options.receiver_id,
      access->credentials(), metrics::ObserverOf(stages));
  receiver::ReceiverServiceImpl service(daemon, access);
  DW_RETURN_IF_ERROR(daemon.Start());
  std::vector<grpc::Service*> services = {&service};
  std::unique_ptr<Serving> serving;
  if (daemon.relay() != nullptr) {
    serving = std::make_unique<Serving>();
    DW_RETURN_IF_ERROR(serving->Start(options, *daemon.relay(), access));
    services.push_back(serving->service.get());
  }
  DW_ASSIGN_OR_RETURN(auto control,
                      ControlServer::Start(ToString(options.control), services, *access));
  std::unique_ptr<metrics::Server> metrics_server;
  if (!options.metrics.empty()) {
    const auto beyond_limits = [&serving, &control, &access] {
      return control->refused() + access->calls_beyond_limits() +
             (serving == nullptr ? 0 : serving->bulk->refused());
    };
    const auto collect =
        receiver::Probe(daemon, {.beyond_limits = beyond_limits,
                                 .calls_refused = [&access] { return access->calls_refused(); }});
    DW_ASSIGN_OR_RETURN(
        metrics_server,
        metrics::Server::Start(options.metrics, {collect, stages, receiver::StatusPage(daemon)}));
  }
  const Endpoint control_at{options.control.host, static_cast<uint16_t>(control->port())};
  LogInfo("control {}, sender {}, id {}, kernels {}", ToString(control_at),
          fmt::join(options.senders, ", "), daemon.receiver_id(), kernels::Best().name);

  const char* signal = ServeUntilTermination([&] { return StatusLine(daemon); },
                                             [&] {
                                               access->Reload();
                                               daemon.ReloadEngineAccess();
                                             });
  LogInfo("{}: stopping", signal);
  metrics_server.reset();
  daemon.BeginStop();
  if (serving != nullptr) serving->bulk->Stop();
  control->Shutdown(std::chrono::milliseconds(300));
  daemon.Stop();
  return absl::OkStatus();
}

}  // namespace
}  // namespace deltawire

int main(int argc, char** argv) {
  using namespace deltawire;
  const auto parsed = ParseReceiverOptions(argc, argv);
  if (!parsed.run) {
    std::fputs(parsed.text.c_str(), parsed.exit_code == 0 ? stdout : stderr);
    return parsed.exit_code;
  }
  BlockTerminationSignals();
  ExplainUncaughtExceptions();
  Status status = InitLogging("deltawire-receiver", parsed.options.log_level);
  if (status.ok()) status = Run(parsed.options);
  if (!status.ok()) {
    LogError("{}", MessageOf(status));
    return EndLogging(1);
  }
  return EndLogging(0);
}
