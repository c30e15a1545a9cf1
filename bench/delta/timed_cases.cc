#include "bench/delta/timed_cases.h"

#include "bench/delta/publish_run.h"
#include "bench/delta/references.h"

namespace deltawire::bench {
namespace {

constexpr double kGb = 1e9;
constexpr double kMillion = 1e6;
constexpr size_t kFolds[] = {2, 8, 32};
constexpr const char* kOperationNames[] = {"memcpy",
                                           "memcmp",
                                           "diff_only",
                                           "digest",
                                           "digest_pieces",
                                           "encode_fast",
                                           "encode_checked",
                                           "publish_unchecked",
                                           "publish",
                                           "encode_tight",
                                           "encode_tight_history",
                                           "encode_dense",
                                           "validate_fast",
                                           "apply_fast",
                                           "apply_tight",
                                           "apply_tight_history",
                                           "apply_dense",
                                           "fold_2",
                                           "fold_8",
                                           "fold_32"};
constexpr const char* kReferenceNames[] = {"pairs", "gaps_zstd", "xor_zstd"};
constexpr const char* kPairsEncode = "pairs_encode";
constexpr const char* kPairsApply = "pairs_apply";

std::string CaseName(const std::string& operation, const std::string& workload, size_t threads) {
  return fmt::format("{}/{}/{}t", operation, workload, threads);
}

struct Step {
  std::string column;  // of the series: the case's name
  size_t threads = 1;
  std::function<StatusOr<double>()> run;
};

class Plan {
 public:
  Plan(const Suite& suite, const Workload& w, Engine& engine);
  bool empty() const { return steps_.empty(); }
  StatusOr<Series> Measured() const;
  void ReportAll(const Series& series) const;

 private:
  void AddOperations();
  void AddReferences();
  bool Asked(const std::string& operation, size_t threads) const {
    return suite_.options.Asked(CaseName(operation, w_.name, threads));
  }
  std::string Column(const std::string& operation, size_t threads) const {
    return CaseName(operation, w_.name, threads);
  }
  std::string BytesName(std::string_view reference) const {
    return fmt::format("bytes/{}/{}", reference, w_.name);
  }
  void ReportOperation(const Series& series, const Operation& op, size_t threads) const;
  void ReportReference(const Series& series, const ReferenceRunner& r) const;
  void AddRow(const Series& series, Row row, const std::string& reference, double factor) const;
  Row MakeRow(const std::string& column, const char* metric, Sample value, const char* unit,
              size_t threads) const;

  const Suite& suite_;
  const Workload& w_;
  Engine& engine_;
  std::vector<std::unique_ptr<ThreadPool>> pools_;
  std::vector<Operation> operations_;
  std::vector<std::unique_ptr<ReferenceRunner>> references_;
  std::vector<Step> steps_;
};

Plan::Plan(const Suite& suite, const Workload& w, Engine& engine)
    : suite_(suite), w_(w), engine_(engine), operations_(Operations(engine)) {
  for (const size_t n : suite.options.threads) pools_.push_back(std::make_unique<ThreadPool>(n));
  AddOperations();
  AddReferences();
  // Alone, what the others are held against is of no interest.
  if (!references_.empty()) return;
  const bool any =
      std::ranges::any_of(steps_, [&](const Step& s) { return suite_.options.Asked(s.column); });
  if (!any) steps_.clear();
}

// memcmp is run before every operation of the encoding side, so that it sees what that one sees.
void Plan::AddOperations() {
  for (const auto& pool : pools_) {
    const size_t threads = pool->size();
    const Operation* compare = nullptr;
    for (const Operation& op : operations_) {
      if (op.name == "memcmp") compare = &op;
      const bool reference = op.name == "memcmp" || op.name == "memcpy";
      const bool of_threads = op.targets.of_one_thread > 0 && threads == 1;
      const bool needed = std::ranges::any_of(
          suite_.options.threads, [&](size_t n) { return of_threads && Asked(op.name, n); });
      if (!reference && !needed && !Asked(op.name, threads)) continue;
      const auto add = [&](const Operation& o) {
        steps_.push_back({Column(o.name, threads), threads, [&o, &p = *pool] { return o.run(p); }});
      };
      if (!reference && op.targets.of_reference > 0 && op.reference == "memcmp") add(*compare);
      add(op);
    }
  }
}

void Plan::AddReferences() {
  for (auto make : {MakePairs, MakeByteGaps, MakeXor}) {
    auto runner = std::make_unique<ReferenceRunner>(w_, make());
    const std::string name(runner->name());
    const bool pairs = name == "pairs" && std::ranges::any_of(operations_, [&](const auto& op) {
                         return !op.pairs.empty() && Asked(op.name, 1);
                       });
    if (!pairs && !Asked(name + "_encode", 1) && !Asked(name + "_apply", 1) &&
        !suite_.options.Asked(BytesName(name))) {
      continue;
    }
    ReferenceRunner* const r = runner.get();
    steps_.push_back({Column(name + "_encode", 1), 1, [r] { return r->Encode(); }});
    steps_.push_back({Column(name + "_apply", 1), 1, [this, r]() -> StatusOr<double> {
                        DW_ASSIGN_OR_RETURN(const double seconds, r->Apply(engine_.work()));
                        DW_RETURN_IF_ERROR(engine_.CopyOld(suite_.pool).status());
                        return seconds;
                      }});
    references_.push_back(std::move(runner));
  }
}

StatusOr<Series> Plan::Measured() const {
  return Measure(suite_.options.rounds, [this](Series& series) -> Status {
    for (const Step& step : steps_) {
      DW_ASSIGN_OR_RETURN(const double seconds, step.run());
      series.Add(step.column, seconds);
    }
    return absl::OkStatus();
  });
}

Row Plan::MakeRow(const std::string& column, const char* metric, Sample value, const char* unit,
                  size_t threads) const {
  Row row;
  row.name = column;
  row.metric = metric;
  row.value = std::move(value);
  row.unit = unit;
  row.threads = threads;
  return row;
}

// `reference` is an operation's name and threads as in a column; rates of `factor` a run.
void Plan::AddRow(const Series& series, Row row, const std::string& reference,
                  double factor) const {
  if (series.Has(reference)) {
    const std::string operation = reference.substr(0, reference.find('/'));
    const bool itself = row.name.starts_with(operation + "/");
    row.reference = itself ? "1 thread" : operation;
    if (!itself && row.threads > 1 && reference.ends_with("/1t")) row.reference += ", 1 thread";
    row.reference_value = Rate(series.Of(reference), factor);
  } else {
    row.wanted.ratio_at_least = 0;
  }
  suite_.report.Add(std::move(row));
}

void Plan::ReportOperation(const Series& series, const Operation& op, size_t threads) const {
  const std::string column = Column(op.name, threads);
  if (!series.Has(column) || !suite_.options.Asked(column)) return;
  const bool targets = w_.targets.adam;
  const double gigabytes = static_cast<double>(w_.bytes()) / kGb;
  const Sample seconds = series.Of(column);
  const bool detail = threads > 1 && op.targets.of_one_thread == 0 && op.name != "memcmp";
  Row row = MakeRow(column, "throughput", Rate(seconds, gigabytes), "GB/s", threads);
  row.detail = detail;
  if (targets && threads == 1) {
    row.wanted.ratio_at_least = op.targets.of_reference;
    row.wanted.value_at_least = op.targets.gb_per_second;
  }
  AddRow(series, row, op.name == "memcmp" ? "" : Column(op.reference, threads), gigabytes);
  if (threads == 1 && op.targets.of_pairs > 0) {
    row.wanted = {};
    if (targets) row.wanted.ratio_at_least = op.targets.of_pairs;
    AddRow(series, row, Column(op.pairs, 1), gigabytes);
  }
  if (threads > 1 && op.targets.of_one_thread > 0) {
    row.metric = "threads";
    row.wanted = {};
    if (targets && threads == 2) row.wanted.ratio_at_least = op.targets.of_one_thread;
    AddRow(series, row, Column(op.name, 1), gigabytes);
  }
  if (op.changes == 0) return;
  const double changes = static_cast<double>(op.changes) / kMillion;
  row = MakeRow(column, "changes", Rate(seconds, changes), "M/s", threads);
  row.detail = threads > 1;
  if (targets && threads == 1) row.wanted.value_at_least = op.targets.changes_per_second;
  AddRow(series, row, op.pairs.empty() ? "" : Column(op.pairs, 1), changes);
}

void Plan::ReportReference(const Series& series, const ReferenceRunner& r) const {
  const double gigabytes = static_cast<double>(w_.bytes()) / kGb;
  for (const char* side : {"_encode", "_apply"}) {
    const std::string operation = std::string(r.name()) + side;
    const std::string column = Column(operation, 1);
    if (!suite_.options.Asked(column)) continue;
    const Sample seconds = series.Of(column);
    AddRow(series, MakeRow(column, "throughput", Rate(seconds, gigabytes), "GB/s", 1),
           Column("memcmp", 1), gigabytes);
    if (w_.changed == 0) continue;
    Row row = MakeRow(column, "changes", Rate(seconds, static_cast<double>(w_.changed) / kMillion),
                      "M/s", 1);
    row.note = r.about();
    row.detail = true;
    suite_.report.Add(std::move(row));
  }
  const std::string name = BytesName(r.name());
  if (w_.changed == 0 || !suite_.options.Asked(name)) return;
  Row row = MakeRow(name, "per_change",
                    Summarize({static_cast<double>(r.bytes()) / static_cast<double>(w_.changed)}),
                    "B", 1);
  row.note = r.about();
  suite_.report.Add(std::move(row));
}

void Plan::ReportAll(const Series& series) const {
  for (const Operation& op : operations_) {
    for (const size_t threads : suite_.options.threads) ReportOperation(series, op, threads);
  }
  for (const auto& r : references_) ReportReference(series, *r);
}

using Pool = ThreadPool&;

void AddPublishes(Engine& e, std::vector<Operation>& out) {
  const auto publish = std::make_shared<PublishRun>(e.workload(), e.kernels(), e.key());
  const auto run = [publish](bool check) {
    return [publish, check](Pool p) { return publish->Run(p, check); };
  };
  out.push_back({"publish_unchecked", run(false), 0, "", {}});
  out.push_back({"publish", run(true), 0, "", {.of_reference = 0.95}, "publish_unchecked"});
}

void AddEncodes(Engine& e, std::vector<Operation>& out) {
  out.push_back({"memcpy", [&e](Pool p) { return e.CopyOld(p); }, 0, "", {}});
  out.push_back({"memcmp", [&e](Pool p) { return e.Compare(p); }, 0, "", {}});
  out.push_back({"diff_only", [&e](Pool p) { return e.DiffUnchanged(p); }, 0, "", {}});
  out.push_back({"digest", [&e](Pool p) { return e.Digest(p); }, 0, "", {}});
  out.push_back({"digest_pieces", [&e](Pool p) { return e.DigestPieces(p); }, 0, "", {}});
  out.push_back({"encode_fast",
                 [&e](Pool p) { return e.EncodeFast(p); },
                 0,
                 kPairsEncode,
                 {.of_reference = 0.75, .of_pairs = 3, .of_one_thread = 1.8}});
  out.push_back({"encode_checked", [&e](Pool p) { return e.EncodeChecked(p); }, 0, "", {}});
  AddPublishes(e, out);
  if (e.has_tight()) {
    out.push_back({"encode_tight",
                   [&e](Pool p) { return e.EncodeTight(p, false); },
                   0,
                   "",
                   {.of_reference = 0.3, .gb_per_second = 2, .of_one_thread = 1.8}});
  }
  if (e.has_tight() && e.has_history()) {
    out.push_back({"encode_tight_history",
                   [&e](Pool p) { return e.EncodeTight(p, true); },
                   0,
                   "",
                   {.of_one_thread = 1.8}});
  }
  if (e.has_dense()) {
    out.push_back({"encode_dense", [&e](Pool p) { return e.EncodeDense(p); }, 0, "", {}});
  }
}

void AddApplies(Engine& e, uint64_t changes, std::vector<Operation>& out) {
  out.push_back({"validate_fast", [&e](Pool p) { return e.ValidateFast(p); }, changes, "", {}});
  out.push_back({"apply_fast",
                 [&e](Pool p) { return e.ApplyFast(p); },
                 changes,
                 kPairsApply,
                 {.changes_per_second = 120, .of_one_thread = 1.8}});
  if (e.has_tight()) {
    out.push_back({"apply_tight",
                   [&e](Pool p) { return e.ApplyTight(p, false); },
                   changes,
                   kPairsApply,
                   {.gb_per_second = 1.5, .of_one_thread = 1.8}});
  }
  if (e.has_tight() && e.has_history()) {
    out.push_back({"apply_tight_history",
                   [&e](Pool p) { return e.ApplyTight(p, true); },
                   changes,
                   kPairsApply,
                   {.of_one_thread = 1.8}});
  }
  if (e.has_dense()) {
    out.push_back(
        {"apply_dense", [&e](Pool p) { return e.ApplyDense(p); }, changes, kPairsApply, {}});
  }
}

}  // namespace

std::vector<Operation> Operations(Engine& e) {
  const uint64_t changes = e.ChangesOf(1);
  std::vector<Operation> out;
  AddEncodes(e, out);
  if (changes == 0) return out;
  AddApplies(e, changes, out);
  for (const size_t n : kFolds) {
    if (n > e.max_fold()) continue;
    out.push_back({fmt::format("fold_{}", n),
                   [&e, n](Pool p) { return e.Fold(p, n); },
                   e.ChangesOf(n),
                   "",
                   {}});
  }
  return out;
}

std::vector<std::string> TimedCaseNames(const std::string& workload,
                                        const std::vector<size_t>& threads) {
  std::vector<std::string> out;
  for (const size_t n : threads) {
    for (const char* op : kOperationNames) out.push_back(CaseName(op, workload, n));
  }
  for (const std::string reference : kReferenceNames) {
    out.push_back(CaseName(reference + "_encode", workload, 1));
    out.push_back(CaseName(reference + "_apply", workload, 1));
    out.push_back(fmt::format("bytes/{}/{}", reference, workload));
  }
  return out;
}

Status TimedCases(const Suite& suite, const Workload& w, Engine& engine) {
  const Plan plan(suite, w, engine);
  if (plan.empty()) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const Series series, plan.Measured());
  plan.ReportAll(series);
  return absl::OkStatus();
}

}  // namespace deltawire::bench
