// Plan::Make: evaluates a family's expressions for every layer and gives every HF tensor its place.
#include <algorithm>
#include <unordered_set>

#include "sender/export/mcore/hf_tensors.h"
#include "sender/export/mcore/plan.h"

namespace deltawire::mcore {
namespace {

/// How names end that only quantised checkpoints have: fp8 in blocks, MXFP4, GPTQ, AWQ,
/// compressed-tensors. The quantization_config of config.json does not tell, since it often stays
/// behind when a checkpoint is turned into bf16.
constexpr std::string_view kQuantisedEnds[] = {"_scale_inv",   "_proj_blocks", ".qweight",
                                               ".qzeros",      ".g_idx",       ".weight_packed",
                                               ".weight_scale"};

std::string Replace(std::string text, std::string_view what, std::string_view with) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at)) {
    text.replace(at, what.size(), with);
    at += with.size();
  }
  return text;
}

Split SplitOf(const std::string& text) {
  return text == "rows" ? Split::kRows : text == "columns" ? Split::kColumns : Split::kNone;
}

}  // namespace

class Planner {
 public:
  Planner(const Family& family, const HfConfig& config, const ParallelConfig& parallel,
          const Layout* listing)
      : family_(family), config_(config), listing_(listing), scope_(config, family.dims) {
    plan_.family_ = &family;
    plan_.parallel_ = parallel;
  }

  StatusOr<Plan> Make() {
    FindRoot();
    Settings();
    DW_RETURN_IF_ERROR(RefuseQuantised());
    DW_RETURN_IF_ERROR(Sizes());
    DW_RETURN_IF_ERROR(TakeMtpFromListing());
    DW_ASSIGN_OR_RETURN(chunks_, CutPipeline(plan_.parallel_, layers_, mtp_layers_));
    DW_RETURN_IF_ERROR(Whole(ParamScope::kEmbedding, &PipelineChunk::embedding));
    for (uint32_t c = 0; c < chunks_.size(); ++c) {
      for (uint32_t i = 0; i < chunks_[c].layers; ++i) {
        DW_RETURN_IF_ERROR(Layer({c, chunks_[c].first_layer + i, i}));
      }
    }
    DW_RETURN_IF_ERROR(Whole(ParamScope::kFinalNorm, &PipelineChunk::final_norm));
    DW_RETURN_IF_ERROR(Whole(ParamScope::kHead, &PipelineChunk::head));
    for (uint32_t c = 0; c < chunks_.size(); ++c) {
      for (uint32_t i = 0; i < chunks_[c].mtp_layers; ++i) {
        DW_RETURN_IF_ERROR(MtpLayer({c, chunks_[c].first_mtp + i, i}));
      }
    }
    DW_RETURN_IF_ERROR(LeaveMtp());
    DW_RETURN_IF_ERROR(Tower());
    DW_RETURN_IF_ERROR(PassThrough());
    DW_RETURN_IF_ERROR(FinishTensors());
    plan_.by_chunk_.resize(chunks_.size());
    for (uint32_t s = 0; s < plan_.planned_.size(); ++s) {
      plan_.by_chunk_[plan_.planned_[s].chunk].push_back(s);
    }
    return std::move(plan_);
  }

 private:
  /// The place of a layer's parameter.
  struct Place {
    uint32_t chunk = 0, layer = 0, local = 0;
    bool mtp = false;
    uint32_t inner = 0;  // of an MTP layer
  };
  /// What HF names begin with: of several, the first that the checkpoint has layers under.
  void FindRoot() {
    root_ = family_.names.root.front();
    if (listing_ == nullptr) return;
    for (const std::string& root : family_.names.root) {
      const std::string layers = Named(family_.names.layer_hf, {}, 0, root);
      const auto& tensors = listing_->tensors();
      if (std::any_of(tensors.begin(), tensors.end(),
                      [&](const TensorMeta& t) { return t.name.starts_with(layers); })) {
        root_ = root;
        return;
      }
    }
  }

  /// Sets "listed.NAME" for expressions. Without a checkpoint it is missing, like an absent field.
  void SetListed(const Place& at) {
    if (listing_ == nullptr) return;
    for (const auto& [key, pattern] : family_.listed) {
      const std::string prefix = at.mtp ? family_.names.mtp_hf : family_.names.layer_hf;
      const std::string name = Named(Replace(pattern, "{layer}", prefix), at, 0, root_);
      const std::optional<size_t> found = listing_->Find(name);
      scope_.Set("listed." + key, found ? 1 : 0);
      for (size_t i = 0; i < 3; ++i) {
        const bool has = found && i < listing_->tensor(*found).shape.size();
        scope_.Set(fmt::format("listed.{}.{}", key, i),
                   has ? static_cast<double>(listing_->tensor(*found).shape[i]) : 0);
      }
    }
  }

  void Settings() {
    SetListed({});
    const ParallelConfig& p = plan_.parallel_;
    for (const auto& [name, value] : {std::pair<const char*, double>{"tp", p.tp},
                                      {"etp", p.etp},
                                      {"ep", p.ep},
                                      {"pp", p.pp},
                                      {"te", p.spec == Spec::kTransformerEngine},
                                      {"glu_interleave", p.glu_interleave},
                                      {"shared_glu_interleave", p.shared_glu_interleave},
                                      {"mla_down_fusion", p.mla_down_fusion},
                                      {"core", p.core.minor},
                                      {"mtp", 0},
                                      {"inner", 0}}) {
      scope_.Set(name, value);
    }
  }

  Status Sizes() {
    const auto size = [&](const char* dim, auto* to) -> Status {
      StatusOr<uint64_t> value = scope_.SizeOf(family_.dims.at(dim));
      if (!value.ok()) return Annotate(value.status(), family_.source);
      *to = static_cast<std::remove_pointer_t<decltype(to)>>(*value);
      return absl::OkStatus();
    };
    DW_RETURN_IF_ERROR(size("layers", &layers_));
    DW_RETURN_IF_ERROR(size("mtp_layers", &mtp_layers_));
    DW_RETURN_IF_ERROR(size("experts", &experts_));
    DW_RETURN_IF_ERROR(size("vocab", &vocab_));
    if (family_.dims.contains(kInnerLayersDim)) {
      DW_RETURN_IF_ERROR(size(kInnerLayersDim, &inner_layers_));
    }
    plan_.experts_ = experts_;
    const ParallelConfig& p = plan_.parallel_;
    if (!p.mtp) std::swap(mtp_layers_, left_mtp_layers_);
    DW_RETURN_IF_ERROR(CheckRules());
    if (layers_ == 0 || layers_ > 100'000) {
      return Errorf(StatusCode::kInvalidArgument, "config.json: {} layers", layers_);
    }
    const uint64_t unit = uint64_t{p.vocab_divisor} * p.tp;
    padded_vocab_ = p.padded_vocab != 0 ? p.padded_vocab : (vocab_ + unit - 1) / unit * unit;
    if (padded_vocab_ < vocab_) {
      return Errorf(StatusCode::kInvalidArgument,
                    "padded_vocab={} is less than the vocabulary of {}", padded_vocab_, vocab_);
    }
    return absl::OkStatus();
  }

  /// Checks the family's rules: megatron-core's demands on a model and its parallel config.
  Status CheckRules() {
    for (const Rule& rule : family_.rules) {
      StatusOr<bool> holds = scope_.IsTrue(rule.that);
      if (!holds.ok()) return Annotate(holds.status(), family_.source);
      if (*holds) continue;
      std::string why = rule.otherwise;
      for (size_t at = why.find('{'); at != std::string::npos; at = why.find('{', at + 1)) {
        const size_t end = why.find('}', at);
        DW_ASSIGN_OR_RETURN(const uint64_t value, scope_.Size(why.substr(at + 1, end - at - 1)));
        why.replace(at, end + 1 - at, std::to_string(value));
      }
      return absl::InvalidArgumentError(why);
    }
    return absl::OkStatus();
  }

  /// Adds parameters that occur once in the model, on the chunk that `member` marks.
  Status Whole(ParamScope scope, bool PipelineChunk::*member) {
    for (uint32_t c = 0; c < chunks_.size(); ++c) {
      // The MTP layers' stage holds a copy of the embedding, which they need; older versions also
      // gave it one of the output layer (gpt_model.py, setup_embeddings_and_output_layer).
      const bool copy = chunks_[c].mtp_layers > 0 && scope != ParamScope::kFinalNorm;
      if (!(chunks_[c].*member) && !copy) continue;
      const bool made = chunks_[c].*member || scope != ParamScope::kHead ||
                        plan_.parallel_.core.minor < CoreVersion::kMtpWithoutHead;
      SetListed({});
      scope_.SetLayer(0);
      for (const Param& param : family_.params) {
        if (param.scope != scope) continue;
        // A Copy whose name has {l} occurs in every MTP layer.
        const bool in_mtp =
            !param.parts.empty() && param.parts[0].hf.find("{l}") != std::string::npos;
        const uint32_t begin = in_mtp ? layers_ : 0;
        const uint32_t end = in_mtp ? layers_ + mtp_layers_ + left_mtp_layers_ : 1;
        for (uint32_t l = begin; l < end; ++l) {
          const size_t before = plan_.planned_.size();
          DW_RETURN_IF_ERROR(AddIf(param, {c, l, 0, false}, 0, /*held=*/!(chunks_[c].*member)));
          if (plan_.planned_.size() > before) plan_.planned_.back().made = made;
        }
      }
    }
    return absl::OkStatus();
  }

  Status MtpLayer(Place at) {
    at.mtp = true;
    for (at.inner = 0; at.inner < inner_layers_; ++at.inner) DW_RETURN_IF_ERROR(Layer(at));
    return absl::OkStatus();
  }

  Status Layer(const Place& at) {
    scope_.Set("mtp", at.mtp);
    scope_.Set("inner", at.inner);
    SetListed(at);
    const uint32_t number = at.mtp ? layers_ + HfLayer(at) : at.layer;
    // Lists of a family with several inner layers are about these.
    const bool own_lists = at.mtp && family_.dims.contains(kInnerLayersDim);
    scope_.SetLayer(number, own_lists ? at.inner : number);
    for (const Param& param : family_.params) {
      if (param.scope == ParamScope::kLayer || (param.scope == ParamScope::kMtp && at.mtp)) {
        DW_RETURN_IF_ERROR(AddIf(param, at, 0));
      }
    }
    for (const Param& param : family_.params) {
      if (param.scope == ParamScope::kExpert) DW_RETURN_IF_ERROR(AddExperts(param, at));
    }
    scope_.Set("mtp", 0);
    scope_.Set("inner", 0);
    return absl::OkStatus();
  }

  /// The layer's number in HF names, which count the inner layers of all MTP layers.
  uint32_t HfLayer(const Place& at) const {
    return at.mtp ? at.layer * inner_layers_ + at.inner : at.layer;
  }

  /// The names of the HF tensors that `layers` MTP layers make. Does not change the plan.
  StatusOr<std::vector<std::string>> MtpTensors(uint32_t layers) {
    const size_t planned = plan_.planned_.size(), tensors = tensors_.size();
    for (uint32_t i = 0; i < layers; ++i) {
      DW_RETURN_IF_ERROR(MtpLayer({0, i, i}));
    }
    plan_.planned_.resize(planned);
    return tensors_.Shrink(tensors);
  }

  /// MTP layers that the job lacks stay as they are in the checkpoint.
  Status LeaveMtp() {
    DW_ASSIGN_OR_RETURN(const std::vector<std::string> names, MtpTensors(left_mtp_layers_));
    left_.insert(names.begin(), names.end());
    return absl::OkStatus();
  }

  /// Re-saved checkpoints may have lost the MTP layers that config.json still states (transformers
  /// 5 does not load them), so the tensors decide.
  Status TakeMtpFromListing() {
    if (listing_ == nullptr || mtp_layers_ == 0) return absl::OkStatus();
    DW_ASSIGN_OR_RETURN(const std::vector<std::string> names, MtpTensors(mtp_layers_));
    if (std::any_of(names.begin(), names.end(),
                    [&](const std::string& name) { return listing_->Find(name).has_value(); })) {
      return absl::OkStatus();
    }
    plan_.notes_.push_back(
        fmt::format("config.json states {} MTP layers, and the checkpoint has none of their "
                    "tensors: planned without (as with mtp=false)",
                    mtp_layers_));
    mtp_layers_ = 0;
    return absl::OkStatus();
  }

  Status RefuseQuantised() const {
    if (listing_ == nullptr) return absl::OkStatus();
    for (const TensorMeta& t : listing_->tensors()) {
      const bool quantised =
          t.dtype == DType::kF8E4M3 || t.dtype == DType::kF8E5M2 ||
          std::any_of(std::begin(kQuantisedEnds), std::end(kQuantisedEnds),
                      [&](std::string_view end) { return t.name.ends_with(end); });
      if (!quantised) continue;
      return Errorf(StatusCode::kInvalidArgument,
                    "the checkpoint is quantised ({} is {}), which no trainer's parameters make: "
                    "use the model's bf16 checkpoint",
                    t.name, DTypeName(t.dtype));
    }
    return absl::OkStatus();
  }

  StatusOr<bool> Holds(const Param& param) {
    StatusOr<bool> holds = scope_.IsTrue(param.when);
    if (!holds.ok()) return Annotate(holds.status(), param.source);
    return holds;
  }

  Status AddIf(const Param& param, const Place& at, uint32_t expert, bool held = false) {
    DW_ASSIGN_OR_RETURN(const bool holds, Holds(param));
    if (!holds) return absl::OkStatus();
    DW_ASSIGN_OR_RETURN(PlannedParam planned, MakePlanned(param, at, expert, held));
    plan_.planned_.push_back(std::move(planned));
    return absl::OkStatus();
  }

  /// Expressions do not depend on the expert, so they are evaluated for the first only.
  Status AddExperts(const Param& param, const Place& at) {
    DW_ASSIGN_OR_RETURN(const bool holds, Holds(param));
    if (!holds || experts_ == 0) return absl::OkStatus();
    if (experts_ % plan_.parallel_.ep != 0) {
      return Errorf(StatusCode::kInvalidArgument, "{} experts cannot be cut into ep={}", experts_,
                    plan_.parallel_.ep);
    }
    DW_ASSIGN_OR_RETURN(const PlannedParam first, MakePlanned(param, at, 0, false));
    plan_.planned_.push_back(first);
    for (uint32_t e = 1; e < experts_; ++e) {
      PlannedParam planned = first;
      planned.expert = e;
      for (size_t i = 0, p = 0; p < param.parts.size(); ++p) {
        if (Absent(param, param.parts[p], at, e)) continue;
        RowPart& part = planned.cut.parts[i++];
        if (!param.packed.empty()) {
          part.lead = e;
        } else {
          HfTensor like = tensors_[part.tensor];
          like.name = HfName(param, param.parts[p], at, e);
          DW_ASSIGN_OR_RETURN(part.tensor, tensors_.Intern(std::move(like)));
        }
      }
      plan_.planned_.push_back(std::move(planned));
    }
    return absl::OkStatus();
  }

  /// Whether this checkpoint lacks the part's tensor, and the part is optional.
  bool Absent(const Param& param, const Part& part, const Place& at, uint32_t expert) const {
    return part.only_listed &&
           (listing_ == nullptr || !listing_->Find(HfName(param, part, at, expert)));
  }

  std::string HfName(const Param& param, const Part& part, const Place& at, uint32_t expert) const {
    const Names& names = family_.names;
    std::string name = part.hf;
    if (param.scope == ParamScope::kLayer || param.scope == ParamScope::kExpert) {
      name = (at.mtp ? names.mtp_hf : names.layer_hf) + name;
    }
    return Named(std::move(name), at, expert, root_);
  }

  /// `name` with its placeholders replaced.
  std::string Named(std::string name, const Place& at, uint32_t expert,
                    const std::string& root) const {
    if (name.find('{') == std::string::npos) return name;
    name = Replace(std::move(name), "{root}", root);
    const uint32_t layer = HfLayer(at);
    name = Replace(std::move(name), "{n}", std::to_string(layer));
    name = Replace(std::move(name), "{l}", std::to_string(at.mtp ? layers_ + layer : layer));
    name = Replace(std::move(name), "{L}", std::to_string(layers_));
    return Replace(std::move(name), "{e}", std::to_string(expert));
  }

  StatusOr<PlannedParam> MakePlanned(const Param& param, const Place& at, uint32_t expert,
                                     bool held) {
    PlannedParam planned;
    planned.param = &param;
    planned.chunk = at.chunk;
    planned.layer = at.layer;
    planned.local = at.local;
    planned.mtp = at.mtp;
    planned.inner = at.inner;
    planned.expert = expert;
    planned.exported = !param.drop && !held;
    planned.dtype = param.dtype.value_or(config_.dtype());
    planned.add = static_cast<int8_t>(param.add);
    if (param.parts.empty()) return planned;
    const Status cut = Cut(param, at, expert, &planned);
    if (!cut.ok())
      return Annotate(cut, fmt::format("{}: {}", param.source, param.mcore.forms[0][0]));
    return planned;
  }

  Status Cut(const Param& param, const Place& at, uint32_t expert, PlannedParam* planned) {
    const ParallelConfig& p = plan_.parallel_;
    ParamCut& cut = planned->cut;
    const Spelling& split = param.split;
    cut.split = SplitOf(split.Own(p.spec, p.experts).front());
    planned->other_split = SplitOf(split.Other(p.spec, p.experts).front());
    cut.world = plan_.World(*planned, cut.split);
    cut.per_shard = param.per_shard;
    cut.swap_halves = param.swap_halves;
    cut.flat = param.cols.empty();
    if (!cut.flat) {
      DW_ASSIGN_OR_RETURN(cut.cols, scope_.Size(param.cols));
    }
    DW_ASSIGN_OR_RETURN(cut.groups, scope_.Size(param.groups));
    DW_ASSIGN_OR_RETURN(cut.block, scope_.Size(param.block));
    TensorView view;
    view.cols = cut.cols;
    DW_ASSIGN_OR_RETURN(view.transpose, scope_.IsTrue(param.transpose));
    if (!param.packed.empty()) {
      DW_ASSIGN_OR_RETURN(view.packed, scope_.Size(param.packed));
    }
    std::vector<uint64_t> shape;
    for (const std::string& dim : param.shape) {
      DW_ASSIGN_OR_RETURN(shape.emplace_back(), scope_.Size(dim));
    }
    planned->shape = shape;
    for (const Part& part : param.parts) {
      if (Absent(param, part, at, expert)) continue;
      RowPart row;
      DW_ASSIGN_OR_RETURN(row.rows, scope_.Size(part.rows));
      DW_ASSIGN_OR_RETURN(row.at, scope_.Size(part.at));
      DW_ASSIGN_OR_RETURN(const uint64_t runs, scope_.Size(part.runs));
      if (!part.pitch.empty()) {
        DW_ASSIGN_OR_RETURN(row.pitch, scope_.Size(part.pitch));
      }
      DW_ASSIGN_OR_RETURN(row.repeat, scope_.Size(part.repeat));
      row.filled = part.filled || part.zero;
      row.zero = part.zero;
      row.run = runs == 0 ? 0 : row.rows / runs;
      row.lead = param.packed.empty() ? 0 : expert;
      if (part.zero) {
        // Its tensor is the parameter's first, so that whoever asks for a dtype gets an answer.
        if (!cut.parts.empty()) row.tensor = cut.parts.front().tensor;
        cut.rows += row.rows;
        cut.parts.push_back(row);
        continue;
      }
      HfTensor tensor{HfName(param, part, at, expert),
                      part.dtype ? *part.dtype : planned->dtype,
                      view,
                      cut.flat,
                      !param.packed.empty(),
                      param.shape.empty() ? std::nullopt : std::optional(shape)};
      // A pitch covers every run, so its rows are known; else they grow with the parts.
      tensor.view.pitch = row.pitch;
      tensor.view.rows = row.pitch != 0 ? runs * row.pitch : row.at + row.hf_rows();
      DW_ASSIGN_OR_RETURN(row.tensor, tensors_.Intern(std::move(tensor)));
      cut.rows += row.rows;
      cut.parts.push_back(row);
    }
    if (param.padded) cut.rows = padded_vocab_;
    if (std::ranges::all_of(cut.parts, &RowPart::zero)) planned->exported = false;
    return CheckCut(cut);
  }

  /// Adds the trainer's own modules of another part of the model, on the embedding's chunk.
  Status Tower() {
    if (!plan_.parallel_.vision) return absl::OkStatus();
    SetListed({});
    scope_.SetLayer(0);
    for (const Param& param : family_.params) {
      if (param.scope != ParamScope::kTower) continue;
      DW_ASSIGN_OR_RETURN(const bool holds, Holds(param));
      if (!holds) continue;
      StatusOr<uint64_t> count = scope_.Size(param.repeat);
      if (!count.ok()) return Annotate(count.status(), param.source);
      for (uint32_t n = 0; n < *count; ++n) {
        DW_RETURN_IF_ERROR(AddIf(param, {EmbeddingChunk(), n, n, false}, 0));
      }
    }
    return absl::OkStatus();
  }

  uint32_t EmbeddingChunk() const {
    const auto first = std::find_if(chunks_.begin(), chunks_.end(),
                                    [](const PipelineChunk& c) { return c.embedding; });
    return static_cast<uint32_t>(first - chunks_.begin());
  }

  /// Copies of parameters of which only the checkpoint knows names and shapes.
  Status PassThrough() {
    if (listing_ == nullptr) return absl::OkStatus();
    for (const Passthrough& pass : family_.passthrough) {
      for (const TensorMeta& meta : listing_->tensors()) {
        if (!meta.name.starts_with(pass.hf) || tensors_.contains(meta.name)) continue;
        if (!plan_.parallel_.vision) {
          left_.insert(meta.name);
          continue;
        }
        uint64_t elements = 1;
        for (const uint64_t n : meta.shape) elements *= n;
        HfTensor tensor{meta.name, meta.dtype, {}, false, false, meta.shape};
        tensor.view.rows = elements;
        PlannedParam planned;
        planned.param = nullptr;
        planned.dtype = meta.dtype;
        for (const std::string& prefix : pass.mcore) {
          planned.pass.push_back(prefix + meta.name.substr(pass.hf.size()));
        }
        if (!pass.newer.empty()) {
          const bool newer = plan_.parallel_.core.minor >= CoreVersion::kNewNames;
          planned.pass.insert(newer ? planned.pass.begin() : planned.pass.end(),
                              pass.newer + meta.name.substr(pass.hf.size()));
        }
        planned.cut.rows = elements;
        planned.cut.flat = true;
        RowPart part;
        part.rows = part.run = elements;
        DW_ASSIGN_OR_RETURN(part.tensor, tensors_.Intern(std::move(tensor)));
        planned.cut.parts = {part};
        planned.chunk = EmbeddingChunk();
        plan_.planned_.push_back(std::move(planned));
      }
    }
    return absl::OkStatus();
  }

  /// Orders the tensors as the listing does, or by first use, and compares both.
  Status FinishTensors() {
    tensors_.Finish();
    if (listing_ != nullptr) {
      FollowListing();
      return absl::OkStatus();
    }
    std::vector<TensorMeta> metas;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const HfTensor& t = tensors_[i];
      metas.push_back({t.name, t.dtype, t.Shape()});
      plan_.views_.push_back(t.view);
    }
    DW_ASSIGN_OR_RETURN(Layout layout, Layout::Create(std::move(metas)));
    plan_.layout_ = std::make_shared<const Layout>(std::move(layout));
    return absl::OkStatus();
  }

  void FollowListing() {
    HfTensors::Listed listed = tensors_.Among(*listing_);
    plan_.layout_ = std::make_shared<const Layout>(*listing_);
    plan_.views_ = std::move(listed.views);
    plan_.unlisted_ = std::move(listed.unlisted);
    plan_.misshapen_ = std::move(listed.misshapen);
    for (PlannedParam& planned : plan_.planned_) {
      for (RowPart& part : planned.cut.parts) part.tensor = listed.place[part.tensor];
    }
    const auto& patterns = family_.not_trained;
    for (size_t i = 0; i < listed.made.size(); ++i) {
      if (listed.made[i]) continue;
      const std::string& name = listing_->tensor(i).name;
      const bool known = left_.contains(name) ||
                         std::any_of(patterns.begin(), patterns.end(),
                                     [&](const auto& p) { return MatchesPattern(p, name); });
      // Check finds the others, since no program writes them.
      if (known) plan_.not_trained_.push_back(name);
    }
  }

  const Family& family_;
  const HfConfig& config_;
  const Layout* listing_;
  Scope scope_;
  Plan plan_;
  std::vector<PipelineChunk> chunks_;
  HfTensors tensors_;
  std::unordered_set<std::string> left_;  // not in the job: they stay as the checkpoint has them
  uint32_t layers_ = 0, mtp_layers_ = 0, left_mtp_layers_ = 0, experts_ = 0, inner_layers_ = 1;
  uint64_t vocab_ = 0, padded_vocab_ = 0;
  std::string root_;
};

StatusOr<Plan> Plan::Make(const Family& family, const HfConfig& config,
                          const ParallelConfig& parallel, const Layout* listing) {
  return Planner(family, config, parallel, listing).Make();
}

}  // namespace deltawire::mcore
