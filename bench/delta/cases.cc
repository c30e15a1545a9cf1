#include "bench/delta/cases.h"

#include <malloc.h>
#include <unistd.h>

#include "bench/delta/engine.h"
#include "bench/delta/size_rows.h"
#include "bench/delta/timed_cases.h"
#include "bench/harness/machine.h"

namespace deltawire::bench {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

uint64_t BytesOf(const Delta& d) {
  uint64_t sum = 0;
  for (const auto& payload : d) sum += payload.size();
  return sum;
}

// Every operation once with all threads, watched; the references are not there yet.
Status MemoryCase(const Suite& s, const Workload& w, Engine& engine, ThreadPool& pool) {
  const std::string name = "memory/" + w.name;
  if (!s.options.Asked(name)) return absl::OkStatus();
  malloc_trim(0);  // what making the workload has left behind
  uint64_t peak = 0;
  {
    MemoryWatch watch(getpid());
    for (const Operation& op : Operations(engine)) {
      DW_RETURN_IF_ERROR(op.run(pool).status());
    }
    peak = watch.peak();
  }
  uint64_t payloads =
      BytesOf(engine.tight(false)) + BytesOf(engine.tight(true)) + BytesOf(engine.dense());
  for (const Delta& d : w.deltas) payloads += BytesOf(d);
  const uint64_t known = w.old_data.resident() * 3 + payloads;
  const auto row = [&](const char* metric, uint64_t bytes) {
    Row r;
    r.name = name;
    r.metric = metric;
    r.value = Summarize({static_cast<double>(bytes) / kMiB});
    r.unit = "MiB";
    r.threads = pool.size();
    s.report.Add(std::move(r));
  };
  row("beyond_buffers", peak > known ? peak - known : 0);
  row("payloads_kept", payloads);
  return absl::OkStatus();
}

}  // namespace

bool AnyAsked(const CaseOptions& options, const std::string& workload) {
  if (!options.only) return true;
  for (const std::string& name : AllCaseNames(workload, options.threads)) {
    if (options.Asked(name)) return true;
  }
  return false;
}

std::vector<std::string> AllCaseNames(const std::string& workload,
                                      const std::vector<size_t>& threads) {
  std::vector<std::string> out = TimedCaseNames(workload, threads);
  for (std::string& name : SizeCaseNames(workload)) out.push_back(std::move(name));
  out.push_back("memory/" + workload);
  return out;
}

Status RunCases(const Suite& s, const Workload& w) {
  ThreadPool pool(s.options.threads.back());
  DW_ASSIGN_OR_RETURN(const auto engine, Engine::Create(w, s.kernels, s.key, pool.size(), s.pool));
  DW_RETURN_IF_ERROR(MemoryCase(s, w, *engine, pool));
  DW_RETURN_IF_ERROR(SizeCases(s, w, *engine));
  return TimedCases(s, w, *engine);
}

}  // namespace deltawire::bench
