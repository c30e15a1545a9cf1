#include "bench/delta/cases.h"

#include <malloc.h>
#include <unistd.h>

#include "bench/delta/engine.h"
#include "bench/delta/references.h"
#include "bench/delta/sizes.h"
#include "bench/harness/peak_memory.h"

namespace deltawire::bench {
namespace {

constexpr double kMillion = 1e6;

std::string CaseName(const std::string& operation, const std::string& workload, size_t threads) {
  return fmt::format("{}/{}/{}t", operation, workload, threads);
}

uint64_t BytesOf(const Delta& d) {
  uint64_t sum = 0;
  for (const auto& payload : d) sum += payload.size();
  return sum;
}

/// The timed cases of one workload. Each column of the series is named like its case.
class TimedCases {
 public:
  TimedCases(Bench& bench, const Workload& w, Engine& engine, const std::vector<size_t>& threads);
  /// Measures all in the same rounds, and adds the rows that were asked for.
  Status Run();

 private:
  struct Step {
    std::string column;
    std::function<StatusOr<double>()> run;
  };
  bool Asked(const std::string& operation, size_t threads) const {
    return bench_.Asked(Column(operation, threads));
  }
  std::string Column(const std::string& operation, size_t threads) const {
    return CaseName(operation, w_.name, threads);
  }
  std::string BytesName(const ReferenceKind& kind) const {
    return fmt::format("bytes/{}/{}", kind.name, w_.name);
  }
  bool Needed(const Operation& operation, size_t threads) const;
  void PlanOperations(ThreadPool& pool);
  void PlanReference(const ReferenceKind& kind);
  std::vector<Figure> FiguresOf(const Operation& operation, size_t threads) const;
  void ReportReference(const ReferenceRunner& runner, const Series& series) const;

  Bench& bench_;
  const Workload& w_;
  Engine& engine_;
  std::vector<std::unique_ptr<ThreadPool>> pools_;
  std::vector<std::unique_ptr<ReferenceRunner>> references_;
  std::vector<Step> steps_;
};

TimedCases::TimedCases(Bench& bench, const Workload& w, Engine& engine,
                       const std::vector<size_t>& threads)
    : bench_(bench), w_(w), engine_(engine) {
  for (const size_t n : threads) pools_.push_back(std::make_unique<ThreadPool>(n));
  for (const auto& pool : pools_) PlanOperations(*pool);
  for (const ReferenceKind& kind : AllReferences()) PlanReference(kind);
}

// Whether the operation was asked for, or is the reference of a row that was asked for.
bool TimedCases::Needed(const Operation& operation, size_t threads) const {
  const std::string_view name = operation.name;
  if (name == "memcmp" || Asked(operation.name, threads)) return true;
  const bool by_others = std::ranges::any_of(AllOperations(), [&](const Operation& o) {
    return o.reference == name && Asked(o.name, threads);
  });
  const bool by_more_threads =
      threads == 1 && operation.targets.of_one_thread > 0 &&
      std::ranges::any_of(pools_, [&](const auto& p) { return Asked(operation.name, p->size()); });
  return by_others || by_more_threads;
}

// memcmp runs before every operation that is compared with it, so that whatever disturbs the
// machine for a while disturbs both.
void TimedCases::PlanOperations(ThreadPool& pool) {
  const auto add = [&](const Operation& o) {
    steps_.push_back(
        {Column(o.name, pool.size()), [this, &o, &pool] { return engine_.Run(o, pool); }});
  };
  const Operation* compare = nullptr;
  for (const Operation& operation : AllOperations()) {
    if (!engine_.CanRun(operation) || !Needed(operation, pool.size())) continue;
    if (operation.name == std::string_view("memcmp")) compare = &operation;
    const bool beside = operation.reference == std::string_view("memcmp");
    if (beside && operation.targets.of_reference > 0) add(*compare);
    add(operation);
  }
}

void TimedCases::PlanReference(const ReferenceKind& kind) {
  const std::string encode = std::string(kind.name) + "_encode",
                    apply = std::string(kind.name) + "_apply";
  const bool beside = std::ranges::any_of(AllOperations(), [&](const Operation& o) {
    return (o.pairs == encode || o.pairs == apply) && Asked(o.name, 1);
  });
  if (!beside && !Asked(encode, 1) && !Asked(apply, 1) && !bench_.Asked(BytesName(kind))) return;
  references_.push_back(std::make_unique<ReferenceRunner>(w_, kind));
  ReferenceRunner* const runner = references_.back().get();
  steps_.push_back({Column(encode, 1), [runner] { return runner->Encode(); }});
  steps_.push_back({Column(apply, 1), [this, runner]() -> StatusOr<double> {
                      DW_ASSIGN_OR_RETURN(const double seconds, runner->Apply(engine_.work()));
                      DW_RETURN_IF_ERROR(engine_.Restore(*pools_.back()));
                      return seconds;
                    }});
}

Status TimedCases::Run() {
  // memcmp is planned whether or not anything was asked for; alone it need not be measured.
  const bool any =
      std::ranges::any_of(steps_, [&](const Step& s) { return bench_.Asked(s.column); });
  if (!any && references_.empty()) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const Series series, bench_.Measure([this](Series& s) -> Status {
    for (const Step& step : steps_) {
      DW_ASSIGN_OR_RETURN(const double seconds, step.run());
      s.Add(step.column, seconds);
    }
    return absl::OkStatus();
  }));
  for (const Operation& operation : AllOperations()) {
    for (const auto& pool : pools_) {
      const std::string column = Column(operation.name, pool->size());
      if (!series.Has(column)) continue;
      bench_.Add(column, pool->size(), series, FiguresOf(operation, pool->size()));
    }
  }
  for (const auto& runner : references_) ReportReference(*runner, series);
  return absl::OkStatus();
}

std::vector<Figure> TimedCases::FiguresOf(const Operation& operation, size_t threads) const {
  const OperationTargets& targets = operation.targets;
  const bool one = threads == 1, compare = operation.name == std::string_view("memcmp");
  const std::string column = Column(operation.name, threads);
  // Marks hold for traces of AdamW only.
  const auto mark = [&](bool applies, double wanted) {
    return applies && w_.targets.adam ? wanted : 0;
  };
  const Figure throughput = Throughput(column, w_.bytes());
  std::vector<Figure> out = {throughput};
  if (!compare) out[0].Against(Column(operation.reference, threads), operation.reference);
  out[0].wanted = {.ratio_at_least = mark(one, targets.of_reference),
                   .value_at_least = mark(one, targets.gb_per_second)};
  out[0].detail = !one && targets.of_one_thread == 0 && !compare;
  if (one && targets.of_pairs > 0) {
    out.push_back(Figure(throughput)
                      .Against(Column(operation.pairs, 1), operation.pairs)
                      .AtLeast(mark(true, targets.of_pairs)));
  }
  if (!one && targets.of_one_thread > 0) {
    out.push_back(Figure(throughput)
                      .Against(Column(operation.name, 1), "1 thread")
                      .AtLeast(mark(threads == 2, targets.of_one_thread)));
    out.back().metric = "threads";
  }
  if (operation.deltas == 0) return out;
  Figure changes{"changes", "M/s", column,
                 static_cast<double>(engine_.ChangesOf(operation.deltas)) / kMillion};
  changes.Against(Column(operation.pairs, 1),
                  std::string(operation.pairs) + (one ? "" : ", 1 thread"));
  changes.wanted.value_at_least = mark(one, targets.changes_per_second);
  changes.detail = !one;
  out.push_back(changes);
  return out;
}

void TimedCases::ReportReference(const ReferenceRunner& runner, const Series& series) const {
  const ReferenceKind& kind = runner.kind();
  const double changed = static_cast<double>(w_.changed);
  for (const char* side : {"_encode", "_apply"}) {
    const std::string column = Column(std::string(kind.name) + side, 1);
    std::vector<Figure> figures = {
        Throughput(column, w_.bytes()).Against(Column("memcmp", 1), "memcmp")};
    if (w_.changed > 0) {
      figures.push_back(Figure{"changes", "M/s", column, changed / kMillion}.Note(kind.about));
      figures.back().detail = true;
    }
    bench_.Add(column, 1, series, figures);
  }
  if (w_.changed == 0) return;
  bench_.AddValue(BytesName(kind), "per_change", static_cast<double>(runner.bytes()) / changed, "B",
                  0, kind.about);
}

// Runs every operation once with all threads, and watches the process's memory. The references must
// not be made before, since their memory would count.
Status MemoryCase(Bench& bench, const Workload& w, Engine& engine, ThreadPool& pool) {
  const std::string name = "memory/" + w.name;
  if (!bench.Asked(name)) return absl::OkStatus();
  malloc_trim(0);  // gives back what making the workload has left behind
  uint64_t peak = 0;
  {
    const MemoryWatch watch(getpid());
    for (const Operation& operation : AllOperations()) {
      if (engine.CanRun(operation)) DW_RETURN_IF_ERROR(engine.Run(operation, pool).status());
    }
    peak = watch.peak();
  }
  uint64_t payloads = 0;
  for (const Form form : {kTight, kTightHistory, kDense})
    payloads += BytesOf(engine.payloads(form));
  for (const Delta& d : w.deltas) payloads += BytesOf(d);
  const uint64_t known = w.old_data.resident() * 3 + payloads;
  const auto add = [&](const char* metric, uint64_t bytes) {
    bench.AddValue(name, metric, static_cast<double>(bytes) / kMiB, "MiB", 0, "", pool.size());
  };
  add("beyond_buffers", peak - std::min(peak, known));
  add("payloads_kept", payloads);
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
  ThreadPool pool;  // for all that is not timed
  DW_ASSIGN_OR_RETURN(const auto engine, Engine::Create(w, threads.back(), pool));
  ThreadPool most(threads.back());
  DW_RETURN_IF_ERROR(MemoryCase(bench, w, *engine, most));
  DW_RETURN_IF_ERROR(SizeCases(bench, w, *engine, pool));
  return TimedCases(bench, w, *engine, threads).Run();
}

}  // namespace deltawire::bench
