#include "common/plan/timeline.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "common/base/token_bucket.h"
#include "common/delta/codec_choice.h"
#include "common/plan/course.h"
#include "common/wire/frame.h"
#include "common/wire/messages.h"

namespace deltawire::plan {
namespace {

// The kernel's first window of a connection, in bytes (RFC 6928).
constexpr double kFirstWindow = 10 * 1448;
constexpr double kGigabyte = 1e9;
// The delay after the commit at which a relay updates its other file, in seconds.
constexpr double kCatchUpDelay = 0.1;
// Steps of a pull's job that end when the first chunk can leave, and when the last one has been
// checked.
constexpr size_t kFirstChunkStep = 2, kLastChunkStep = 6;
// A diff compares two buffers, so it reads each byte of a version and the previous version's.
constexpr double kDiffTraffic = 2;

// Within one machine there is no network card, unless the file gives its speed.
double NetworkRate(const Node& node) {
  constexpr double kUsual = 12.5e9;
  if (node.network > 0) return node.network;
  return node.machine.empty() ? kUsual : Flows::kNever;
}

double Threads(const Node& node) { return node.threads == 0 ? node.cores : node.threads; }

struct NodeResources {
  size_t cores = 0;
  std::optional<size_t> out, in;  // of the network; none within one machine
  bool shared = false;            // all nodes of the kind are one machine
};

class Builder {
 public:
  Builder(const Fleet& fleet, const CutChunks& model, const std::vector<Hop>& hops,
          const std::vector<PullCost>& costs, bool full)
      : fleet_(fleet), model_(model), hops_(hops), costs_(costs), full_(full) {}

  Timeline Build() {
    for (const Machine& m : fleet_.machines) {
      machines_[m.name] = Cores("machine " + m.name, m.cores, 1);
    }
    trainer_ = Kind(fleet_.trainer, "the trainer", fleet_.trainer.nodes);
    trainer_memory_ = TrainerMemory();
    if (fleet_.trainer.rate > 0) {
      egress_ =
          Link("link of the trainer's site", 1, fleet_.trainer.rate, fleet_.trainer.price_per_gb);
    }
    DeclareLimit(-1, fleet_.trainer.rate_limit);
    for (size_t h = 0; h < hops_.size(); ++h) DeclareHop(h);
    DeclareJobs();
    course_.Run();
    return Report();
  }

 private:
  NodeResources Cores(const std::string& name, uint32_t cores, double count) {
    NodeResources r;
    r.cores = course_.flows.AddResource("cores of " + name, cores);
    nodes_.push_back({name, count, cores, r.cores});
    return r;
  }

  size_t TrainerMemory() {
    const Trainer& t = fleet_.trainer;
    const auto machine = std::ranges::find(fleet_.machines, t.machine, &Machine::name);
    const bool apart = machine == fleet_.machines.end();
    const double said = apart ? t.memory : machine->memory;
    const double by_cores =
        (apart ? t.cores : machine->cores) * fleet_.speeds.memory_bytes_per_s_core;
    return course_.flows.AddResource(
        "memory of " + (apart ? "the trainer" : "machine " + machine->name),
        said > 0 ? said : by_cores);
  }

  NodeResources Kind(const Node& node, const std::string& name, double count) {
    NodeResources r;
    if (node.machine.empty()) {
      r = Cores(name, node.cores, count);
    } else {
      r = machines_.at(node.machine);
      r.shared = true;
    }
    const double rate = NetworkRate(node) * fleet_.link_payload;
    if (rate == Flows::kNever) return r;
    r.out = course_.flows.AddResource("network of " + name + ", out", rate);
    r.in = course_.flows.AddResource("network of " + name + ", in", rate);
    return r;
  }

  size_t Link(const std::string& name, double count, double rate, double price_per_gb) {
    const double payload = rate * fleet_.link_payload;
    const size_t r = course_.flows.AddResource(name, payload);
    links_.push_back({name, count, payload, price_per_gb, r});
    return r;
  }

  void DeclareHop(size_t h) {
    const Hop& hop = hops_[h];
    kinds_.push_back(Kind(*hop.site, hop.name, hop.members));
    if (!hop.local && hop.site->rate > 0) {
      site_links_[h] = Link("link of " + hop.site->name, hop.site->count, hop.site->rate,
                            hop.site->price_per_gb);
    }
    DeclareLimit(static_cast<int>(h), hop.site->rate_limit);
    const double of_site = ServingOf(fleet_, hops_, hop).rate_limit_per_site;
    if (of_site <= 0) return;
    const size_t resource = course_.flows.AddResource(
        "rate-limit-per-site of " + ServerOf(hop) + " for " + hop.site->name, of_site);
    // A node has one bucket for all receivers of a site that it serves.
    const double sharers = std::min(hop.on_link, hop.on_server);
    site_limits_[h] = {resource, Beyond(of_site, sharers * LimitedBytes(h)), sharers};
  }

  /// Adds the limit of all bytes that one serving node sends: the trainer's (`server` -1) or a
  /// hop's.
  void DeclareLimit(int server, double limit) {
    if (limit <= 0) return;
    double bytes = 0;
    for (size_t h = 0; h < hops_.size(); ++h) {
      if (hops_[h].upstream == server) bytes += hops_[h].on_server * LimitedBytes(h);
    }
    const size_t resource = course_.flows.AddResource("rate-limit of " + NameOf(server), limit);
    limits_[server] = {resource, Beyond(limit, bytes)};
  }

  /// Returns the bytes of one pull at hop `h` that one serving node counts against its limits.
  double LimitedBytes(size_t h) const { return costs_[h].wire_bytes / Agents(h); }

  /// Returns the share of `bytes` that must wait for the limit: all but one burst.
  static double Beyond(double limit, double bytes) {
    const double burst = limit * std::chrono::duration<double>(TokenBucket::kBurst).count();
    return bytes > burst ? 1 - burst / bytes : 0;
  }

  void DeclareJobs() {
    Job publish{.at = "trainer"};
    publish.steps.push_back({Stage::kPublish, 0, PublishWork()});
    publish.steps.push_back({Stage::kPublish, fleet_.speeds.publish_seconds, {}});
    course_.jobs.push_back(std::move(publish));
    for (size_t h = 0; h < hops_.size(); ++h) {
      course_.jobs.push_back(PullJob(h));
      job_of_.push_back(course_.jobs.size() - 1);
      const int upstream = hops_[h].upstream;
      Job& from = course_.jobs[upstream < 0 ? 0 : job_of_[static_cast<size_t>(upstream)]];
      (PassedOn(hops_[h]) ? from.with : from.then).push_back(job_of_.back());
      if (full_ || hops_[h].site->buffers == 1) continue;
      // The other file follows, a little later if leaves pull.
      Job catch_up{.at = hops_[h].name, .background = true};
      if (Followed(h)) catch_up.steps.push_back({Stage::kApply, kCatchUpDelay, {}});
      catch_up.steps.push_back({Stage::kApply, 0, OwnWork(h, costs_[h].apply_seconds)});
      course_.jobs.push_back(std::move(catch_up));
      course_.jobs[job_of_.back()].then.push_back(course_.jobs.size() - 1);
    }
  }

  Work PublishWork() const {
    const Trainer& t = fleet_.trainer;
    const double part = 1.0 / t.nodes;
    const double left = part * (1 - t.early_diff);
    const double seconds = PublishSeconds(fleet_, model_, full_) * part;
    const double sharers = trainer_.shared ? t.nodes : 1;
    Work work;
    work.uses = {{trainer_.cores, seconds, Threads(t), sharers},
                 {trainer_memory_, (full_ ? 1 : kDiffTraffic) * model_.bytes * left, 1, sharers}};
    work.least_seconds = seconds / Threads(t);
    work.pace = "threads of the trainer";
    return work;
  }

  Work OwnWork(size_t h, double seconds) const {
    const NodeResources& own = kinds_[h];
    Work work;
    work.uses = {{own.cores, seconds, Threads(*hops_[h].site), own.shared ? hops_[h].members : 1}};
    work.least_seconds = seconds / Threads(*hops_[h].site);
    work.pace = "threads of " + hops_[h].name;
    return work;
  }

  bool Followed(size_t h) const {
    return std::ranges::any_of(hops_, [&](const Hop& hop) {
      return hop.upstream >= 0 && static_cast<size_t>(hop.upstream) == h;
    });
  }

  // A relay with followers applies after the last byte, so that passing chunks on has priority.
  bool AtOnce(size_t h) const {
    if (costs_[h].fast_bytes > hops_[h].site->staging) return true;
    return hops_[h].site->buffers == 2 && !Followed(h);
  }

  Job PullJob(size_t h) {
    const Hop& hop = hops_[h];
    const PullCost& cost = costs_[h];
    const bool passed_on = PassedOn(hop);
    const size_t upstream = passed_on ? job_of_[static_cast<size_t>(hop.upstream)] : 0;
    Job job{.at = hop.name};
    job.steps.push_back({Stage::kConnect, WordSeconds(h) + ConnectSeconds(h), {}});
    if (passed_on) {
      job.steps.push_back({.stage = Stage::kTransfer, .until = Moment{upstream, kFirstChunkStep}});
    } else {
      job.steps.push_back({Stage::kTransfer, 0, {}});
    }
    job.steps.push_back({Stage::kTransfer, cost.first_chunk_seconds, {}});
    job.steps.push_back({Stage::kTransfer, 0, TransferWork(h)});
    // TCP starts slowly, but the rate it has to reach is only known from the pull's share of all
    // resources, so this time is added at the end.
    job.steps.push_back(
        {Stage::kTransfer, 0, {}, [this, h](double seconds) { return SlowStart(h, seconds); }});
    if (passed_on) {  // the last chunk leaves the upstream when it has been checked there
      const double way = hop.round_trip() / 2;
      job.steps.push_back(
          {.stage = Stage::kTransfer, .until = Moment{upstream, kLastChunkStep, way}});
    } else {
      job.steps.push_back({Stage::kTransfer, 0, {}});
    }
    job.steps.push_back({Stage::kTransfer, cost.last_chunk_seconds, {}});
    if (!full_ && !AtOnce(h)) {
      job.steps.push_back({Stage::kApply, 0, OwnWork(h, cost.apply_seconds)});
    } else {
      job.steps.push_back({Stage::kApply, 0, {}});
    }
    const double commit = fleet_.speeds.commit_seconds +
                          static_cast<double>(model_.chunks) * fleet_.speeds.commit_chunk_seconds;
    job.steps.push_back({Stage::kCommit, commit, {}});
    return job;
  }

  // A relay announces a version when it has heard of it.
  double WordSeconds(size_t h) const {
    double seconds = 0;
    for (const Hop* hop = &hops_[h]; PassedOn(*hop);) {
      hop = &hops_[static_cast<size_t>(hop->upstream)];
      seconds += hop->round_trip() / 2;
    }
    return seconds;
  }

  // The event (half a trip), OpenPull, TCP's handshake, Hello and Have (half a trip), and the first
  // frame (half a trip).
  double ConnectSeconds(size_t h) const {
    const double trips = 0.5 + 1 + 1 + 0.5 + 0.5 + (fleet_.tls ? 1 : 0);
    const Hop& hop = hops_[h];
    const double have = static_cast<double>(wire::HaveBytes(
        model_.chunks, costs_[h].looks_back() ? ServingOf(fleet_, hops_, hop).history : 0));
    return trips * hop.round_trip() + fleet_.speeds.connect_seconds +
           have / LinkRate(h) * hop.on_link +
           static_cast<double>(model_.chunks) * fleet_.speeds.plan_chunk_seconds;
  }

  /// Returns the payload bytes/s of the narrowest link to hop `h`, without other traffic.
  double LinkRate(size_t h) const {
    const Hop& hop = hops_[h];
    double rate =
        std::min(NetworkRate(*hop.site), NetworkRate(NodeServing(fleet_, hops_, hop)) * Agents(h));
    if (!hop.local && hop.site->rate > 0) rate = std::min(rate, hop.site->rate);
    if (hop.upstream < 0 && fleet_.trainer.rate > 0) rate = std::min(rate, fleet_.trainer.rate);
    return rate * fleet_.link_payload;
  }

  std::string NameOf(int server) const {
    return server < 0 ? "the trainer" : hops_[static_cast<size_t>(server)].name;
  }
  std::string ServerOf(const Hop& hop) const { return NameOf(hop.upstream); }

  double Agents(size_t h) const { return hops_[h].upstream < 0 ? fleet_.trainer.nodes : 1; }
  double Streams(size_t h) const { return hops_[h].streams * Agents(h); }

  double SlowStart(size_t h, double seconds) const {
    if (seconds <= 0) return 0;
    const double bytes = costs_[h].wire_bytes / Agents(h);
    return SlowStartSeconds(bytes, bytes / seconds, hops_[h].streams, hops_[h].round_trip());
  }

  Work TransferWork(size_t h) const {
    const Hop& hop = hops_[h];
    const PullCost& cost = costs_[h];
    const NodeResources& from =
        hop.upstream < 0 ? trainer_ : kinds_[static_cast<size_t>(hop.upstream)];
    const NodeResources& to = kinds_[h];
    const double agents = Agents(h), streams = Streams(h);
    const double coding =
        cost.encode_seconds * EncodedAnew(fleet_, hops_, costs_, h) + cost.send_seconds;
    const double taking = cost.receive_seconds + (full_ || !AtOnce(h) ? 0 : cost.apply_seconds);
    const double coders = EncodeThreads(fleet_, hops_, hop);
    // The streams of all agents share the receiver's threads.
    const double takers =
        CodingThreads(hop.site->cores, hop.streams * static_cast<uint32_t>(agents));
    Work work;
    if (from.shared && to.shared && from.cores == to.cores) {
      work.uses.push_back({from.cores, coding + taking, coders + takers, hop.members});
    } else {
      // All agents of one machine together, or each agent's part on its own node.
      const double part = from.shared ? 1 : 1 / agents;
      work.uses.push_back(
          {from.cores, coding * part, coders, from.shared ? hop.members : hop.on_server});
      work.uses.push_back({to.cores, taking, takers, to.shared ? hop.members : 1});
    }
    const double bytes = cost.wire_bytes;
    if (from.out) work.uses.push_back({*from.out, bytes / agents, streams, hop.on_server});
    if (to.in) work.uses.push_back({*to.in, bytes, streams, 1});
    if (hop.upstream < 0 && egress_) work.uses.push_back({*egress_, bytes, streams, hop.members});
    if (const auto link = site_links_.find(h); link != site_links_.end()) {
      work.uses.push_back({link->second, bytes, streams, hop.on_link});
    }
    if (const auto limit = limits_.find(hop.upstream); limit != limits_.end()) {
      const auto& [resource, share, sharers] = limit->second;
      work.uses.push_back({resource, share * LimitedBytes(h), 1, hop.on_server});
    }
    if (const auto limit = site_limits_.find(h); limit != site_limits_.end()) {
      const auto& [resource, share, sharers] = limit->second;
      work.uses.push_back({resource, share * LimitedBytes(h), 1, sharers});
    }
    SetPace(h, {coding / agents / coders, taking / takers}, &work);
    return work;
  }

  struct Busy {
    double coding, taking;  // seconds of one agent's threads, and of the receiver's
  };
  void SetPace(size_t h, Busy busy, Work* work) const {
    const Hop& hop = hops_[h];
    const PullCost& cost = costs_[h];
    const std::string server = ServerOf(hop);
    const double limit = ServingOf(fleet_, hops_, hop).rate_limit_per_receiver;
    const std::pair<double, std::string> paces[] = {
        {busy.coding, "coding threads of " + server},
        {busy.taking, "decoding threads of " + hop.name},
        {cost.wire_bytes * hop.round_trip() / (Streams(h) * hop.site->window),
         "window and round trip to " + hop.name},
        {limit > 0 ? Beyond(limit, LimitedBytes(h)) * LimitedBytes(h) / limit : 0,
         "rate-limit-per-receiver of " + server}};
    for (const auto& [seconds, name] : paces) {
      if (seconds <= work->least_seconds) continue;
      work->least_seconds = seconds;
      work->pace = name;
    }
  }

  Timeline Report() const {
    Timeline t;
    t.publish = course_.jobs[0].times.at(0);
    for (size_t h = 0; h < hops_.size(); ++h) {
      const Job& job = course_.jobs[job_of_[h]];
      t.hops.push_back({job.times, job.held, job.ended});
      if (job.held) {
        StageTime& transfer =
            *std::ranges::find(t.hops[h].stages, Stage::kTransfer, &StageTime::stage);
        transfer.bound_by = "what comes to " + hops_[static_cast<size_t>(hops_[h].upstream)].name;
      }
      if (job.ended <= t.seconds) continue;
      t.seconds = job.ended;
      t.last = h;
    }
    for (const DeclaredLink& l : links_) {
      const double bytes = course_.flows.amount_used(l.resource);
      t.links.push_back({l.name, l.count, l.rate, bytes, course_.flows.busy_seconds(l.resource),
                         bytes * l.count / kGigabyte * l.price_per_gb});
    }
    for (const DeclaredNode& n : nodes_) {
      t.nodes.push_back({n.name, n.count, n.cores, course_.flows.amount_used(n.resource)});
    }
    return t;
  }

  struct DeclaredLink {
    std::string name;
    double count, rate, price_per_gb;
    size_t resource;
  };
  struct DeclaredLimit {
    size_t resource = 0;
    double share = 1;    // of the bytes that must wait for it
    double sharers = 1;  // number of pulls of one hop that share it
  };
  struct DeclaredNode {
    std::string name;
    double count;
    uint32_t cores;
    size_t resource;
  };
  const Fleet& fleet_;
  const CutChunks& model_;
  const std::vector<Hop>& hops_;
  const std::vector<PullCost>& costs_;
  const bool full_;
  Course course_;
  std::vector<DeclaredNode> nodes_;
  std::vector<DeclaredLink> links_;
  std::map<std::string, NodeResources> machines_;
  NodeResources trainer_;
  size_t trainer_memory_ = 0;
  std::optional<size_t> egress_;
  std::vector<NodeResources> kinds_;
  std::map<size_t, size_t> site_links_;
  std::map<int, DeclaredLimit> limits_;
  std::map<size_t, DeclaredLimit> site_limits_;
  std::vector<size_t> job_of_;
};

}  // namespace

double SlowStartSeconds(double bytes, double bytes_per_s, double streams, double round_trip) {
  double window = kFirstWindow * streams, left = bytes, seconds = 0;
  while (window < bytes_per_s * round_trip && left > window) {
    left -= window;
    seconds += round_trip - window / bytes_per_s;
    window *= 2;
  }
  // The last window is sent at the link's speed, and the next would wait for its acknowledgement.
  return seconds;
}

Timeline RunVersion(const Fleet& fleet, const CutChunks& model, const std::vector<Hop>& hops,
                    const std::vector<PullCost>& costs, bool full) {
  return Builder(fleet, model, hops, costs, full).Build();
}

}  // namespace deltawire::plan
