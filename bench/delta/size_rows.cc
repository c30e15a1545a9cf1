#include "bench/delta/size_rows.h"

#include "bench/delta/sizes.h"

namespace deltawire::bench {
namespace {

constexpr double kFastAboveIid = 0.3;      // bits per change
constexpr double kTightOfExponent = 1.04;  // of the bound given the exponent
constexpr double kOfRaw = 1.001;
constexpr const char* kNames[] = {"bits/bounds",        "bits/fast",      "bits/tight",
                                  "bits/tight_history", "fold_size/fast", "fold_size/tight",
                                  "size/fast",          "size/tight",     "bits/dense",
                                  "size/dense",         "size/best"};

// Rows of one workload; all values per change are in bits.
class SizeRows {
 public:
  SizeRows(const Suite& suite, const Workload& w, const Sizes& sizes)
      : suite_(suite), w_(w), sizes_(sizes) {}
  void Bits() const;
  void Folds() const;
  void OfRaw() const;

 private:
  double PerChange(double bits) const { return bits / static_cast<double>(w_.changed); }
  void Add(const std::string& name, const char* metric, double value, const char* unit,
           const char* reference = nullptr, double reference_value = 0, double at_most = 0,
           std::string note = "") const;
  void Codec(const std::string& name, const CodecSize& size, const char* reference,
             const SplitBits& bound, double at_most) const;

  const Suite& suite_;
  const Workload& w_;
  const Sizes& sizes_;
};

void SizeRows::Add(const std::string& name, const char* metric, double value, const char* unit,
                   const char* reference, double reference_value, double at_most,
                   std::string note) const {
  Row row;
  row.name = name + "/" + w_.name;
  if (!suite_.options.Asked(row.name)) return;
  row.metric = metric;
  row.value = Summarize({value});
  row.unit = unit;
  row.wanted.value_at_most = at_most;
  row.note = std::move(note);
  if (reference != nullptr && value > 0) {  // nothing cannot be so many times as good
    row.reference = reference;
    row.reference_value = Summarize({reference_value});
  }
  suite_.report.Add(std::move(row));
}

void SizeRows::Codec(const std::string& name, const CodecSize& size, const char* reference,
                     const SplitBits& bound, double at_most) const {
  Add(name, "per_change", PerChange(static_cast<double>(size.bytes) * 8), "bits", reference,
      PerChange(bound.total()), at_most);
  if (!size.no_parts.empty()) {
    suite_.report.NotMeasured(name + "/" + w_.name + " parts", size.no_parts);
    return;
  }
  Add(name, "positions", PerChange(size.parts.positions), "bits", reference,
      PerChange(bound.positions));
  Add(name, "differences", PerChange(size.parts.differences), "bits", reference,
      PerChange(bound.differences));
  Add(name, "rest", PerChange(size.parts.rest), "bits");
}

void SizeRows::Bits() const {
  const Bounds& b = sizes_.bounds;
  const bool adam = w_.targets.adam;
  const double exponent = PerChange(b.exponent.total());
  Add("bits/bounds", "density", static_cast<double>(b.changed) / static_cast<double>(b.elements),
      "");
  Add("bits/bounds", "iid", PerChange(b.iid.total()), "bits");
  Add("bits/bounds", "exponent", exponent, "bits", "iid", PerChange(b.iid.total()));
  Codec("bits/fast", sizes_.fast, "iid bound", b.iid,
        adam ? PerChange(b.iid.total()) + kFastAboveIid : 0);
  if (sizes_.tight) {
    Codec("bits/tight", *sizes_.tight, "exponent bound", b.exponent,
          adam ? kTightOfExponent * exponent : 0);
  }
  if (sizes_.dense) {
    Add("bits/dense", "per_change", PerChange(static_cast<double>(*sizes_.dense) * 8), "bits",
        "iid bound", PerChange(b.iid.total()));
  }
  if (w_.deltas.size() < 2) return;
  Add("bits/bounds", "history", PerChange(b.history.total()), "bits", "exponent", exponent);
  if (!sizes_.tight_history) return;
  Codec("bits/tight_history", *sizes_.tight_history, "history bound", b.history, 0);
  Add("bits/tight_history", "per_change",
      PerChange(static_cast<double>(sizes_.tight_history->bytes) * 8), "bits", "exponent bound",
      exponent, w_.targets.history * exponent);
}

void SizeRows::Folds() const {
  const auto row = [this](const char* name, const std::optional<FoldSize>& fold) {
    if (!fold || fold->singles == 0) return;
    Add(name, "of_singles", fold->ratio(), "", nullptr, 0, w_.targets.fold_of_32,
        fmt::format("{} steps", w_.deltas.size()));
  };
  row("fold_size/fast", sizes_.fold_fast);
  row("fold_size/tight", sizes_.fold_tight);
}

void SizeRows::OfRaw() const {
  const auto of_raw = [this](uint64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(w_.bytes());
  };
  Add("size/fast", "of_raw", of_raw(sizes_.fast.bytes), "", nullptr, 0, kOfRaw);
  if (sizes_.tight)
    Add("size/tight", "of_raw", of_raw(sizes_.tight->bytes), "", nullptr, 0, kOfRaw);
  if (sizes_.dense) Add("size/dense", "of_raw", of_raw(*sizes_.dense), "", nullptr, 0, kOfRaw);
  std::string chosen;
  for (const auto& [name, count] : sizes_.chosen) {
    chosen += fmt::format("{}{} {}", chosen.empty() ? "" : ", ", count, name);
  }
  Add("size/best", "of_raw", of_raw(sizes_.best), "", nullptr, 0, kOfRaw, chosen);
}

}  // namespace

std::vector<std::string> SizeCaseNames(const std::string& workload) {
  std::vector<std::string> out;
  for (const std::string name : kNames) out.push_back(name + "/" + workload);
  return out;
}

Status SizeCases(const Suite& suite, const Workload& w, const Engine& engine) {
  const std::vector<std::string> names = SizeCaseNames(w.name);
  const auto asked = [&](const std::string& name) { return suite.options.Asked(name); };
  if (std::ranges::none_of(names, asked)) return absl::OkStatus();
  if (w.changed == 0) {
    suite.report.NotMeasured("bits/" + w.name, "nothing changed between the two versions");
    return absl::OkStatus();
  }
  DW_ASSIGN_OR_RETURN(const Sizes sizes,
                      MeasureSizes(w, engine, suite.kernels, suite.key, suite.pool));
  const SizeRows rows(suite, w, sizes);
  rows.Bits();
  rows.Folds();
  rows.OfRaw();
  return absl::OkStatus();
}

}  // namespace deltawire::bench
