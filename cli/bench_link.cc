// The bench-link command: measures the link between two machines. It reports how many streams fill
// the link and how long a transfer of the weights would take.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/link_meter.h"
#include "cli/output.h"
#include "common/base/human.h"
#include "common/config/endpoint.h"

namespace deltawire::cli {
namespace {

constexpr int kEchoes = 20;
constexpr uint64_t kGigabyte = 1'000'000'000;

struct BenchLinkOptions : Common {
  std::string peer, listen;
  std::vector<size_t> streams = {1, 2, 4, 8, 16};
  double seconds = 2;
  double keep_seconds = 600;
};

StatusOr<Exit> Answer(const BenchLinkOptions& o) {
  DW_ASSIGN_OR_RETURN(const Endpoint at, ParseEndpoint(o.listen));
  // Block the signals before the listener's threads start, so that only this thread receives them.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  DW_ASSIGN_OR_RETURN(const auto listener, LinkListener::Listen(o.listen, {}));
  std::printf("listening at %s for %s; on the other machine: deltawire bench-link HOST:%u\n",
              ToString(Endpoint{at.host, listener->port()}).c_str(),
              HumanSeconds(o.keep_seconds).c_str(), unsigned{listener->port()});
  std::fflush(stdout);
  const timespec wait{.tv_sec = static_cast<time_t>(o.keep_seconds), .tv_nsec = 0};
  sigtimedwait(&ends, nullptr, &wait);
  std::printf("sent %s\n", HumanBytes(listener->bytes_sent()).c_str());
  return Exit::kOk;
}

StatusOr<Exit> Measure(const BenchLinkOptions& o) {
  DW_ASSIGN_OR_RETURN(const double round_trip, MeasureRoundTrip(o.peer, kEchoes, o.timeout()));
  std::vector<LinkRate> rates;
  Table table(
      {{"STREAMS", Align::kRight}, {"RATE", Align::kRight}, {"OF THE BEST", Align::kRight}});
  for (const size_t streams : o.streams) {
    Progress progress(fmt::format("{} streams", streams));
    DW_ASSIGN_OR_RETURN(const LinkRate rate, MeasureRate(o.peer, streams, o.seconds, o.timeout()));
    rates.push_back(rate);
  }
  const double best = std::ranges::max_element(rates, {}, &LinkRate::bytes_per_s)->bytes_per_s;
  if (best <= 0) {
    return Errorf(StatusCode::kUnavailable, "{}: no byte came within {}", o.peer,
                  HumanSeconds(o.seconds));
  }
  const LinkRate& chosen = FewestStreams(rates);
  const auto in_flight = static_cast<uint64_t>(best * round_trip);
  if (o.json) {
    Json all = Json::array();
    for (const LinkRate& r : rates) {
      all.push_back({{"streams", r.streams}, {"bytes_per_second", r.bytes_per_s}});
    }
    PrintJson({{"peer", o.peer},
               {"round_trip_seconds", round_trip},
               {"rates", all},
               {"streams", chosen.streams},
               {"bandwidth_delay_bytes", in_flight}});
    return Exit::kOk;
  }
  for (const LinkRate& r : rates) {
    table.Add({std::to_string(r.streams), HumanRate(r.bytes_per_s), Percent(r.bytes_per_s, best)});
  }
  std::printf("%s to here: round trip %.3g ms\n%s\n", o.peer.c_str(), 1e3 * round_trip,
              table.Text().c_str());
  std::printf(
      "%zu stream%s the link (--streams of deltawire-receiver); %s are on the way at a time\n",
      chosen.streams, chosen.streams == 1 ? " fills" : "s fill", HumanBytes(in_flight).c_str());
  std::printf("1 GB of weights would take %s\n",
              HumanSeconds(static_cast<double>(kGigabyte) / chosen.bytes_per_s).c_str());
  return Exit::kOk;
}

}  // namespace

void DeclareBenchLink(CLI::App& app, Run* run) {
  auto o = std::make_shared<BenchLinkOptions>();
  CLI::App* sub = app.add_subcommand(
      "bench-link", "Measure the TCP link from another machine to this one, in plaintext zeros");
  auto* const peer =
      sub->add_option("PEER", o->peer,
                      "HOST:PORT where `bench-link --listen` runs: the sender's side")
          ->type_name("");
  auto* const listen = sub->add_option("--listen", o->listen, "Answer measurements here, then end")
                           ->type_name("HOST:PORT");
  AddSeconds(*sub, "--keep", o->keep_seconds, "With --listen: end after this time", 1, 86400)
      ->needs(listen);
  sub->add_option("--streams", o->streams, "Numbers of streams to try")
      ->check(WholeNumber(1, 64))
      ->delimiter(',')
      ->excludes(listen)
      ->capture_default_str();
  AddSeconds(*sub, "--seconds", o->seconds, "Duration of each measurement", 0.1, 60)
      ->excludes(listen);
  o->AddTimeout(*sub, 5, "Wait this long for the other machine", Common::kLeastTimeout);
  o->AddJson(*sub);
  peer->excludes(listen);
  sub->callback([o, run, peer, listen] {
    if (peer->count() == 0 && listen->count() == 0) {
      throw CLI::ValidationError("name the PEER to measure, or --listen here");
    }
    *run = [o] { return o->listen.empty() ? Measure(*o) : Answer(*o); };
  });
}

}  // namespace deltawire::cli
