// A model's config.json as numbers that a family's expressions can use. A nested text config
// (vision-language models) takes precedence over the top level; "top.X" reads the top level, and
// "vision.X" the vision config. Owner: the holder; an immutable value. Threads: any. Cost: one
// parse. Errors name the field.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/layout/dtype.h"

namespace deltawire::mcore {

class HfConfig {
 public:
  static StatusOr<HfConfig> Parse(std::string_view json);
  /// Reads DIR/config.json.
  static StatusOr<HfConfig> Open(const std::filesystem::path& dir);

  /// model_type of the text config and of the top level, in this order, without repeats.
  const std::vector<std::string>& model_types() const { return model_types_; }
  const std::vector<std::string>& architectures() const { return architectures_; }
  /// dtype or torch_dtype; bf16 where neither is given.
  DType dtype() const { return dtype_; }

  /// The value of a field as expressions see it, for decoder layer `layer`; nullopt when the config
  /// lacks it (or it is null). docs/model_families.md, "Expressions":
  ///   X            a number, true (1) or false (0)
  ///   X.Y          the field Y of the object X, or of X[layer] of a list of objects, or of an
  ///                object whose keys are layers
  ///   X.given      1 when X is there and not null, else 0; never missing
  ///   X.is.WORD    1 when X, or X[layer] of a list, is the text WORD; 0 beyond a list's end
  ///   X.has        1 when the list X, or the text X of numbers with commas, contains `layer`
  ///   X.at         X[layer] of a list of numbers, or the code of that character of a text (0
  ///                beyond the end), else X itself
  ///   X.size       the length of the list or text X
  std::optional<double> Field(std::string_view name, uint32_t layer) const;

 private:
  struct Tree;
  HfConfig() = default;
  std::shared_ptr<const Tree> tree_;
  std::vector<std::string> model_types_, architectures_;
  DType dtype_ = DType::kBF16;
};

}  // namespace deltawire::mcore
