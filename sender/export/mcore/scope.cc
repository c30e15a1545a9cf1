#include "sender/export/mcore/scope.h"

#include <muParser.h>

#include <cmath>

namespace deltawire::mcore {
namespace {

constexpr const char* kNameChars =
    "0123456789_.abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

double Remainder(double a, double b) { return std::fmod(a, b); }
double Not(double a) { return a == 0 ? 1 : 0; }

/// In muParser "=" assigns. In a condition it is a typing error that would always be true.
bool Assigns(std::string_view expression) {
  for (size_t at = expression.find('='); at != expression.npos; at = expression.find('=', at)) {
    const bool compares =
        at > 0 && std::string_view("<>!").find(expression[at - 1]) != expression.npos;
    if (!compares && expression.substr(at, 2) != "==") return true;
    at += compares ? 1 : 2;
  }
  return false;
}

}  // namespace

/// A parsed expression, with the memory for each name's value.
struct Scope::Compiled {
  mu::Parser parser;
  std::vector<std::pair<std::string, std::unique_ptr<double>>> names;
};

Scope::Scope(const HfConfig& config, std::map<std::string, Alternatives> definitions)
    : config_(config), definitions_(std::move(definitions)) {
  SetLayer(0);
}

Scope::~Scope() = default;

void Scope::Set(const std::string& name, double value) {
  values_[name] = {value, 0, /*fixed=*/true, false};
  ++layer_stamp_;
}

void Scope::SetLayer(uint32_t layer, uint32_t element) {
  element_ = element;
  Set("layer", layer);
}

StatusOr<Scope::Compiled*> Scope::Compile(const std::string& expression) {
  auto& slot = compiled_[expression];
  if (slot != nullptr) return slot.get();
  if (Assigns(expression)) {
    return Errorf(StatusCode::kInvalidArgument,
                  "expression \"{}\": \"=\" assigns; compare by ==", expression);
  }
  auto fresh = std::make_unique<Compiled>();
  try {
    mu::Parser& parser = fresh->parser;
    parser.DefineNameChars(kNameChars);
    parser.DefineOprt("%", Remainder, mu::prMUL_DIV, mu::oaLEFT, true);
    parser.DefineInfixOprt("!", Not, mu::prINFIX, true);
    parser.SetVarFactory(
        [](const char* name, void* names) {
          auto& list = *static_cast<decltype(Compiled::names)*>(names);
          list.emplace_back(name, std::make_unique<double>(0));
          return list.back().second.get();
        },
        &fresh->names);
    parser.SetExpr(expression);
    parser.Eval();
  } catch (const mu::Parser::exception_type& e) {
    return Errorf(StatusCode::kInvalidArgument, "expression \"{}\": {}", expression, e.GetMsg());
  }
  slot = std::move(fresh);
  return slot.get();
}

StatusOr<double> Scope::Evaluate(const std::string& expression) {
  DW_ASSIGN_OR_RETURN(Compiled* const compiled, Compile(expression));
  for (auto& [name, place] : compiled->names) {
    StatusOr<double> value = Lookup(name);
    if (!value.ok()) return value.status();
    *place = *value;
  }
  try {
    return compiled->parser.Eval();
  } catch (const mu::Parser::exception_type& e) {
    return Errorf(StatusCode::kInvalidArgument, "expression \"{}\": {}", expression, e.GetMsg());
  }
}

StatusOr<double> Scope::Lookup(const std::string& name) {
  bool own_field = false;
  {
    const Value& known = values_[name];
    if (known.fixed || (known.stamp == layer_stamp_ && !known.pending)) return known.value;
    // A definition that uses its own name means the config's field.
    own_field = known.pending;
  }
  const auto definition = definitions_.find(name);
  if (own_field || definition == definitions_.end()) {
    const std::optional<double> field = config_.Field(name, element_);
    if (!field) return Errorf(StatusCode::kNotFound, "config.json has no field \"{}\"", name);
    if (!own_field) values_[name] = {*field, layer_stamp_, false, false};
    return *field;
  }
  values_[name].pending = true;
  StatusOr<double> value = First(definition->second);
  values_[name].pending = false;
  if (!value.ok()) return Annotate(value.status(), name);
  values_[name] = {*value, layer_stamp_, false, false};
  return *value;
}

StatusOr<double> Scope::First(const Alternatives& alternatives) {
  Status missing = absl::NotFoundError("nothing is given for it");
  for (const std::string& expression : alternatives) {
    StatusOr<double> value = Evaluate(expression);
    if (value.ok() || value.status().code() != StatusCode::kNotFound) return value;
    missing = value.status();
  }
  return missing;
}

StatusOr<bool> Scope::IsTrue(const std::string& expression) {
  DW_ASSIGN_OR_RETURN(const double value, Evaluate(expression));
  return value != 0;
}

StatusOr<uint64_t> Scope::SizeOf(const Alternatives& alternatives) {
  DW_ASSIGN_OR_RETURN(const double value, First(alternatives));
  // Sizes are exact in a double up to 2^53, far above any tensor's.
  if (!(value >= 0) || value > 9e15 || value != std::floor(value)) {
    return Errorf(StatusCode::kInvalidArgument,
                  "expression \"{}\" gives {}, which is no size; does the config fit the family?",
                  alternatives.empty() ? "" : alternatives.front(), value);
  }
  return static_cast<uint64_t>(value);
}

StatusOr<uint64_t> Scope::Size(const std::string& expression) { return SizeOf({expression}); }

}  // namespace deltawire::mcore
