#include "bench/delta/sizes.h"

#include <map>
#include <mutex>

#include "bench/delta/bounds.h"
#include "bench/delta/payload_parts.h"

namespace deltawire::bench {
namespace {

using kernels::DecodeStatus;

constexpr double kFastAboveIid = 0.3;      // bits per change
constexpr double kTightOfExponent = 1.04;  // of the bound given the exponent
constexpr double kOfRaw = 1.001;

struct FormSize {
  uint64_t bytes = 0;
  PayloadParts parts;
  std::string no_parts;  ///< why a payload could not be read apart, if one could not

  void operator+=(const FormSize& other) {
    bytes += other.bytes;
    parts += other.parts;
    if (!other.no_parts.empty()) no_parts = other.no_parts;
  }
};

/// The sizes of all deltas of a workload that has several.
struct FoldSize {
  uint64_t fold = 0;     ///< bytes of one payload for all steps
  uint64_t singles = 0;  ///< bytes of the steps' own payloads
};

struct Sizes {
  Bounds bounds;
  FormSize forms[std::size(kForms)];
  FoldSize folds[2];                       ///< kFast and kTight
  uint64_t best = 0;                       ///< the smallest of all forms and raw, chunk by chunk
  std::map<std::string, uint64_t> chosen;  ///< changed chunks, by their smallest form

  void operator+=(const Sizes& other) {
    bounds += other.bounds;
    for (const Form form : kForms) forms[form] += other.forms[form];
    for (const Form form : {kFast, kTight}) {
      folds[form].fold += other.folds[form].fold;
      folds[form].singles += other.folds[form].singles;
    }
    best += other.best;
    for (const auto& [name, count] : other.chosen) chosen[name] += count;
  }
};

// One tensor's share: chunk after chunk, on one thread.
class TensorSizes {
 public:
  TensorSizes(const Workload& w, const Engine& engine, size_t tensor)
      : w_(w),
        engine_(engine),
        counter_(ClassFunctionOf(w.layout.tensor(tensor).dtype),
                 DTypeBytes(w.layout.tensor(tensor).dtype)) {}

  Status Add(uint32_t chunk) {
    const Chunk& c = w_.chunks[chunk];
    DW_RETURN_IF_ERROR(MakeContexts(chunk));
    counter_.Add(w_.OldOf(c), w_.NewOf(c), contexts_);
    if (!engine_.payloads(kFast)[chunk].empty()) {
      for (const Form form : kForms) {
        if (engine_.has(form)) sizes_.forms[form] += SizeOf(chunk, form);
      }
      AddBest(chunk);
    }
    return engine_.has_history() ? AddFold(chunk) : absl::OkStatus();
  }
  Sizes Finish() {
    sizes_.bounds = counter_.Finish();
    return std::move(sizes_);
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
  FormSize SizeOf(uint32_t chunk, Form form) const;
  void AddBest(uint32_t chunk);
  Status AddFold(uint32_t chunk);
  StatusOr<size_t> TightBytes(uint32_t chunk, Bytes payload);

  const Workload& w_;
  const Engine& engine_;
  ChangeCounter counter_;
  Sizes sizes_;
  std::vector<uint8_t> contexts_;
  std::vector<std::byte> data_, payload_, other_payload_;
  std::vector<std::byte> scratch_ =
      std::vector<std::byte>(std::max(kernels::kTightScratchBytes, kernels::FoldScratchBytes(8)));
};

// Applied to zeros, a delta gives its differences. The newest delta comes last, so that an element
// gets the context of its last change.
Status TensorSizes::MakeContexts(uint32_t chunk) {
  const Chunk& c = w_.chunks[chunk];
  const auto& past = engine_.PastOf(chunk);
  contexts_.assign(c.bytes / c.width, 0);
  for (size_t age = std::min(kernels::kMaxHistory, past.size()); age > 0; --age) {
    if (past[age - 1].empty()) continue;
    data_.assign(c.bytes, std::byte{0});
    DW_RETURN_IF_ERROR(ApplyToData(chunk, past[age - 1]));
    for (size_t i = 0; i < contexts_.size(); ++i) {
      const uint64_t difference = LoadElement(&data_[i * c.width], c.width);
      if (difference == 0) continue;
      const bool up = SignedDifference(0, difference, c.width) > 0;
      contexts_[i] = HistoryContext(static_cast<unsigned>(age), up);
    }
  }
  return absl::OkStatus();
}

FormSize TensorSizes::SizeOf(uint32_t chunk, Form form) const {
  const Chunk& c = w_.chunks[chunk];
  const Bytes payload = engine_.payloads(form)[chunk];
  if (form == kDense) return {.bytes = payload.empty() ? c.bytes : payload.size()};
  if (payload.empty()) return SizeOf(chunk, kFast);  // fast is sent then
  const std::span<const uint8_t> contexts = contexts_;
  const StatusOr<PayloadParts> parts =
      form == kFast ? SplitFast(payload, c.bytes, c.width)
                    : SplitTight(payload, w_.OldOf(c), w_.NewOf(c), c.width,
                                 form == kTightHistory ? contexts : contexts.first(0));
  if (parts.ok()) return {.bytes = payload.size(), .parts = *parts};
  return {.bytes = payload.size(), .no_parts = std::string(MessageOf(parts.status()))};
}

void TensorSizes::AddBest(uint32_t chunk) {
  size_t best = w_.chunks[chunk].bytes;
  std::string name = "raw";
  for (const Form form : kForms) {
    const auto& payload = engine_.payloads(form)[chunk];
    if (payload.empty() || payload.size() >= best) continue;
    best = payload.size();
    name = NameOf(form);
  }
  sizes_.best += best;
  ++sizes_.chosen[name];
}

// The size of `payload`, a fast one that applies to data_, as tight, or as it is if that is less.
StatusOr<size_t> TensorSizes::TightBytes(uint32_t chunk, Bytes payload) {
  const Chunk& c = w_.chunks[chunk];
  other_payload_.resize(std::max(other_payload_.size(), payload.size()));
  size_t bytes = 0;
  DW_RETURN_IF_ERROR(Check(chunk, "tight_encode",
                           kernels::Best().tight_encode(data_, payload, c.width, w_.function(c), {},
                                                        scratch_, other_payload_, &bytes)));
  return bytes == 0 ? payload.size() : bytes;
}

// Undoes the fold to find the oldest bytes, then walks the single deltas to the new ones again.
Status TensorSizes::AddFold(uint32_t chunk) {
  const Chunk& c = w_.chunks[chunk];
  std::vector<Bytes> steps;
  for (const Delta& d : w_.deltas) {
    if (!d[chunk].empty()) steps.push_back(d[chunk]);
  }
  if (steps.empty()) return absl::OkStatus();
  payload_.resize(kernels::MaxEncodedBytes(c.bytes, c.width));
  other_payload_.resize(payload_.size());
  size_t fold_bytes = 0, negated_bytes = 0;
  DW_RETURN_IF_ERROR(
      Check(chunk, "fold",
            kernels::Best().fold(steps, c.bytes, c.width, scratch_, payload_, &fold_bytes)));
  const Bytes new_data = w_.NewOf(c), fold = Bytes(payload_).first(fold_bytes);
  data_.assign(new_data.begin(), new_data.end());
  if (fold_bytes > 0) {
    DW_RETURN_IF_ERROR(Check(
        chunk, "negate",
        kernels::Best().negate(fold, c.bytes, c.width, scratch_, other_payload_, &negated_bytes)));
    DW_RETURN_IF_ERROR(ApplyToData(chunk, Bytes(other_payload_).first(negated_bytes)));
  }
  const auto count = [&](uint64_t FoldSize::*sum, Bytes payload) -> Status {
    sizes_.folds[kFast].*sum += payload.size();
    if (!engine_.has(kTight) || payload.empty()) return absl::OkStatus();
    DW_ASSIGN_OR_RETURN(const size_t bytes, TightBytes(chunk, payload));
    sizes_.folds[kTight].*sum += bytes;
    return absl::OkStatus();
  };
  DW_RETURN_IF_ERROR(count(&FoldSize::fold, fold));
  for (size_t i = steps.size(); i-- > 0;) {
    DW_RETURN_IF_ERROR(count(&FoldSize::singles, steps[i]));
    DW_RETURN_IF_ERROR(ApplyToData(chunk, steps[i]));
  }
  if (std::ranges::equal(data_, new_data)) return absl::OkStatus();
  return Errorf(StatusCode::kDataLoss, "{}: the fold of chunk {} is not the sum of its deltas",
                w_.name, chunk);
}

StatusOr<Sizes> MeasureSizes(const Workload& w, const Engine& engine, ThreadPool& pool) {
  std::mutex mu;
  Sizes sum;
  Status first_error;
  pool.ParallelFor(w.layout.size(), [&](size_t t) {
    TensorSizes tensor(w, engine, t);
    Status status;
    for (uint32_t i = w.chunks.first_of_tensor(t); i < w.chunks.end_of_tensor(t); ++i) {
      status = tensor.Add(i);
      if (!status.ok()) break;
    }
    const Sizes sizes = tensor.Finish();
    std::lock_guard lock(mu);
    first_error.Update(status);
    sum += sizes;
  });
  DW_RETURN_IF_ERROR(first_error);
  return sum;
}

/// What a row is compared with, if anything.
struct Against {
  const char* name = nullptr;
  double value = 0;
};

// Rows of one workload; all values per change are in bits.
class SizeRows {
 public:
  SizeRows(Bench& bench, const Workload& w, const Sizes& sizes)
      : bench_(bench), w_(w), sizes_(sizes) {}
  void AddBounds() const;
  void AddForm(Form form) const;
  void AddFold(Form form) const;
  void AddBest() const;

 private:
  double PerChange(double bits) const { return bits / static_cast<double>(w_.changed); }
  double OfRaw(uint64_t bytes) const {
    return static_cast<double>(bytes) / static_cast<double>(w_.bytes());
  }
  void Add(const std::string& name, const char* metric, double value, const char* unit,
           Against against = {}, double at_most = 0, std::string note = "") const;

  Bench& bench_;
  const Workload& w_;
  const Sizes& sizes_;
};

void SizeRows::Add(const std::string& name, const char* metric, double value, const char* unit,
                   Against against, double at_most, std::string note) const {
  Row row{
      .name = name + "/" + w_.name, .metric = metric, .value = Summarize({value}), .unit = unit};
  if (!bench_.Asked(row.name)) return;
  row.wanted.value_at_most = at_most;
  row.note = std::move(note);
  if (against.name != nullptr && value > 0) {  // a value of 0 has no ratio
    row.reference = against.name;
    row.reference_value = Summarize({against.value});
  }
  bench_.report().Add(std::move(row));
}

void SizeRows::AddBounds() const {
  const Bounds& b = sizes_.bounds;
  const double iid = PerChange(b.iid.total()), exponent = PerChange(b.exponent.total());
  Add("bits/bounds", "density", static_cast<double>(b.changed) / static_cast<double>(b.elements),
      "");
  Add("bits/bounds", "iid", iid, "bits");
  Add("bits/bounds", "exponent", exponent, "bits", {"iid", iid});
  if (w_.deltas.size() < 2) return;
  Add("bits/bounds", "history", PerChange(b.history.total()), "bits", {"exponent", exponent});
}

void SizeRows::AddForm(Form form) const {
  struct Kind {
    const char* bound;
    SplitBits Bounds::*bits;
  };
  static constexpr Kind kKinds[] = {{"iid bound", &Bounds::iid},
                                    {"exponent bound", &Bounds::exponent},
                                    {"history bound", &Bounds::history},
                                    {"iid bound", &Bounds::iid}};
  const std::string name = "bits/" + NameOf(form);
  const FormSize& size = sizes_.forms[form];
  const SplitBits& bound = sizes_.bounds.*kKinds[form].bits;
  const char* const reference = kKinds[form].bound;
  const double bits = PerChange(static_cast<double>(size.bytes) * 8);
  const double exponent = PerChange(sizes_.bounds.exponent.total());
  double at_most = 0;
  if (w_.targets.adam && form == kFast) at_most = PerChange(bound.total()) + kFastAboveIid;
  if (w_.targets.adam && form == kTight) at_most = kTightOfExponent * exponent;
  Add(name, "per_change", bits, "bits", {reference, PerChange(bound.total())}, at_most);
  if (form == kTightHistory) {
    Add(name, "per_change", bits, "bits", {"exponent bound", exponent},
        w_.targets.history * exponent);
  } else {
    Add("size/" + NameOf(form), "of_raw", OfRaw(size.bytes), "", {}, kOfRaw);
  }
  if (form == kDense) return;
  if (!size.no_parts.empty()) {
    return bench_.report().NotMeasured(name + "/" + w_.name + " parts", size.no_parts);
  }
  Add(name, "positions", PerChange(size.parts.positions), "bits",
      {reference, PerChange(bound.positions)});
  Add(name, "differences", PerChange(size.parts.differences), "bits",
      {reference, PerChange(bound.differences)});
  Add(name, "rest", PerChange(size.parts.rest), "bits");
}

void SizeRows::AddFold(Form form) const {
  const FoldSize& size = sizes_.folds[form];
  if (size.singles == 0) return;
  Add("fold_size/" + NameOf(form), "of_singles",
      static_cast<double>(size.fold) / static_cast<double>(size.singles), "", {},
      w_.targets.fold_of_32, fmt::format("{} steps", w_.deltas.size()));
}

void SizeRows::AddBest() const {
  std::string chosen;
  for (const auto& [name, count] : sizes_.chosen) {
    chosen += fmt::format("{}{} {}", chosen.empty() ? "" : ", ", count, name);
  }
  Add("size/best", "of_raw", OfRaw(sizes_.best), "", {}, kOfRaw, chosen);
}

}  // namespace

std::vector<std::string> SizeCaseNames(const std::string& workload) {
  std::vector<std::string> out;
  for (const std::string name : {"bits/bounds", "bits/fast", "bits/tight", "bits/tight_history",
                                 "bits/dense", "fold_size/fast", "fold_size/tight", "size/fast",
                                 "size/tight", "size/dense", "size/best"}) {
    out.push_back(name + "/" + workload);
  }
  return out;
}

Status SizeCases(Bench& bench, const Workload& w, const Engine& engine, ThreadPool& pool) {
  if (!bench.AnyAsked(SizeCaseNames(w.name))) return absl::OkStatus();
  if (w.changed == 0) {
    bench.report().NotMeasured("bits/" + w.name, "nothing changed between the two versions");
    return absl::OkStatus();
  }
  DW_ASSIGN_OR_RETURN(const Sizes sizes, MeasureSizes(w, engine, pool));
  const SizeRows rows(bench, w, sizes);
  rows.AddBounds();
  for (const Form form : kForms) {
    if (engine.has(form)) rows.AddForm(form);
  }
  for (const Form form : {kFast, kTight}) rows.AddFold(form);
  rows.AddBest();
  return absl::OkStatus();
}

}  // namespace deltawire::bench
