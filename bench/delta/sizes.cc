// What a workload's changes cost in bits. One pass over each tensor adds up everything in a table
// of sums, and all rows are made from the table of the whole model.
#include <map>

#include "bench/delta/bits.h"
#include "bench/delta/cases.h"
#include "bench/harness/parallel.h"
#include "common/base/of_this_thread.h"

namespace deltawire::bench {
namespace {

using kernels::DecodeStatus;

constexpr double kFastAboveIid = 0.3;      // bits per change
constexpr double kTightOfExponent = 1.04;  // of the bound given the exponent
constexpr double kOfRaw = 1.001;
constexpr Form kFolded[] = {kFast, kTight};

/// Sums by name: "fast bits" and the "fast positions", "fast differences" and "fast rest" of these,
/// "fast fold" and "fast singles" (bytes of one payload for all steps, and of the steps' own),
/// likewise for the other forms; "iid bound bits" and the positions and differences of these, and
/// so the other bounds; "best", bytes of the smallest of all forms and raw, chunk by chunk; "chosen
/// raw" and so on, the changed chunks whose smallest form that is.
using Sums = std::map<std::string, double>;

void AddBits(Sums& sums, const std::string& name, const SplitBits& bits) {
  sums[name + " bits"] += bits.total();
  sums[name + " positions"] += bits.positions;
  sums[name + " differences"] += bits.differences;
  sums[name + " rest"] += bits.rest;
}

// One tensor's share: chunk after chunk, on one thread.
class TensorSums {
 public:
  TensorSums(const Workload& w, const Engine& engine, size_t tensor)
      : w_(w),
        engine_(engine),
        counter_(ClassFunctionOf(w.layout.tensor(tensor).dtype),
                 DTypeBytes(w.layout.tensor(tensor).dtype)) {}

  Status Add(uint32_t chunk) {
    const Chunk& c = w_.chunks[chunk];
    DW_RETURN_IF_ERROR(MakeContexts(chunk));
    const Tally tally = counter_.Add(w_.OldOf(c), w_.NewOf(c), contexts_);
    if (!engine_.payload(kFast, chunk).empty()) {
      for (const Form form : kForms) {
        if (engine_.has(form)) DW_RETURN_IF_ERROR(AddForm(chunk, form, tally));
      }
      AddBest(chunk);
    }
    return engine_.has_history() ? AddFold(chunk) : absl::OkStatus();
  }
  Sums Finish() {
    const Bounds bounds = counter_.Finish();
    AddBits(sums_, "iid bound", bounds.iid);
    AddBits(sums_, "exponent bound", bounds.exponent);
    AddBits(sums_, "history bound", bounds.history);
    return std::move(sums_);
  }

 private:
  Status Check(uint32_t chunk, const char* what, DecodeStatus status) const {
    if (status == DecodeStatus::kOk) return absl::OkStatus();
    return Errorf(StatusCode::kInternal, "{}: {} of chunk {}: {}", w_.name, what, chunk,
                  kernels::ToString(status));
  }
  Status ApplyToData(uint32_t chunk, Bytes payload) {
    uint64_t digest = 0;
    return Check(
        chunk, "decode_apply",
        kernels::Best().decode_apply(w_.key, payload, data_, w_.chunks[chunk].width, 0, &digest));
  }
  Status MakeContexts(uint32_t chunk);
  Status AddForm(uint32_t chunk, Form form, const Tally& tally);
  void AddBest(uint32_t chunk);
  Status AddFold(uint32_t chunk);
  void AddFolded(uint32_t chunk, const char* what, Bytes payload);

  const Workload& w_;
  const Engine& engine_;
  ChangeCounter counter_;
  Sums sums_;
  std::vector<uint8_t> contexts_;
  std::vector<std::byte> data_;
  ScratchMemory scratch_, fold_, undo_;
};

// The newest delta comes last, so that an element gets the context of its last change.
Status TensorSums::MakeContexts(uint32_t chunk) {
  struct Marking {
    std::vector<uint8_t>& contexts;
    unsigned age, width;
  };
  const auto mark = [](void* context, const kernels::BlockChanges& changes) {
    const Marking& m = *static_cast<const Marking*>(context);
    for (size_t i = 0; i < changes.at.size(); ++i) {
      m.contexts[changes.first + changes.at[i]] =
          HistoryContext(m.age, Signed(changes.differences[i], m.width) > 0);
    }
  };
  const Chunk& c = w_.chunks[chunk];
  const auto past = engine_.PastOf(chunk);
  contexts_.assign(c.bytes / c.width, 0);
  for (size_t age = past.size(); age > 0; --age) {
    if (past[age - 1].empty()) continue;
    Marking marking{contexts_, static_cast<unsigned>(age), c.width};
    DW_RETURN_IF_ERROR(Check(
        chunk, "changes",
        kernels::Best().changes(past[age - 1], c.bytes, c.width,
                                scratch_.Sized(kernels::kChangesScratchBytes), mark, &marking)));
  }
  return absl::OkStatus();
}

Status TensorSums::AddForm(uint32_t chunk, Form form, const Tally& tally) {
  const Chunk& c = w_.chunks[chunk];
  const Bytes payload = engine_.payload(form, chunk);
  if (form == kDense) {
    sums_[NameOf(form) + " bits"] +=
        8 * static_cast<double>(payload.empty() ? c.bytes : payload.size());
    return absl::OkStatus();
  }
  const bool as_fast = form == kFast || payload.empty();  // fast is sent then
  DW_ASSIGN_OR_RETURN(const SplitBits parts,
                      as_fast ? SplitFast(engine_.payload(kFast, chunk), c.bytes, c.width)
                              : SplitTight(payload, tally, form == kTightHistory));
  AddBits(sums_, NameOf(form), parts);
  return absl::OkStatus();
}

void TensorSums::AddBest(uint32_t chunk) {
  size_t best = w_.chunks[chunk].bytes;
  std::string name = "raw";
  for (const Form form : kForms) {
    const Bytes payload = engine_.payload(form, chunk);
    if (payload.empty() || payload.size() >= best) continue;
    best = payload.size();
    name = NameOf(form);
  }
  sums_["best"] += static_cast<double>(best);
  ++sums_["chosen " + name];
}

// Adds the size of `payload`, a fast one that applies to data_, and as tight, if that is less.
void TensorSums::AddFolded(uint32_t chunk, const char* what, Bytes payload) {
  sums_[NameOf(kFast) + what] += static_cast<double>(payload.size());
  if (!engine_.has(kTight) || payload.empty()) return;
  const Bytes tight = engine_.Recode(chunk, payload, kTight, data_);
  sums_[NameOf(kTight) + what] +=
      static_cast<double>(tight.empty() ? payload.size() : tight.size());
}

// Undoes the fold to find the oldest bytes, then walks the single deltas to the new ones again.
Status TensorSums::AddFold(uint32_t chunk) {
  const Chunk& c = w_.chunks[chunk];
  std::vector<Bytes> steps;
  for (const auto& delta : w_.deltas) {
    const Bytes payload = Workload::PayloadOf(*delta, chunk);
    if (!payload.empty()) steps.push_back(payload);
  }
  if (steps.empty()) return absl::OkStatus();
  const size_t room = kernels::MaxEncodedBytes(c.bytes, c.width);
  const MutableBytes scratch = scratch_.Sized(kernels::FoldScratchBytes(c.width));
  size_t bytes = 0;
  DW_RETURN_IF_ERROR(
      Check(chunk, "fold",
            kernels::Best().fold(steps, c.bytes, c.width, scratch, fold_.Sized(room), &bytes)));
  const Bytes new_data = w_.NewOf(c), fold = fold_.Sized(room).first(bytes);
  data_.assign(new_data.begin(), new_data.end());
  if (!fold.empty()) {
    const MutableBytes undo = undo_.Sized(room);
    DW_RETURN_IF_ERROR(Check(
        chunk, "negate", kernels::Best().negate(fold, c.bytes, c.width, scratch, undo, &bytes)));
    DW_RETURN_IF_ERROR(ApplyToData(chunk, undo.first(bytes)));
  }
  AddFolded(chunk, " fold", fold);
  for (const Bytes step : steps) {
    AddFolded(chunk, " singles", step);
    DW_RETURN_IF_ERROR(ApplyToData(chunk, step));
  }
  if (std::ranges::equal(data_, new_data)) return absl::OkStatus();
  return Errorf(StatusCode::kDataLoss, "{}: the fold of chunk {} is not the sum of its deltas",
                w_.name, chunk);
}

StatusOr<Sums> AddUp(const Workload& w, const Engine& engine, ThreadPool& pool) {
  std::mutex mu;
  Sums sums;
  const auto add = [&](size_t t) -> Status {
    TensorSums tensor(w, engine, t);
    for (uint32_t i = w.chunks.first_of_tensor(t); i < w.chunks.end_of_tensor(t); ++i) {
      DW_RETURN_IF_ERROR(tensor.Add(i));
    }
    std::lock_guard lock(mu);
    for (const auto& [name, sum] : tensor.Finish()) sums[name] += sum;
    return absl::OkStatus();
  };
  DW_RETURN_IF_ERROR(ForAll(pool, w.layout.size(), add));
  return sums;
}

/// Adds the rows of one workload; all values per change are in bits.
class Rows {
 public:
  Rows(Bench& bench, const Workload& w, Sums sums) : bench_(bench), w_(w), sums_(std::move(sums)) {}

  void AddBounds() {
    const double density = static_cast<double>(w_.changed) / static_cast<double>(w_.elements);
    Add("bits/bounds", "density", density, "");
    Add("bits/bounds", "iid", PerChange("iid bound bits"), "bits");
    AddPerChange("bits/bounds", "exponent", "exponent bound bits", "iid", "iid bound bits");
    if (w_.deltas.size() < 2) return;
    AddPerChange("bits/bounds", "history", "history bound bits", "exponent", "exponent bound bits");
  }

  void AddForm(Form form) {
    static constexpr const char* kBounds[] = {"iid bound", "exponent bound", "history bound",
                                              "iid bound"};
    const std::string own = NameOf(form), name = "bits/" + own, bound = kBounds[form];
    const double exponent = PerChange("exponent bound bits");
    double at_most = 0;
    if (w_.targets.adam && form == kFast) at_most = PerChange(bound + " bits") + kFastAboveIid;
    if (w_.targets.adam && form == kTight) at_most = kTightOfExponent * exponent;
    AddPerChange(name, "per_change", own + " bits", bound, bound + " bits", at_most);
    if (form == kTightHistory) {
      AddPerChange(name, "per_change", own + " bits", "exponent bound", "exponent bound bits",
                   w_.targets.history * exponent);
    } else {
      Add("size/" + own, "of_raw", OfRaw(sums_[own + " bits"] / 8), "", kOfRaw);
    }
    if (form == kDense) return;
    for (const std::string part : {"positions", "differences"}) {
      AddPerChange(name, part, own + " " + part, bound, bound + " " + part);
    }
    Add(name, "rest", PerChange(own + " rest"), "bits");
  }

  void AddFolds() {
    for (const Form form : kFolded) {
      const double singles = sums_[NameOf(form) + " singles"];
      if (singles == 0) continue;
      Add("fold_size/" + NameOf(form), "of_singles", sums_[NameOf(form) + " fold"] / singles, "",
          w_.targets.fold_of_32, fmt::format("{} steps", w_.deltas.size()));
    }
  }

  void AddBest() {
    constexpr std::string_view kChosen = "chosen ";
    std::string chosen;
    for (const auto& [name, count] : sums_) {
      if (!name.starts_with(kChosen)) continue;
      chosen +=
          fmt::format("{}{} {}", chosen.empty() ? "" : ", ", count, name.substr(kChosen.size()));
    }
    Add("size/best", "of_raw", OfRaw(sums_["best"]), "", kOfRaw, chosen);
  }

 private:
  double PerChange(const std::string& sum) { return sums_[sum] / static_cast<double>(w_.changed); }
  double OfRaw(double bytes) const { return bytes / static_cast<double>(w_.bytes()); }
  void Add(const std::string& name, std::string metric, double value, std::string unit,
           double at_most = 0, std::string note = "") {
    bench_.AddValue(name + "/" + w_.name, std::move(metric), value, std::move(unit), at_most,
                    std::move(note));
  }
  /// A row of a sum, which is compared with the sum `against`.
  void AddPerChange(const std::string& name, const std::string& metric, const std::string& sum,
                    const std::string& reference, const std::string& against, double at_most = 0) {
    const double value = PerChange(sum);
    if (value == 0) return Add(name, metric, value, "bits", at_most);  // 0 has no ratio
    Figure figure{.metric = metric, .unit = "bits", .column = sum, .reference = reference};
    figure.AtMost(at_most);
    bench_.Add(Row{std::move(figure), name + "/" + w_.name, 1, Summarize({value}),
                   Summarize({PerChange(against)})});
  }

  Bench& bench_;
  const Workload& w_;
  Sums sums_;
};

}  // namespace

std::vector<std::string> SizeCaseNames(const std::string& workload) {
  std::vector<std::string> out = {"bits/bounds/" + workload, "size/best/" + workload};
  for (const Form form : kForms) {
    out.push_back(fmt::format("bits/{}/{}", NameOf(form), workload));
    if (form != kTightHistory) out.push_back(fmt::format("size/{}/{}", NameOf(form), workload));
  }
  for (const Form form : kFolded) {
    out.push_back(fmt::format("fold_size/{}/{}", NameOf(form), workload));
  }
  return out;
}

Status SizeCases(Bench& bench, const Workload& w, const Engine& engine, ThreadPool& pool) {
  if (!bench.AnyAsked(SizeCaseNames(w.name))) return absl::OkStatus();
  if (w.changed == 0) {
    bench.NotMeasured("bits/" + w.name, "nothing changed between the two versions");
    return absl::OkStatus();
  }
  DW_ASSIGN_OR_RETURN(Sums sums, AddUp(w, engine, pool));
  Rows rows(bench, w, std::move(sums));
  rows.AddBounds();
  for (const Form form : kForms) {
    if (engine.has(form)) rows.AddForm(form);
  }
  rows.AddFolds();
  rows.AddBest();
  return absl::OkStatus();
}

}  // namespace deltawire::bench
