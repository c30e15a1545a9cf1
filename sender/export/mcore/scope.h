// What a family's expressions see: the config's fields, the family's definitions, settings, a
// layer. Owner: one planning pass; not thread-safe. Expressions are compiled once and evaluated
// with muParser. Errors name the expression, and the field that the config lacks.
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

/// An expression, or several of which the first counts whose fields are all there.
using Alternatives = std::vector<std::string>;

class Scope {
 public:
  /// `definitions`: name to expression; they may name one another, in any order. One
  /// that names itself means the config's field of that name.
  Scope(const HfConfig& config, std::map<std::string, Alternatives> definitions);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  /// A value that is neither in the config nor defined, e.g. "tp". Comes before both.
  void Set(const std::string& name, double value);
  /// Moves to a decoder layer (numbers from 0; MTP layers follow the last). Also sets "layer".
  void SetLayer(uint32_t layer);

  StatusOr<bool> IsTrue(const std::string& expression);
  /// A whole number >= 0.
  StatusOr<uint64_t> Size(const std::string& expression);
  /// A definition's value as a size.
  StatusOr<uint64_t> SizeOf(const Alternatives& alternatives);

 private:
  struct Compiled;
  /// A name's value, as long as the layer has not moved on.
  struct Value {
    double value = 0;
    uint64_t stamp = 0;    // of the layer that it was computed for
    bool fixed = false;    // set from outside
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
  uint32_t layer_ = 0;
};

}  // namespace deltawire::mcore
