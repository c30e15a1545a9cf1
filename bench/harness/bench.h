// One run of a suite: its command line, the cases asked for, their rounds and results. A case is
// measured beside its references in the same rounds (A, B, A, B ...), so that what disturbs a
// machine for a while disturbs all of them; figures say which rows follow. Rows go into a table on
// stdout and, as JSON lines, into a file. Owner: RunSuite, for one run. Threads: one. Errors: those
// of the suite's own code, and the file's; a slow result or a missed mark is none.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/base/human.h"
#include "common/base/status.h"

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
  /// Adds the seconds that `work` takes, and returns what it returns: a Status, a StatusOr, or
  /// nothing, which is OK.
  template <typename Work>
  auto Time(std::string_view name, const Work& work);
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

struct Sample {
  double median = 0;
  double min = 0;
  double max = 0;
  std::vector<double> runs;  ///< as they came
};
/// REQUIRES: at least one run.
Sample Summarize(std::vector<double> runs);

/// The marks of a row; 0: none. Of ratio_at_least and value_at_least one is enough.
struct Wanted {
  double ratio_at_least = 0;
  double value_at_least = 0;  ///< in the row's unit, like the next
  double value_at_most = 0;   ///< of the greatest of the runs
  bool any() const { return ratio_at_least != 0 || value_at_least != 0 || value_at_most != 0; }
};

/// How a row is made of a column of a case's series, and of the column that it is compared with.
struct Figure {
  std::string metric;
  /// "s" is printed scaled (ms, us), other units as they are; "" for plain numbers. Of "s", "s/GB",
  /// "MiB" and "bits" less is better.
  std::string unit;
  std::string column;
  double rate = 0;             ///< not 0: the value is `rate` / column
  std::string against = "";    ///< a column; if it was not measured, the row has no reference
  std::string reference = "";  ///< what people call that column; empty: its own name
  double reference_rate = 0;   ///< 0: as `rate`
  Wanted wanted = {};
  std::string note = "";  ///< a few words that go with the value, in the place of a reference
  bool detail = false;    ///< left out of the table

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
  Figure& AtMost(double value) {
    wanted.value_at_most = value;
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

/// A figure with its numbers.
struct Row : Figure {
  std::string name;  ///< the case
  size_t threads = 1;
  Sample value;
  std::optional<Sample> reference_value;

  /// How many times as good as the reference, by the medians: value / reference for rates, the
  /// reverse for what is better when less. 0 without a reference.
  double Ratio() const;
  bool Met() const;
};

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
  /// Replaces the file `json`; an empty path: only the table. `only`: regular expressions.
  static StatusOr<std::unique_ptr<Bench>> Create(std::string suite,
                                                 const std::filesystem::path& json,
                                                 const std::vector<std::string>& only = {});
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

  // Each of these adds rows if somebody asked for their case.
  /// The rows of a case that was measured.
  void Add(const std::string& name, size_t threads, const Series& series,
           const std::vector<Figure>& figures);
  /// A row that was made elsewhere.
  void Add(const Row& row);
  /// A row of one number.
  void AddValue(const std::string& name, std::string metric, double value, std::string unit,
                double at_most = 0, std::string note = "", size_t threads = 1);
  /// How many times as long a column took as `one`. While that is 0 the case is the one that others
  /// are compared with: `one` becomes its median, and no row is added.
  void AddRatio(const std::string& name, std::string metric, const Series& series,
                std::string_view column, double& one, double at_most = 0);
  /// A growth of memory, in MiB; without `bytes` a line says that the kernel did not tell.
  void AddMemory(const std::string& name, std::optional<uint64_t> bytes, double at_most,
                 std::string note = "");
  /// A case that was left out, and why.
  void NotMeasured(std::string_view name, std::string_view why);
  /// A field of every JSON line from now on, e.g. ("seed", 1).
  void Common(const std::string& key, const std::string& value);
  void Common(const std::string& key, uint64_t value) { common_[key] = std::to_string(value); }
  /// Says how many marks were met, and that the file is whole.
  Status Finish();

 private:
  explicit Bench(std::string suite) : suite_(std::move(suite)) {}
  void PrintHeading();
  void Print(const Row& row);
  void Write(const Row& row);

  const std::string suite_;
  std::vector<std::regex> only_;
  std::filesystem::path json_path_;
  std::ofstream json_;
  std::map<std::string, std::string> common_;  // values as JSON
  size_t wanted_ = 0, met_ = 0;                // rows
  bool heading_printed_ = false;
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
auto Series::Time(std::string_view name, const Work& work) {
  const auto start = SteadyClock::now();
  if constexpr (std::is_void_v<std::invoke_result_t<const Work&>>) {
    work();
    Add(name, SecondsSince(start));
    return absl::OkStatus();
  } else {
    auto result = work();
    if (result.ok()) Add(name, SecondsSince(start));
    return result;
  }
}

}  // namespace deltawire::bench
