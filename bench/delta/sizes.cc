// The cost of a workload's changes in bits. One pass over each tensor adds to a table of sums, and
// all rows are made from the table of the whole model.
#include <map>

#include "bench/delta/bits.h"
#include "bench/delta/cases.h"
#include "bench/harness/parallel.h"
#include "common/base/of_this_thread.h"

namespace deltawire::bench {
namespace {

using kernels::DecodeStatus;

constexpr double kFastAboveIid = 0.3;      // bits per change
constexpr double kTightOfExponent = 1.04;  // relative to the bound given the exponent
constexpr double kOfRaw = 1.001;
constexpr Form kFolded[] = {kFast, kTight};

/// Sums by name. For fast: "fast bits" and its parts "fast positions", "fast differences" and "fast
/// rest"; "fast fold" and "fast singles" (bytes of one payload for all steps, and of the steps'
/// own). The same for the other forms. For each bound: "iid bound bits", and its positions and
/// differences. "best" is the bytes of the smallest of all forms and raw, chunk by chunk; "chosen
/// raw" and so on count the changed chunks with that smallest form.
using Sums = std::map<std::string, double>;

void AddBits(Sums& sums, const std::string& name, const SplitBits& bits) {
  sums[name + " bits"] += bits.total();
  sums[name + " positions"] += bits.positions;
  sums[name + " differences"] += bits.differences;
  sums[name + " rest"] += bits.rest;
}

// One tensor's sums: chunk by chunk, on one thread.
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
  const bool as_fast = form == kFast || payload.empty();  // the sender would use fast
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

// Adds the size of the fast payload `payload`, which applies to data_, and its size as tight, if
// smaller.
void TensorSums::AddFolded(uint32_t chunk, const char* what, Bytes payload) {
  sums_[NameOf(kFast) + what] += static_cast<double>(payload.size());
  if (!engine_.has(kTight) || payload.empty()) return;
  const Bytes tight = engine_.Recode(chunk, payload, kTight, data_);
  sums_[NameOf(kTight) + what] +=
      static_cast<double>(tight.empty() ? payload.size() : tight.size());
}

// Undoes the fold to find the oldest bytes, then applies the single deltas to get the new ones
// again.
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

/// Adds the rows of one workload, in bits per changed element.
class Rows {
 public:
  Rows(Bench& bench, const Workload& w, const Sums& sums) : bench_(bench), w_(w), sums_(sums) {
    for (const auto& [name, sum] : sums) series_.Add(name, sum / static_cast<double>(w.changed));
    series_.Add("density", static_cast<double>(w.changed) / static_cast<double>(w.elements));
  }

  void AddBounds() {
    std::vector<Figure> rows = {Value("density", "density", ""),
                                Value("iid", "iid bound bits", "bits"),
                                Bits("exponent", "exponent bound bits", "iid bound bits", "iid")};
    if (w_.deltas.size() > 1) {
      rows.push_back(Bits("history", "history bound bits", "exponent bound bits", "exponent"));
    }
    bench_.Add("bits/bounds/" + w_.name, 1, series_, rows);
  }

  void AddForm(Form form) {
    static constexpr const char* kBounds[] = {"iid bound", "exponent bound", "history bound",
                                              "iid bound"};
    const std::string own = NameOf(form) + " ", bound = kBounds[form];
    const double iid = series_.Of("iid bound bits")[0];
    const double exponent = series_.Of("exponent bound bits")[0];
    std::vector<Figure> rows = {Bits("per_change", own + "bits", bound + " bits", bound)};
    if (w_.targets.adam && form == kFast) rows[0].AtMost(iid + kFastAboveIid);
    if (w_.targets.adam && form == kTight) rows[0].AtMost(kTightOfExponent * exponent);
    if (form == kTightHistory) {
      rows.push_back(Bits("per_change", own + "bits", "exponent bound bits", "exponent bound")
                         .AtMost(w_.targets.history * exponent));
    }
    if (form != kDense) {
      for (const std::string part : {"positions", "differences"}) {
        rows.push_back(Bits(part, own + part, bound + " " + part, bound));
      }
      rows.push_back(Value("rest", own + "rest", "bits"));
    }
    bench_.Add(fmt::format("bits/{}/{}", NameOf(form), w_.name), 1, series_, rows);
    if (form != kTightHistory) AddOfRaw(NameOf(form), sums_.at(own + "bits") / 8);
  }

  void AddFold(Form form) {
    const auto singles = sums_.find(NameOf(form) + " singles");
    if (singles == sums_.end()) return;
    bench_.AddValue(fmt::format("fold_size/{}/{}", NameOf(form), w_.name), "of_singles",
                    sums_.at(NameOf(form) + " fold") / singles->second, "", w_.targets.fold_of_32,
                    fmt::format("{} steps", w_.deltas.size()));
  }

  void AddBest() {
    constexpr std::string_view kChosen = "chosen ";
    std::string chosen;
    for (const auto& [name, count] : sums_) {
      if (!name.starts_with(kChosen)) continue;
      chosen +=
          fmt::format("{}{} {}", chosen.empty() ? "" : ", ", count, name.substr(kChosen.size()));
    }
    AddOfRaw("best", sums_.at("best"), chosen);
  }

 private:
  /// A column of zero bits has no ratio.
  Figure Bits(const std::string& metric, const std::string& column, const std::string& against,
              const std::string& called) const {
    const Figure figure = Value(metric, column, "bits");
    return series_.Of(column)[0] == 0 ? figure : Figure(figure).Against(against, called);
  }
  void AddOfRaw(const std::string& name, double bytes, const std::string& note = "") {
    bench_.AddValue(fmt::format("size/{}/{}", name, w_.name), "of_raw",
                    bytes / static_cast<double>(w_.bytes()), "", kOfRaw, note);
  }

  Bench& bench_;
  const Workload& w_;
  const Sums& sums_;
  Series series_;  // one round: the sums per change
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
  DW_ASSIGN_OR_RETURN(const Sums sums, AddUp(w, engine, pool));
  Rows rows(bench, w, sums);
  rows.AddBounds();
  for (const Form form : kForms) {
    if (engine.has(form)) rows.AddForm(form);
  }
  for (const Form form : kFolded) rows.AddFold(form);
  rows.AddBest();
  return absl::OkStatus();
}

}  // namespace deltawire::bench
