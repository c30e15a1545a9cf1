#include "common/metrics/process.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace deltawire::metrics {
namespace {

// Fields of /proc/self/stat, counted from 1 as proc(5) does; the first two are before the ")".
constexpr size_t kThreadsField = 20, kStartField = 22, kVirtualField = 23, kResidentField = 24;
constexpr size_t kFirstAfterName = 3;

/// Returns the numbers of /proc/self/stat from the third field on; empty if it cannot be read.
std::vector<double> StatFields() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  // The program's name may contain blanks and brackets.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream rest(text.substr(name_end + 1));
  std::vector<double> fields;
  std::string state;
  rest >> state;
  fields.push_back(0);
  for (double value = 0; rest >> value;) fields.push_back(value);
  return fields;
}

/// Returns the machine's boot time, in seconds since 1970; 0: unknown.
double BootTime() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("btime ")) return std::stod(line.substr(6));
  }
  return 0;
}

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

std::vector<Sample> ProcessSamples() {
  std::vector<Sample> samples;
  const auto add = [&samples](const char* name, const char* help, Kind kind, double value) {
    samples.push_back({name, help, kind, {}, value});
  };
  rusage used{};
  if (getrusage(RUSAGE_SELF, &used) == 0) {
    add("process_cpu_seconds_total", "Processor time of the process", Kind::kCounter,
        Seconds(used.ru_utime) + Seconds(used.ru_stime));
  }
  const std::vector<double> stat = StatFields();
  if (stat.size() > kResidentField - kFirstAfterName) {
    const auto field = [&stat](size_t i) { return stat[i - kFirstAfterName]; };
    add("process_threads", "Threads of the process", Kind::kGauge, field(kThreadsField));
    add("process_virtual_memory_bytes", "Address space of the process", Kind::kGauge,
        field(kVirtualField));
    add("process_resident_memory_bytes",
        "Memory of the process, with the weights that it has mapped", Kind::kGauge,
        field(kResidentField) * static_cast<double>(sysconf(_SC_PAGESIZE)));
    if (const double boot = BootTime(); boot > 0) {
      add("process_start_time_seconds", "When the process started, since 1970", Kind::kGauge,
          boot + field(kStartField) / static_cast<double>(sysconf(_SC_CLK_TCK)));
    }
  }
  std::error_code ec;
  double open = 0;
  for (std::filesystem::directory_iterator fd("/proc/self/fd", ec), end; !ec && fd != end;
       fd.increment(ec)) {
    ++open;
  }
  if (!ec) add("process_open_fds", "Descriptors that are open", Kind::kGauge, open);
  rlimit most{};
  if (getrlimit(RLIMIT_NOFILE, &most) == 0) {
    add("process_max_fds", "The most descriptors that may be open", Kind::kGauge,
        static_cast<double>(most.rlim_cur));
  }
  return samples;
}

}  // namespace deltawire::metrics
