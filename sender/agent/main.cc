// deltawire-sender: the trainer-side daemon. Options: common/config/options.h.
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>

#include "common/base/log.h"
#include "common/base/trusted_place.h"
#include "common/config/options.h"
#include "common/daemon/lifetime.h"
#include "common/metrics/stage_histograms.h"
#include "common/net/io_threads.h"
#include "common/net/pull_server.h"
#include "common/net/tls.h"
#include "proto/control_server.h"
#include "proto/serving/pull_service.h"
#include "sender/agent/agent.h"
#include "sender/agent/halves/halves.h"
#include "sender/agent/probe.h"
#include "sender/agent/service.h"
#include "sender/agent/status_page.h"

namespace deltawire {
namespace {

/// For `systemctl status`. It takes the locks of every model.
std::string StatusLine(const sender::Agent& agent) {
  std::vector<std::string> models;
  for (const auto& model : agent.models().All()) {
    const auto state = model->published();
    models.push_back(
        fmt::format("{}: {}", model->name(),
                    state == nullptr ? "nothing published" : ToString(state->info.id())));
  }
  return models.empty() ? "no model is registered yet" : fmt::format("{}", fmt::join(models, ", "));
}

Status Run(const SenderOptions& options) {
  ThreadPool pool(options.threads);
  net::IoThreads io;
  const auto stages = std::make_shared<metrics::StageHistograms>("sender");
  sender::Agent agent(options, pool, {}, metrics::ObserverOf(stages));
  DW_RETURN_IF_ERROR(agent.RecoverModels());

  DW_ASSIGN_OR_RETURN(const auto access, Access::Load(options.credentials, options.principals));
  DW_RETURN_IF_ERROR(access->CheckExposure(
      !IsLoopback(options.control) || !IsLoopback(options.bulk), options.insecure_plaintext));
  net::PullServer::Options bulk_options{.stream_timeout = options.stream_timeout,
                                        .cut_grace = sender::Halves::CloseAfter(options.grace),
                                        .bytes_per_s = options.rate_limits.all,
                                        .sockets = {options.congestion_control}};
  if (access->credentials()->serves_tls()) {
    DW_ASSIGN_OR_RETURN(bulk_options.tls,
                        net::Tls::Create(access->credentials(), net::Tls::Side::kServer,
                                         access->requires_certificate()));
  }
  DW_ASSIGN_OR_RETURN(auto bulk, net::PullServer::Listen(io, options.bulk.host, options.bulk.port,
                                                         agent, bulk_options));
  sender::TrainerServiceImpl trainer_service(agent);
  sender::SenderServiceImpl sender_service(agent, access, bulk->port(), pool.size());
  PullServiceImpl pull_service(agent, access, bulk->port());

  const std::string socket = TrainerSocket(options);
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(socket).parent_path(), ignored);
  DW_RETURN_IF_ERROR(CheckTrustedPlace(std::filesystem::path(socket).parent_path()));
  DW_ASSIGN_OR_RETURN(auto trainer,
                      ControlServer::Start("unix:" + socket, {&trainer_service}, *access));
  DW_ASSIGN_OR_RETURN(
      auto control,
      ControlServer::Start(ToString(options.control), {&sender_service, &pull_service}, *access));
  const Endpoint control_at{options.control.host, static_cast<uint16_t>(control->port())};
  std::unique_ptr<metrics::Server> metrics_server;
  if (!options.metrics.empty()) {
    const sender::PortCounts ports{.bulk_connections = [&bulk] { return bulk->connections(); },
                                   .beyond_limits =
                                       [&bulk, &control, &access] {
                                         return bulk->refused() + control->refused() +
                                                access->calls_beyond_limits();
                                       },
                                   .calls_refused = [&access] { return access->calls_refused(); }};
    DW_ASSIGN_OR_RETURN(
        metrics_server,
        metrics::Server::Start(options.metrics, {sender::Probe(agent, ports), stages,
                                                 sender::StatusPage(agent, ToString(control_at))}));
  }
  LogInfo("control {}, bulk {}, trainers at {}, kernels {}", ToString(control_at),
          ToString(Endpoint{options.bulk.host, bulk->port()}), socket, kernels::Best().name);

  const char* signal =
      ServeUntilTermination([&] { return StatusLine(agent); }, [&] { access->Reload(); });
  LogInfo("{}: stopping", signal);
  metrics_server.reset();
  agent.Stop();
  bulk->Stop();
  trainer->Shutdown(std::chrono::milliseconds(300));
  control->Shutdown(std::chrono::milliseconds(300));
  io.Stop();
  return absl::OkStatus();
}

}  // namespace
}  // namespace deltawire

int main(int argc, char** argv) {
  using namespace deltawire;
  const auto parsed = ParseSenderOptions(argc, argv);
  if (!parsed.run) {
    std::fputs(parsed.text.c_str(), parsed.exit_code == 0 ? stdout : stderr);
    return parsed.exit_code;
  }
  BlockTerminationSignals();
  ExplainUncaughtExceptions();
  Status status = InitLogging("deltawire-sender", parsed.options.log_level);
  if (status.ok()) status = Run(parsed.options);
  if (!status.ok()) {
    LogError("{}", MessageOf(status));
    return EndLogging(1);
  }
  return EndLogging(0);
}
