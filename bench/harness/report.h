// Results of a suite: an aligned table on stdout for people, JSON lines in a file for programs.
// Owner: the suite's run. One thread. Rows are printed as they come; Finish counts those that have
// a wanted value. A missed mark is no error: exit codes never depend on times. Errors: Create and
// Finish report a JSON file that cannot be written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace deltawire::bench {

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

struct Row {
  std::string name;  ///< the case
  std::string metric;
  Sample value;
  /// "s" is printed scaled (ms, us), other units as they are; "" for plain numbers. Of "s", "s/GB",
  /// "MiB" and "bits" less is better.
  std::string unit;
  size_t threads = 1;
  std::string reference;  ///< empty: none
  std::optional<Sample> reference_value;
  Wanted wanted;
  std::string note;     ///< a few words that go with the value, in the place of a reference
  bool detail = false;  ///< left out of the table

  /// How many times as good as the reference, by the medians: value / reference for rates, the
  /// reverse for what is better when less. 0 without a reference.
  double Ratio() const;
  bool Met() const;
};

class Report {
 public:
  /// Replaces the file `json`; an empty path: only the table.
  static StatusOr<std::unique_ptr<Report>> Create(std::string suite,
                                                  const std::filesystem::path& json);

  /// A field of every JSON line from now on, e.g. ("seed", 1).
  void Common(const std::string& key, const std::string& value);
  void Common(const std::string& key, uint64_t value);

  void Add(const Row& row);
  /// A case that was left out, and why.
  void NotMeasured(std::string_view name, std::string_view why);
  Status Finish();

 private:
  explicit Report(std::string suite) : suite_(std::move(suite)) {}
  void PrintHeading();
  void Print(const Row& row);
  void Write(const Row& row);

  const std::string suite_;
  std::filesystem::path json_path_;
  std::ofstream json_;
  std::map<std::string, std::string> common_;  // values as JSON
  size_t wanted_ = 0, met_ = 0;                // rows
  bool heading_printed_ = false;
};

}  // namespace deltawire::bench
