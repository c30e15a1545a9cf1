// One run of a suite: its command line, the requested cases, their rounds and results. A case and
// its references are measured in the same rounds (A, B, A, B ...), so that a disturbance of the
// machine affects all of them; figures describe the rows. Rows go to a table on stdout and, as JSON
// lines, to a file. One thread. Errors are those of the suite's own code, and the file's. A slow
// result or a missed mark is not an error.
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
  /// Adds the seconds of `work`, and returns its result: a Status, a StatusOr, or nothing, which is
  /// OK.
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
  std::vector<double> runs;  ///< in order of time
};
/// REQUIRES: at least one run.
Sample Summarize(std::vector<double> runs);

/// The marks of a row; 0: none. One of ratio_at_least and value_at_least is enough.
struct Wanted {
  double ratio_at_least = 0;
  double value_at_least = 0;  ///< in the row's unit, like the next
  double value_at_most = 0;   ///< the largest of the runs
  bool any() const { return ratio_at_least != 0 || value_at_least != 0 || value_at_most != 0; }
};

/// A row's source: a column of a case's series, and the column that it is compared with.
struct Figure {
  std::string metric;
  /// "s" is printed scaled (ms, us), other units unscaled; "" for plain numbers. For "s", "s/GB",
  /// "MiB" and "bits", less is better.
  std::string unit;
  std::string column;
  double rate = 0;             ///< not 0: the value is `rate` / column
  std::string against = "";    ///< a column; if it was not measured, the row has no reference
  std::string reference = "";  ///< that column's name for people; empty: its own name
  double reference_rate = 0;   ///< 0: same as `rate`
  Wanted wanted = {};
  std::string note = "";  ///< a few words beside the value, in place of a reference
  bool detail = false;    ///< not in the table

  Figure& Against(std::string its_column, std::string called = "") {
    against = std::move(its_column);
    reference = std::move(called);
    return *this;
  }
  /// Gives the reference its own rate, if it moves another number of bytes.
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

/// Returns the throughput of `bytes` in the column's seconds.
inline Figure Throughput(std::string column, uint64_t bytes, std::string metric = "throughput") {
  return {std::move(metric), "GB/s", std::move(column), static_cast<double>(bytes) / kGb};
}
inline Figure Value(std::string metric, std::string column, std::string unit = "s") {
  return {std::move(metric), std::move(unit), std::move(column)};
}

struct Row : Figure {
  std::string name;  ///< the case
  size_t threads = 1;
  Sample value;
  std::optional<Sample> reference_value;

  /// Returns the improvement over the reference, by the medians: value / reference for rates, the
  /// inverse if less is better. 0 without a reference.
  double Ratio() const;
  bool Met() const;
};

/// A row of a suite's table: a round's measurement, and its rows. The column has the case's name.
struct Case {
  std::string name;
  size_t threads = 1;
  std::function<StatusOr<double>()> work;  ///< returns seconds, or another number
  std::vector<Figure> figures;             ///< none: the case is only a reference for others
  /// A case whose work runs once more right before this one's, so that a brief disturbance of the
  /// machine affects both.
  std::string beside = "";
};

class Bench {
 public:
  /// Replaces the file `json`; an empty path: only the table. `only` holds regular expressions.
  static StatusOr<std::unique_ptr<Bench>> Create(std::string suite,
                                                 const std::filesystem::path& json,
                                                 const std::vector<std::string>& only = {});
  Rounds rounds;
  uint64_t seed = 1;
  bool quick = false;  ///< small data and one run, as a quick check of the suite

  bool Asked(const std::string& name) const;
  bool AnyAsked(const std::vector<std::string>& names) const;

  /// Calls `round` for each warm-up, whose values are discarded, and for each run, up to the first
  /// error.
  StatusOr<Series> Measure(const Round& round) const;
  Status Run(const std::string& name, size_t threads, const std::vector<Figure>& figures,
             const Round& round);
  /// Measures the requested cases and their references, in the same rounds and in order. Adds the
  /// rows of the requested ones.
  Status Run(const std::vector<Case>& cases);

  // Each of these adds rows if their case was requested.
  /// Adds the rows of a measured case.
  void Add(const std::string& name, size_t threads, const Series& series,
           const std::vector<Figure>& figures);
  void Add(const Row& row);
  void AddValue(const std::string& name, std::string metric, double value, std::string unit,
                double at_most = 0, std::string note = "", size_t threads = 1);
  /// Adds the ratio of a column to `one`. If that is 0, this case is the reference for others:
  /// `one` becomes its median, and no row is added.
  void AddRatio(const std::string& name, std::string metric, const Series& series,
                std::string_view column, double& one, double at_most = 0);
  /// Adds a growth of memory, in MiB; without `bytes`, a line says that the kernel did not report
  /// it.
  void AddMemory(const std::string& name, std::optional<uint64_t> bytes, double at_most,
                 std::string note = "");
  /// Reports a case that was skipped, and the reason.
  void NotMeasured(std::string_view name, std::string_view why);
  /// Adds a field to every later JSON line, e.g. ("seed", 1).
  void Common(const std::string& key, const std::string& value);
  void Common(const std::string& key, uint64_t value) { common_[key] = std::to_string(value); }
  /// Reports how many marks were met, and that the file is complete.
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

/// Runs a whole program: the options of all suites (--runs, --only, --seed, --quick, --json) and
/// the suite's own, the run, the report. The exit status is 1 on an error.
int RunSuite(const std::string& name, const std::string& about,
             const std::function<void(CLI::App&)>& declare,
             const std::function<Status(Bench&)>& run, int argc, char** argv);

/// Runs a suite whose own options are a struct that `declare` binds and `run` receives.
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
