// A model family as data: how a trainer's parameters make up HF tensors (docs/model_families.md).
// Plain values, read from TOML by family_file.cc; expressions are texts, evaluated by Scope.
// A FamilySet is immutable once loaded; threads: any. Errors name the file, the line and the key.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/layout/dtype.h"
#include "sender/export/mcore/hf_config.h"
#include "sender/export/mcore/parallel.h"
#include "sender/export/mcore/scope.h"

namespace deltawire::mcore {

/// Where in the model a parameter is, which says which ranks hold it and what its names begin with.
enum class ParamScope : uint8_t {
  kLayer,      ///< every decoder layer, and the inner layer of every MTP layer
  kExpert,     ///< the same, for every routed expert
  kEmbedding,  ///< the first pipeline chunk
  kFinalNorm,
  kHead,  ///< the last pipeline chunk
  kMtp,   ///< every MTP layer, outside of its inner layer
};

/// How a parameter is cut over tensor-parallel (experts: expert-tensor-parallel) ranks.
enum class Split : uint8_t { kNone, kRows, kColumns };

/// A text, or two that go by a setting: of TransformerEngine's and the local spec ("te", "local"),
/// or of grouped and sequential experts ("grouped", "sequential"). `forms` has one or two entries;
/// each is a text, or several that mean the same.
struct Spelling {
  enum class By : uint8_t { kNothing, kSpec, kExperts };
  By by = By::kNothing;
  std::vector<std::vector<std::string>> forms;

  /// The form that a setting asks for; the other one, or the same where there is one for both.
  const std::vector<std::string>& Own(Spec spec, ExpertModules experts) const {
    return Second(spec, experts) ? forms.back() : forms.front();
  }
  const std::vector<std::string>& Other(Spec spec, ExpertModules experts) const {
    return Second(spec, experts) ? forms.front() : forms.back();
  }

 private:
  bool Second(Spec spec, ExpertModules experts) const {
    return by == By::kSpec ? spec == Spec::kLocal
                           : by == By::kExperts && experts == ExpertModules::kSequential;
  }
};

/// A run of a parameter's rows, and where they go. Expressions count rows of the whole parameter.
struct Part {
  std::string hf;          ///< the HF tensor's name
  std::string rows;        ///< how many of the parameter's rows
  std::string at = "0";    ///< the HF row of the first
  std::string runs = "1";  ///< cut into this many equal runs ...
  std::string pitch;       ///< ... that begin this many HF rows apart; empty: one run
  std::optional<DType> dtype;
  bool only_listed = false;  ///< only where the checkpoint has this tensor
};

struct Param {
  Spelling mcore;  ///< relative to its layer where the scope has layers
  ParamScope scope = ParamScope::kLayer;
  std::string when = "1";
  Spelling split;    ///< "none", "rows" or "columns"
  std::string cols;  ///< empty: the parameter has one dimension
  std::vector<Part> parts;
  std::string groups = "1";  ///< rows come in this many groups, each with a share of every part
  bool per_shard = false;   ///< every shard has a share of every part, instead of a cut through all
  std::string block = "0";  ///< per_shard: the parts take turns in blocks of this many rows
  bool padded = false;      ///< rows are padded as the vocabulary is
  std::string packed;       ///< experts: number of them in one HF tensor, along its first dimension
  bool transpose = false;   ///< HF holds rows and columns exchanged
  std::vector<std::string> shape;  ///< of the HF tensor, where rows and cols do not say it
  std::optional<DType> dtype;      ///< the trainer's; also HF's where the part says none
  int add = 0;                     ///< added on the way to HF, in fp32
  bool drop = false;   ///< a copy: filled from HF, never exported; without parts, of no shape
  std::string source;  ///< file and line, for messages
};

/// Parameters that another part of the model owns and that are copied as they are.
struct Passthrough {
  std::vector<std::string> mcore;  ///< what names begin with in the trainer: any of these
  std::string newer;               ///< the same since CoreVersion::kNewNames; empty: as before
  std::string hf;                  ///< what they begin with in HF
};

/// An HF tensor that some checkpoints hold beside another as its copy; it is written where the
/// checkpoint has it. One that names a layer, {l}, stands in every MTP layer.
struct Copy {
  std::string of, hf;  ///< HF names as parts spell them
  std::string when = "1";
};

/// What a trainer refuses at its start, and so does a plan.
struct Rule {
  std::string that;       ///< must be true
  std::string otherwise;  ///< the message; {EXPRESSION} stands for its value
};

/// What names begin with; what is empty is the extended family's, in the end DefaultNames().
/// {n}: the layer's number, for MTP from 0; {l}: the same, counted after the decoder's layers;
/// {k}: within the pipeline chunk (trainer's names); {e}: the expert;
/// {L}: the number of decoder layers; {root}: as below.
struct Names {
  std::string layer_mcore, layer_hf;
  std::string mtp_mcore, mtp_hf;
  std::vector<std::string> mtp_inner;  ///< the inner layer's name in an MTP layer, newer ones last
  std::vector<std::string> root;       ///< what HF names begin with: the first that the checkpoint
                                       ///< has layers under, and without a checkpoint the first
  std::string mcore_root;              ///< what trainer's names begin with, but for a tower's; they
                                       ///< are known without it, too
  std::vector<std::string> strip;      ///< wrappers' prefixes of trainer's names, besides "module."
};
Names DefaultNames();

struct Family {
  std::string name;
  std::string extends;
  std::vector<std::string> model_types;    ///< match: any of these, ...
  std::vector<std::string> architectures;  ///< ... and any of these, ...
  std::string when;                        ///< ... and this; what is empty is not asked
  std::map<std::string, Alternatives> dims;
  Names names;
  std::map<std::string, std::string> texts;  ///< {NAME} in names, besides those of Names
  /// What "listed.NAME" asks for: whether the checkpoint has this tensor in the layer at hand.
  /// {layer}: what the layer's HF names begin with.
  std::map<std::string, std::string> listed;
  std::vector<Param> params;
  std::vector<std::string> without;  ///< names of the extended family's that this one lacks
  std::vector<Copy> copies;
  std::vector<Rule> rules;  ///< the extended family's first
  std::vector<Passthrough> passthrough;
  std::vector<std::string> not_trained;   ///< HF names (* is any text) that no parameter makes
  std::vector<std::string> not_exported;  ///< trainer's names (the same) that make no HF tensor
  std::string source;
};

/// Definitions that every family must have.
inline constexpr const char* kRequiredDims[] = {"layers", "vocab", "experts", "mtp_layers", "tied"};

class FamilySet {
 public:
  /// The families that came with this program (configs/models), and every *.toml of `dirs`; a
  /// family of a later directory replaces one of the same name. Inheritance is resolved here.
  static StatusOr<FamilySet> Load(std::span<const std::filesystem::path> dirs);

  /// The family called `name`, or, where that is empty, the most specific one that fits `config`:
  /// the one with more conditions; of two with as many, the one that extends the other.
  StatusOr<const Family*> Select(const HfConfig& config, const std::string& name = {}) const;

  const std::map<std::string, Family>& families() const { return families_; }

 private:
  std::map<std::string, Family> families_;
};

/// The files of configs/models as they were when this program was built: name and text.
struct BuiltinFamily {
  std::string_view file, text;
};
std::span<const BuiltinFamily> BuiltinFamilies();

/// `text` matches `pattern`, in which * is any text.
bool MatchesPattern(std::string_view pattern, std::string_view text);

/// One family's file; inheritance is not resolved. `text` is TOML.
StatusOr<Family> ParseFamily(std::string_view text, const std::string& file);

}  // namespace deltawire::mcore
