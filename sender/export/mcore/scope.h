// An evaluator of a family's expressions, which can use the config's fields, the family's
// definitions, set values and the present layer. Each expression is compiled once, by muParser, and
// values are cached per layer. Errors name the expression, and the field that the config lacks.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"
#include "sender/export/mcore/hf_config.h"

namespace deltawire::mcore {

/// Expressions of which the first whose fields all exist is used.
using Alternatives = std::vector<std::string>;

class Scope {
 public:
  /// `definitions` maps names to expressions, which may use one another's names in any order. A
  /// definition that uses its own name means the config's field of that name.
  Scope(const HfConfig& config, std::map<std::string, Alternatives> definitions);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  /// Sets a value from outside, e.g. "tp". It takes precedence over definitions and config.
  void Set(const std::string& name, double value);
  /// Moves to a decoder layer (numbers from 0; MTP layers follow the last). Also sets "layer".
  void SetLayer(uint32_t layer) { SetLayer(layer, layer); }
  /// The same, where the config's lists count layers otherwise: `element` is its place in them.
  void SetLayer(uint32_t layer, uint32_t element);

  StatusOr<bool> IsTrue(const std::string& expression);
  /// Returns the expression's value, a whole number >= 0; else kInvalidArgument.
  StatusOr<uint64_t> Size(const std::string& expression);
  /// Returns the value of a definition.
  StatusOr<uint64_t> SizeOf(const Alternatives& alternatives);

 private:
  struct Compiled;
  /// A name's value, valid while the scope stays at one layer.
  struct Value {
    double value = 0;
    uint64_t stamp = 0;    // layer_stamp_ at its computation
    bool fixed = false;    // set by Set
    bool pending = false;  // being computed
  };
  StatusOr<double> Evaluate(const std::string& expression);
  StatusOr<double> First(const Alternatives& alternatives);
  StatusOr<Compiled*> Compile(const std::string& expression);
  StatusOr<double> Lookup(const std::string& name);

  HfConfig config_;
  std::map<std::string, Alternatives> definitions_;
  std::unordered_map<std::string, std::unique_ptr<Compiled>> compiled_;
  std::unordered_map<std::string, Value> values_;
  uint64_t layer_stamp_ = 0;
  uint32_t element_ = 0;
};

}  // namespace deltawire::mcore
