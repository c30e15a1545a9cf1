// A model family as data: how a trainer's parameters make up HF tensors (docs/model_families.md).
// Plain values, read from TOML by family_file.cc; expressions are texts, evaluated by Scope. Owner:
// an HfModel or a test; a FamilySet is immutable once loaded. Threads: any. Cost: Load parses every
// family's file. Errors name the file, the line and the key.
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

/// Where in the model a parameter is, which decides which ranks hold it and how its names begin.
enum class ParamScope : uint8_t {
  kLayer,      ///< every decoder layer, and the inner layers of every MTP layer
  kExpert,     ///< every routed expert of those layers
  kEmbedding,  ///< the first pipeline chunk
  kFinalNorm,
  kHead,   ///< the last pipeline chunk
  kMtp,    ///< every MTP layer, except for its inner layers; asked for each of these
  kTower,  ///< beside the language model, with the embedding; names lack mcore_root
};

/// How a parameter is cut over tensor-parallel (experts: expert-tensor-parallel) ranks.
enum class Split : uint8_t { kNone, kRows, kColumns };

/// A text, or two between which a setting chooses: TransformerEngine's or the local spec ("te",
/// "local"), grouped or sequential experts ("grouped", "sequential"). `forms` has one or two
/// entries; each is a text, or several texts with the same meaning.
struct Spelling {
  enum class By : uint8_t { kNothing, kSpec, kExperts };
  By by = By::kNothing;
  std::vector<std::vector<std::string>> forms;

  /// The form for these settings. Other: the other form, or the same if there is only one.
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
  std::string hf;            ///< the HF tensor's name
  std::string rows;          ///< number of the parameter's rows that go there
  std::string at = "0";      ///< the HF row of the first of them
  std::string runs = "1";    ///< cut into this many equal runs ...
  std::string pitch;         ///< ... that begin this many HF rows apart; empty: one run
  std::string repeat = "1";  ///< every HF row is this many rows of the parameter in succession
  /// The rows are filled from HF and never exported, since other rows make that tensor.
  bool filled = false;
  bool zero = false;  ///< no HF tensor has the rows: they are zero, and never exported
  std::optional<DType> dtype;
  bool only_listed = false;  ///< only if the checkpoint has this tensor
};

struct Param {
  Spelling mcore;  ///< relative to its layer if the scope has layers
  ParamScope scope = ParamScope::kLayer;
  std::string when = "1";
  std::string repeat = "1";  ///< kTower: so many of it, which {n} counts
  Spelling split;            ///< "none", "rows" or "columns"
  std::string cols;          ///< empty: the parameter has one dimension
  std::vector<Part> parts;
  std::string groups = "1";  ///< rows come in this many groups, each with a share of every part
  /// Every shard has a share of every part; else the parts are cut as one.
  bool per_shard = false;
  std::string block = "0";  ///< per_shard: the parts alternate in blocks of this many rows
  bool padded = false;      ///< rows are padded like the vocabulary
  std::string packed;       ///< experts: number of them in one HF tensor, along its first dimension
  std::string transpose = "0";     ///< whether HF holds rows and columns exchanged
  bool swap_halves = false;        ///< HF has the two halves of the columns exchanged
  std::vector<std::string> shape;  ///< of the HF tensor, if rows and cols do not give it
  std::optional<DType> dtype;      ///< the trainer's; also HF's if the part states none
  int add = 0;                     ///< added on the way to HF, in fp32
  /// A copy: filled from HF, never exported; without parts it has no known shape.
  bool drop = false;
  /// Made from a Copy: another parameter is filled from HF in its place.
  bool copy = false;
  std::string source;  ///< file and line, for messages
};

/// Parameters of another part of the model, which are copied unchanged.
struct Passthrough {
  std::vector<std::string> mcore;  ///< how names begin in the trainer: any of these
  std::string newer;               ///< the same since CoreVersion::kNewNames; empty: unchanged
  std::string hf;                  ///< how they begin in HF
};

/// An HF tensor that some checkpoints contain as a copy of another; it is written if the checkpoint
/// has it. A copy whose name has {l} exists in every MTP layer.
struct Copy {
  std::string of, hf;  ///< HF names as parts spell them
  std::string when = "1";
};

/// A condition that trainers check at their start, and that a plan checks too.
struct Rule {
  std::string that;       ///< must be true
  std::string otherwise;  ///< the message; {EXPRESSION} stands for its value
};

/// How names begin. An empty entry takes the extended family's, in the end that of DefaultNames().
/// {n}: the layer's number, for MTP from 0; {l}: the same, counted on after the decoder's layers;
/// {k}: within the pipeline chunk, {i}: the inner layer within its MTP layer (trainer's names);
/// {e}: the expert; {L}: the number of decoder layers; {root}: as below.
struct Names {
  std::string layer_mcore, layer_hf;
  std::string mtp_mcore, mtp_hf;
  std::vector<std::string> mtp_inner;  ///< the inner layer's name in an MTP layer; newer names last
  /// How HF names begin: the first under which the checkpoint has layers; without a checkpoint the
  /// first.
  std::vector<std::string> root;
  /// How trainer's names begin, except a tower's; names without it are accepted too.
  std::string mcore_root;
  /// Prefixes of wrappers in trainer's names, besides "module.".
  std::vector<std::string> strip;
};
Names DefaultNames();

struct Family {
  std::string name;
  std::string extends;
  /// A family whose own file counts as part of this one's, without what it extends in turn.
  std::string includes;
  std::vector<std::string> model_types;    ///< match: any of these, ...
  std::vector<std::string> architectures;  ///< ... and any of these, ...
  std::string when;                        ///< ... and this; empty conditions are skipped
  std::map<std::string, Alternatives> dims;
  Names names;
  std::map<std::string, std::string> texts;  ///< values of {NAME} in names, besides those of Names
  /// For "listed.NAME": the tensor that the checkpoint must have in the present layer. {layer}: how
  /// the layer's HF names begin.
  std::map<std::string, std::string> listed;
  std::vector<Param> params;
  std::vector<std::string> without;  ///< parameters of the extended family that this one lacks
  std::vector<Copy> copies;
  std::vector<Rule> rules;  ///< the extended family's first
  std::vector<Passthrough> passthrough;
  std::vector<std::string> not_trained;   ///< HF names (* is any text) that no parameter makes
  std::vector<std::string> not_exported;  ///< trainer's names (with * too) that make no HF tensor
  std::string source;
};

/// The number of inner layers of an MTP layer; 1 if a family does not define it.
inline constexpr const char* kInnerLayersDim = "mtp_inner_layers";
/// Definitions that every family must have.
inline constexpr const char* kRequiredDims[] = {"layers", "vocab", "experts", "mtp_layers", "tied"};

class FamilySet {
 public:
  /// The families built into this program (configs/models), and every *.toml of `dirs`; a family of
  /// a later directory replaces one of the same name. Resolves inheritance.
  static StatusOr<FamilySet> Load(std::span<const std::filesystem::path> dirs);

  /// The family called `name`. Empty `name`: of the families that fit `config`, the most specific
  /// one, with the most conditions; of two with equally many, the one that extends the other.
  StatusOr<const Family*> Select(const HfConfig& config, const std::string& name = {}) const;

  const std::map<std::string, Family>& families() const { return families_; }

 private:
  std::map<std::string, Family> families_;
};

/// A file of configs/models as it was when this program was built: name and text.
struct BuiltinFamily {
  std::string_view file, text;
};
std::span<const BuiltinFamily> BuiltinFamilies();

/// Whether `text` matches `pattern`, in which * stands for any text.
bool MatchesPattern(std::string_view pattern, std::string_view text);

/// Parses one family's file, the TOML `text`. Inheritance is not resolved.
StatusOr<Family> ParseFamily(std::string_view text, const std::string& file);

}  // namespace deltawire::mcore
