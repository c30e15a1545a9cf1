// The doctor command: checks this machine and the named daemons for anything that would prevent a
// sync, and names the remedy.
#include "cli/doctor.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/output.h"
#include "common/base/human.h"

namespace deltawire::cli {
namespace {

using Level = Finding::Level;

// The oldest kernel that has all calls of the daemons (pidfd_open).
constexpr int kOldestMajor = 5, kOldestMinor = 3;
// The systemd units allow 65,536. Fewer than this run out at some hundred receivers.
constexpr uint64_t kFewDescriptors = 4096;
// The buffer size that fills 1 Gbit/s over 130 ms.
constexpr uint64_t kSmallSocketBuffer = 16 << 20;
// A version's small files and its delta can use up less space than this.
constexpr uint64_t kFullBytes = 16 << 20;
// If two machines' clocks differ by more than this, their times cannot be compared.
constexpr double kClockSkewSeconds = 0.5;
constexpr const char* kRenew =
    "deltawire certs DIR NAME... with the authority's directory renews it";
// The time that an operator needs to renew a certificate without hurry.
constexpr double kSoonDays = 30;

Finding Kernel(const MachineFacts& f) {
  int major = 0, minor = 0;
  const bool known = std::sscanf(f.kernel.c_str(), "%d.%d", &major, &minor) == 2;
  if (known && std::pair(major, minor) < std::pair(kOldestMajor, kOldestMinor)) {
    return {Level::kProblem, "kernel", f.kernel,
            fmt::format("use Linux {}.{} or later", kOldestMajor, kOldestMinor)};
  }
  return {Level::kGood, "kernel", f.kernel, ""};
}

void DataDirectory(const MachineFacts& f, std::vector<Finding>& all) {
  const std::string about = "data directory";
  if (!f.data_dir_owner.empty()) {
    all.push_back(
        {Level::kNote, about, std::string(MessageOf(f.data_dir_usable)),
         fmt::format("run this as its owner: sudo -u {} deltawire doctor", f.data_dir_owner)});
    return;
  }
  if (!f.data_dir_usable.ok()) {
    all.push_back({Level::kProblem, about, std::string(MessageOf(f.data_dir_usable)),
                   "make it for the daemon's user, e.g. systemd-tmpfiles --create, or name "
                   "another with --data-dir"});
    return;
  }
  const std::string room = fmt::format("{}{}: {} free, {} of memory available", f.data_dir.native(),
                                       f.data_dir_missing ? " (a daemon will make it)" : "",
                                       HumanBytes(f.free_bytes), HumanBytes(f.memory_bytes));
  if (f.free_bytes < kFullBytes) {
    all.push_back({Level::kProblem, about, room + ": it is full",
                   "remove files there (du -x), or give a tmpfs more room: mount -o "
                   "remount,size=... " +
                       f.mount_point});
  } else if (!f.in_memory) {
    all.push_back({Level::kNote, about, room + "; not in memory",
                   "use a tmpfs such as /dev/shm, where engines load at memory speed"});
  } else if (f.free_bytes < f.memory_bytes / 2) {
    all.push_back({Level::kNote, about, room,
                   "a tmpfs holds half of the memory by default: remount it with size= where "
                   "models are larger"});
  } else {
    all.push_back({Level::kGood, about, room, ""});
  }
  if (f.no_leases.empty()) {
    all.push_back({Level::kGood, "leases", "readers of a file are known", ""});
  } else {
    all.push_back({Level::kNote, "leases", f.no_leases,
                   "sysctl fs.leases-enable=1, or a file system that has leases; without them each "
                   "version takes a fresh file"});
  }
}

void Model(const MachineFacts& f, std::vector<Finding>& all) {
  const std::string about = "model " + f.model.native();
  if (!f.model_read.ok()) {
    all.push_back({Level::kProblem, about, std::string(MessageOf(f.model_read)),
                   "name a directory with safetensors files, or one such file"});
    return;
  }
  if (f.model_bytes == 0) return;  // no model was named
  const std::string text = fmt::format(
      "{}; {} has room for {:.1f} of it", HumanBytes(f.model_bytes), f.data_dir.native(),
      static_cast<double>(f.room_bytes) / static_cast<double>(f.model_bytes));
  if (f.room_bytes >= 2 * f.model_bytes) {
    all.push_back({Level::kGood, about, text, ""});
  } else if (f.room_bytes >= f.model_bytes) {
    all.push_back({Level::kNote, about, text + ": enough for a receiver's single buffer",
                   "a sender keeps the model twice, and a receiver with two buffers does: give "
                   "them more memory, or a larger tmpfs"});
  } else {
    all.push_back({Level::kProblem, about, text,
                   "a receiver keeps the model at least once, a sender twice: free memory, mount "
                   "a larger tmpfs, or name another --data-dir"});
  }
}

Finding HugePages(const MachineFacts& f) {
  if (!f.in_memory || f.mount_point.empty()) return {Level::kGood, "huge pages", "not known", ""};
  // A tmpfs follows its own mount option; shmem_enabled in sysfs is for other shared memory.
  const std::string text = fmt::format("{} is mounted with huge={}", f.mount_point, f.huge_pages);
  if (f.huge_pages != "never") return {Level::kGood, "huge pages", text, ""};
  return {Level::kNote, "huge pages", text,
          fmt::format("mount -o remount,huge=advise {}: faster first pulls", f.mount_point)};
}

void Logout(const MachineFacts& f, std::vector<Finding>& all) {
  if (f.logind_removes.empty()) return;
  all.push_back(
      {Level::kNote, "logout",
       fmt::format("logind removes the files of {} from /dev/shm at the last logout",
                   f.logind_removes),
       fmt::format("loginctl enable-linger {}, or daemons of a system user", f.logind_removes)});
}

Finding Descriptors(const MachineFacts& f) {
  const std::string text = fmt::format("{} open files allowed", f.descriptors);
  if (f.descriptors >= kFewDescriptors) return {Level::kGood, "descriptors", text, ""};
  return {Level::kNote, "descriptors", text,
          "ulimit -n 65536 before daemons that are started by hand; the units set it"};
}

Finding SocketBuffers(const MachineFacts& f) {
  if (f.socket_buffer == 0) return {Level::kGood, "socket buffers", "not known", ""};
  const std::string text = HumanBytes(f.socket_buffer) + " at most";
  if (f.socket_buffer >= kSmallSocketBuffer) return {Level::kGood, "socket buffers", text, ""};
  return {Level::kNote, "socket buffers", text,
          "for long fat links: /usr/share/deltawire/examples/deltawire.sysctl.conf.example"};
}

/// Reports a driver that is too old for these programs. A machine without a GPU is fine.
Finding Gpu(const MachineFacts& f) {
  if (f.gpu.ok()) {
    return {Level::kGood, "GPU",
            f.gpu_name + R"(; a sender with gpu = "auto" diffs on it, a trainer's tensors on it )"
                         "are written by it",
            ""};
  }
  const std::string text = f.gpu.message + "; the CPU diffs";
  if (f.gpu.error != kernels::GpuError::kOldDriver) return {Level::kGood, "GPU", text, ""};
  return {Level::kNote, "GPU", "the NVIDIA driver is too old; the CPU diffs", f.gpu.message};
}

void Certificates(const MachineFacts& f, std::vector<Finding>& all) {
  const std::string about = "certificates";
  if (!f.credentials.ok()) {
    all.push_back({Level::kProblem, about, std::string(MessageOf(f.credentials)),
                   "docs/security.md says what the file holds; `deltawire certs` makes one"});
  }
  for (const CertificateFacts& c : f.certificates) {
    if (!c.valid_already) {
      all.push_back({Level::kProblem, about, c.subject + " is not valid yet",
                     "set this machine's clock, or wait"});
    } else if (c.valid_days < 0) {
      all.push_back({Level::kProblem, about, c.subject + " has expired", kRenew});
    } else if (c.valid_days < kSoonDays) {
      all.push_back({Level::kNote, about,
                     fmt::format("{} is valid for {:.0f} more days", c.subject, c.valid_days),
                     kRenew});
    } else {
      all.push_back({Level::kGood, about,
                     fmt::format("{} is valid for {:.0f} more days", c.subject, c.valid_days), ""});
    }
  }
}

void Clock(const PeerFacts& p, const std::string& about, std::vector<Finding>& all) {
  if (!p.clock_ahead_seconds) return;
  const double ahead = *p.clock_ahead_seconds;
  const std::string doubt = HumanSeconds(p.clock_doubt_seconds);
  if (std::abs(ahead) - p.clock_doubt_seconds <= kClockSkewSeconds) {
    all.push_back(
        {Level::kGood, about, fmt::format("its clock is ours, give or take {}", doubt), ""});
    return;
  }
  all.push_back(
      {Level::kNote, about,
       fmt::format("its clock is {} {} ours, give or take {}", HumanSeconds(std::abs(ahead)),
                   ahead > 0 ? "ahead of" : "behind", doubt),
       "set both clocks by NTP, e.g. with chrony: only times in logs and in `watch`, and "
       "the dates of certificates, depend on them"});
}

Finding NotReached(const PeerFacts& p, const std::string& about) {
  if (p.diagnosis) return {Level::kProblem, about, p.diagnosis->why, p.diagnosis->remedy};
  std::string text(MessageOf(p.reached));
  if (text.starts_with(about + ": ")) text.erase(0, about.size() + 2);
  return {Level::kProblem, about, text, "look at its log"};
}

void PeerCertificate(const PeerFacts& p, const std::string& about, std::vector<Finding>& all) {
  if (!p.tls) return;
  const std::string text = fmt::format("its certificate {} is valid for {:.0f} more days",
                                       p.tls->certificate.subject, p.certificate_days);
  const bool soon = p.certificate_days < kSoonDays;
  all.push_back({soon ? Level::kNote : Level::kGood, about, text, soon ? kRenew : ""});
}

void Peer(const PeerFacts& p, const std::string& version, std::vector<Finding>& all) {
  const std::string about = p.kind + " " + p.address;
  if (!p.reached.ok()) {
    all.push_back(NotReached(p, about));
    return;
  }
  if (p.program_version != version) {
    all.push_back({Level::kNote, about,
                   fmt::format("deltawire {}; here is {}", p.program_version, version),
                   "bring both to one version; peers whose formats differ refuse each other"});
  } else {
    all.push_back({Level::kGood, about, "deltawire " + p.program_version, ""});
  }
  if (p.exposed) {
    all.push_back({Level::kNote, about, "listens beyond loopback without encryption",
                   "give it --credentials and --principals (docs/security.md), or keep its ports "
                   "within a network that you trust"});
  } else if (!p.security.empty()) {
    all.push_back({Level::kGood, about, p.security, ""});
  }
  PeerCertificate(p, about, all);
  Clock(p, about, all);
  if (p.bulk_address.empty()) return;
  const std::string bulk = "bulk port " + p.bulk_address;
  if (p.bulk_reached.ok()) {
    all.push_back({Level::kGood, bulk, "connected in " + HumanSeconds(p.connect_seconds), ""});
  } else {
    all.push_back({Level::kProblem, bulk, std::string(MessageOf(p.bulk_reached)),
                   "receivers pull from this port: open it, or give the sender a bulk-listen "
                   "that they can reach"});
  }
}

struct DoctorOptions : Common {
  std::string data_dir = "/dev/shm/deltawire";
  std::string model;
};

StatusOr<Exit> Doctor(const DoctorOptions& o) {
  const std::vector<Finding> all = Judge(Look({.data_dir = o.data_dir,
                                               .model = o.model,
                                               .sender = o.sender,
                                               .receiver = o.receiver,
                                               .timeout = o.timeout()}));
  const bool problem = std::any_of(all.begin(), all.end(),
                                   [](const Finding& f) { return f.level == Level::kProblem; });
  if (o.json) {
    Json findings = Json::array();
    for (const Finding& f : all) {
      findings.push_back({{"level", f.level == Level::kProblem ? "problem" : ToString(f.level)},
                          {"about", f.about},
                          {"text", f.text},
                          {"remedy", f.remedy}});
    }
    PrintJson({{"findings", findings}});
  } else {
    Table table({{"LEVEL"}, {"ABOUT"}, {"FOUND"}});
    for (const Finding& f : all) table.Add({std::string(ToString(f.level)), f.about, f.text});
    std::printf("%s", table.Text().c_str());
    bool first = true;
    for (const Finding& f : all) {
      if (f.remedy.empty()) continue;
      std::printf("%s  %s: %s\n", std::exchange(first, false) ? "\nWhat to do:\n" : "",
                  f.about.c_str(), f.remedy.c_str());
    }
  }
  return problem ? Exit::kFailed : Exit::kOk;
}

}  // namespace

std::string_view ToString(Finding::Level level) {
  constexpr std::string_view kNames[] = {"ok", "note", "PROBLEM"};
  return kNames[static_cast<size_t>(level)];
}

std::vector<Finding> Judge(const MachineFacts& facts) {
  std::vector<Finding> all = {Kernel(facts)};
  DataDirectory(facts, all);
  Model(facts, all);
  all.push_back(HugePages(facts));
  Logout(facts, all);
  all.push_back(Descriptors(facts));
  all.push_back(SocketBuffers(facts));
  all.push_back({Level::kGood, "kernels", facts.kernels, ""});
  all.push_back(Gpu(facts));
  Certificates(facts, all);
  for (const PeerFacts& peer : facts.peers) Peer(peer, facts.program_version, all);
  return all;
}

void DeclareDoctor(CLI::App& app, Run* run) {
  auto o = std::make_shared<DoctorOptions>();
  o->sender = o->receiver = "";
  CLI::App* sub = app.add_subcommand(
      "doctor", "Look for what stands in the way of a sync on this machine, with remedies");
  sub->add_option("--data-dir", o->data_dir, "Where models live")
      ->type_name("DIR")
      ->capture_default_str();
  sub->add_option("--model", o->model, "A checkpoint: is there room for it?")->type_name("DIR");
  Common::AddCredentials(*sub);
  sub->add_option("--sender", o->sender, "Also look at this sender, and at its bulk port")
      ->type_name("HOST:PORT");
  sub->add_option("--receiver", o->receiver, "Also look at this receiver")->type_name("HOST:PORT");
  o->AddTimeout(*sub, 5, "Wait this long for each answer", Common::kLeastTimeout);
  o->AddJson(*sub);
  sub->callback([o, run] { *run = [o] { return Doctor(*o); }; });
}

}  // namespace deltawire::cli
