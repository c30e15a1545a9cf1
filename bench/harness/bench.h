// One run of a suite: its command line, the cases asked for, their rounds, and their rows. A case
// is measured beside its references in the same rounds (A, B, A, B ...), so that what disturbs a
// machine for a while disturbs all of them; figures say which rows follow. Owner: RunSuite, for
// one run. Threads: one. Errors: those of the suite's own code; a slow result is no error.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "bench/harness/report.h"
#include "common/base/human.h"

namespace CLI {
class App;
}

namespace deltawire::bench {

inline constexpr double kGb = 1e9;
inline constexpr double kMiB = 1024.0 * 1024.0;

/// Named columns of numbers, one value per round.
class Series {
 public:
  void Add(std::string_view name, double value) { values_[std::string(name)].push_back(value); }
  /// Adds the seconds that `work` takes, which returns a Status or nothing.
  template <typename Work>
  Status Time(std::string_view name, const Work& work);
  bool Has(std::string_view name) const { return values_.count(std::string(name)) != 0; }
  /// REQUIRES: Has(name).
  const std::vector<double>& Of(std::string_view name) const {
    return values_.at(std::string(name));
  }

 private:
  std::map<std::string, std::vector<double>> values_;
};

struct Rounds {
  size_t warmups = 1;
  size_t runs = 5;
  size_t total() const { return warmups + runs; }
};

using Round = std::function<Status(Series&)>;

/// One row of a case: a column of its series, and the column that it is compared with.
struct Figure {
  std::string metric;
  std::string unit;
  std::string column;
  double rate = 0;             ///< not 0: the value is `rate` / column
  std::string against = "";    ///< a column; if it was not measured, the row has no reference
  std::string reference = "";  ///< what people call that column; empty: its own name
  double reference_rate = 0;   ///< 0: as `rate`
  Wanted wanted = {};
  std::string note = "";
  bool detail = false;

  Figure& Against(std::string its_column, std::string called = "") {
    against = std::move(its_column);
    reference = std::move(called);
    return *this;
  }
  /// Gives the reference a rate of its own, where it moves another number of bytes.
  Figure& AgainstBytes(uint64_t bytes) {
    reference_rate = static_cast<double>(bytes) / kGb;
    return *this;
  }
  Figure& AtLeast(double ratio) {
    wanted.ratio_at_least = ratio;
    return *this;
  }
  Figure& Note(std::string text) {
    note = std::move(text);
    return *this;
  }
};

/// Throughput of `bytes` in the column's seconds.
inline Figure Throughput(std::string column, uint64_t bytes, std::string metric = "throughput") {
  return {std::move(metric), "GB/s", std::move(column), static_cast<double>(bytes) / kGb};
}
/// The values of a column as they are, mostly seconds.
inline Figure Value(std::string metric, std::string column, std::string unit = "s") {
  return {std::move(metric), std::move(unit), std::move(column)};
}

/// A row of a suite's table: what a round measures, and the rows that are made of it. The numbers
/// are in a column of the case's name.
struct Case {
  std::string name;
  size_t threads = 1;
  std::function<StatusOr<double>()> work;  ///< returns seconds, or another number
  std::vector<Figure> figures;             ///< none: the case is but a reference of others
  /// A case whose work runs once more right before this one's, so that what disturbs the machine
  /// for a moment disturbs both.
  std::string beside = "";
};

class Bench {
 public:
  Rounds rounds;
  uint64_t seed = 1;
  bool quick = false;  ///< small data and one run, to see whether the suite still works

  /// Whether a case of this name was asked for.
  bool Asked(const std::string& name) const;
  bool AnyAsked(const std::vector<std::string>& names) const;

  /// Calls `round` for each warm-up (whose values are dropped) and each run, up to the first error.
  StatusOr<Series> Measure(const Round& round) const;
  /// Measures one case and adds its rows.
  Status Run(const std::string& name, size_t threads, const std::vector<Figure>& figures,
             const Round& round);
  /// Measures, in the same rounds and in their order, the cases that were asked for and those that
  /// these are compared with; adds the rows of the first.
  Status Run(const std::vector<Case>& cases);
  /// Adds the rows of a case that was measured; none when nobody asked for it.
  void Add(const std::string& name, size_t threads, const Series& series,
           const std::vector<Figure>& figures);
  /// Adds a row that was made elsewhere, if somebody asked for its case.
  void Add(const Row& row) {
    if (Asked(row.name)) report_->Add(row);
  }
  /// Adds a row of one number.
  void AddValue(const std::string& name, std::string metric, double value, std::string unit,
                double at_most = 0, std::string note = "", size_t threads = 1);
  /// Adds how many times as long a column took as `one`. While that is 0 the case is the one that
  /// others are compared with: `one` becomes its median, and no row is added.
  void AddRatio(const std::string& name, std::string metric, const Series& series,
                std::string_view column, double& one, double at_most = 0);
  /// Adds a growth of memory, in MiB; without `bytes` the row says that the kernel did not tell.
  void AddMemory(const std::string& name, std::optional<uint64_t> bytes, double at_most,
                 std::string note = "");
  Report& report() { return *report_; }

 private:
  friend int RunSuite(const std::string& name, const std::string& about,
                      const std::function<void(CLI::App&)>& declare,
                      const std::function<Status(Bench&)>& run, int argc, char** argv);
  std::vector<std::regex> only_;
  std::unique_ptr<Report> report_;
};

/// A whole program: the options that all suites have (--runs, --only, --seed, --quick, --json) and
/// the suite's own, the run, the report. The exit status: 1 when something did not work.
int RunSuite(const std::string& name, const std::string& about,
             const std::function<void(CLI::App&)>& declare,
             const std::function<Status(Bench&)>& run, int argc, char** argv);

/// The same for a suite whose own options are a struct that `declare` binds and `run` gets.
template <typename Options>
int SuiteMain(const char* name, const char* about, void (*declare)(CLI::App&, Options&),
              Status (*run)(const Options&, Bench&), int argc, char** argv) {
  Options options;
  return RunSuite(
      name, about, [&](CLI::App& app) { declare(app, options); },
      [&](Bench& bench) { return run(options, bench); }, argc, argv);
}

template <typename Work>
Status Series::Time(std::string_view name, const Work& work) {
  const auto start = SteadyClock::now();
  if constexpr (std::is_void_v<std::invoke_result_t<const Work&>>) {
    work();
  } else {
    DW_RETURN_IF_ERROR(work());
  }
  Add(name, SecondsSince(start));
  return absl::OkStatus();
}

}  // namespace deltawire::bench
