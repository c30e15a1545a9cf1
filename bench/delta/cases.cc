#include "bench/delta/cases.h"

#include <malloc.h>
#include <unistd.h>

#include "bench/delta/references.h"
#include "bench/harness/machine.h"

namespace deltawire::bench {
namespace {

constexpr double kMillion = 1e6;
constexpr const char* kCompare = "memcmp";

std::string CaseName(const std::string& operation, const std::string& workload, size_t threads) {
  return fmt::format("{}/{}/{}t", operation, workload, threads);
}

std::vector<Figure> FiguresOf(const Operation& operation, const Workload& w, const Engine& engine,
                              size_t threads) {
  const OperationTargets& targets = operation.targets;
  const bool one = threads == 1, compare = operation.name == std::string_view(kCompare);
  const auto column = [&](const std::string& name, size_t n) { return CaseName(name, w.name, n); };
  const std::string own = column(operation.name, threads);
  // Marks hold for traces of AdamW only.
  const auto mark = [&](bool applies, double wanted) {
    return applies && w.targets.adam ? wanted : 0;
  };
  const Figure throughput = Throughput(own, w.bytes());
  std::vector<Figure> out = {throughput};
  if (!compare) out[0].Against(column(operation.reference, threads), operation.reference);
  out[0].wanted = {.ratio_at_least = mark(one, targets.of_reference),
                   .value_at_least = mark(one, targets.gb_per_second)};
  out[0].detail = !one && targets.of_one_thread == 0 && !compare;
  if (one && targets.of_pairs > 0) {
    out.push_back(Figure(throughput)
                      .Against(column(operation.pairs, 1), operation.pairs)
                      .AtLeast(mark(true, targets.of_pairs)));
  }
  if (!one && targets.of_one_thread > 0) {
    out.push_back(Figure(throughput)
                      .Against(column(operation.name, 1), "1 thread")
                      .AtLeast(mark(threads == 2, targets.of_one_thread)));
    out.back().metric = "threads";
  }
  if (operation.deltas == 0) return out;
  Figure changes{"changes", "M/s", own,
                 static_cast<double>(engine.ChangesOf(operation.deltas)) / kMillion};
  changes.Against(column(operation.pairs, 1),
                  std::string(operation.pairs) + (one ? "" : ", 1 thread"));
  changes.wanted.value_at_least = mark(one, targets.changes_per_second);
  changes.detail = !one;
  out.push_back(changes);
  return out;
}

void AddOperations(const Workload& w, Engine& engine, ThreadPool& pool, std::vector<Case>& cases) {
  for (const Operation& o : AllOperations()) {
    if (!engine.CanRun(o)) continue;
    Case& c = cases.emplace_back();
    c.name = CaseName(o.name, w.name, pool.size());
    c.threads = pool.size();
    c.work = [&] { return engine.Run(o, pool); };
    c.figures = FiguresOf(o, w, engine, c.threads);
    if (o.targets.of_reference > 0 && o.reference == std::string_view(kCompare)) {
      c.beside = CaseName(kCompare, w.name, c.threads);
    }
  }
}

void AddReference(const Workload& w, Engine& engine, const ReferenceKind& kind, ThreadPool& pool,
                  std::vector<Case>& cases) {
  const auto runner = std::make_shared<ReferenceRunner>(w, kind);
  const auto add = [&](const char* side, std::function<StatusOr<double>()> work) {
    const std::string name = CaseName(kind.name + std::string(side), w.name, 1);
    std::vector<Figure> figures = {
        Throughput(name, w.bytes()).Against(CaseName(kCompare, w.name, 1), kCompare)};
    if (w.changed > 0) {
      const double changed = static_cast<double>(w.changed) / kMillion;
      figures.push_back(Figure{"changes", "M/s", name, changed}.Note(kind.about));
      figures.back().detail = true;
    }
    cases.push_back({name, 1, std::move(work), std::move(figures)});
  };
  add("_encode", [runner] { return runner->Encode(); });
  add("_apply", [runner, &engine, &pool]() -> StatusOr<double> {
    DW_ASSIGN_OR_RETURN(const double seconds, runner->Apply(engine.work()));
    DW_RETURN_IF_ERROR(engine.Restore(pool));
    return seconds;
  });
  if (w.changed == 0) return;
  const std::string name = fmt::format("bytes/{}/{}", kind.name, w.name);
  const auto per_change = [runner, &w]() -> StatusOr<double> {
    DW_ASSIGN_OR_RETURN(const uint64_t bytes, runner->bytes());
    return static_cast<double>(bytes) / static_cast<double>(w.changed);
  };
  cases.push_back({name, 1, per_change, {Value("per_change", name, "B").Note(kind.about)}});
}

// Runs every operation once with all threads, and measures the process's memory. It must come
// before the references, since their memory would count.
Status MemoryCase(Bench& bench, const Workload& w, Engine& engine, ThreadPool& pool) {
  const std::string name = "memory/" + w.name;
  if (!bench.Asked(name)) return absl::OkStatus();
  malloc_trim(0);  // frees the memory of the workload's creation
  uint64_t peak = 0;
  {
    const MemoryWatch watch(getpid());
    for (const Operation& operation : AllOperations()) {
      if (engine.CanRun(operation)) DW_RETURN_IF_ERROR(engine.Run(operation, pool).status());
    }
    peak = watch.peak();
  }
  const uint64_t known = w.old_data.resident() * 3 + engine.kept();
  for (const auto& [metric, bytes] : {std::pair("beyond_buffers", peak - std::min(peak, known)),
                                      {"payloads_kept", engine.kept()}}) {
    bench.AddValue(name, metric, static_cast<double>(bytes) / kMiB, "MiB", 0, "", pool.size());
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> AllCaseNames(const std::string& workload,
                                      const std::vector<size_t>& threads) {
  std::vector<std::string> out = SizeCaseNames(workload);
  for (const Operation& operation : AllOperations()) {
    for (const size_t n : threads) out.push_back(CaseName(operation.name, workload, n));
  }
  for (const ReferenceKind& kind : AllReferences()) {
    out.push_back(CaseName(std::string(kind.name) + "_encode", workload, 1));
    out.push_back(CaseName(std::string(kind.name) + "_apply", workload, 1));
    out.push_back(fmt::format("bytes/{}/{}", kind.name, workload));
  }
  out.push_back("memory/" + workload);
  return out;
}

Status RunCases(Bench& bench, const Workload& w, const std::vector<size_t>& threads) {
  ThreadPool untimed;
  DW_ASSIGN_OR_RETURN(const auto engine, Engine::Create(w, untimed));
  std::vector<std::unique_ptr<ThreadPool>> pools;
  for (const size_t n : threads) pools.push_back(std::make_unique<ThreadPool>(n));
  DW_RETURN_IF_ERROR(MemoryCase(bench, w, *engine, *pools.back()));
  DW_RETURN_IF_ERROR(SizeCases(bench, w, *engine, untimed));
  std::vector<Case> cases;
  for (const auto& pool : pools) AddOperations(w, *engine, *pool, cases);
  for (const ReferenceKind& kind : AllReferences()) {
    AddReference(w, *engine, kind, untimed, cases);
  }
  return bench.Run(cases);
}

}  // namespace deltawire::bench
