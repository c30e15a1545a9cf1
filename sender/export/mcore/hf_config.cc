#include "sender/export/mcore/hf_config.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace deltawire::mcore {
namespace {

using Json = nlohmann::json;

// Where vision-language and audio models keep the language model's fields.
constexpr const char* kTextConfigs[] = {"text_config", "llm_config", "language_config"};
constexpr size_t kMaxConfigBytes = 16 << 20;
constexpr int kLayerDigits = 6;

StatusOr<DType> DTypeOf(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  if (name == "float32") return DType::kF32;
  return Errorf(StatusCode::kInvalidArgument,
                "config.json: dtype \"{}\" is none of bfloat16, float16, float32", name);
}

std::optional<double> AsNumber(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (value.is_number()) return value.get<double>();
  return std::nullopt;
}

/// Whether a text of numbers with commas between them has `number`.
double Lists(std::string text, uint32_t number) {
  std::erase(text, ' ');
  return fmt::format(",{},", text).find(fmt::format(",{},", number)) != std::string::npos ? 1 : 0;
}

/// Splits "X.suffix"; the suffix is empty unless Field knows it.
std::pair<std::string_view, std::string_view> SplitSuffix(std::string_view name) {
  if (const size_t is = name.find(".is."); is != std::string_view::npos) {
    return {name.substr(0, is), name.substr(is + 1)};
  }
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {name, {}};
  const std::string_view suffix = name.substr(dot + 1);
  for (const char* known : {"given", "has", "at", "size"}) {
    if (suffix == known) return {name.substr(0, dot), suffix};
  }
  return {name, {}};
}

}  // namespace

struct HfConfig::Tree {
  Json top;
  const Json* text = nullptr;  // within `top`, or `top` itself

  /// Null where the field is absent. `element` is the place in lists on the way to it.
  const Json* Find(std::string_view name, uint32_t element = 0) const {
    if (name.starts_with("vision.")) {
      const auto part = top.find("vision_config");
      if (part == top.end() || !part->is_object()) return nullptr;
      const auto it = part->find(std::string(name.substr(7)));
      return it != part->end() && !it->is_null() ? &*it : nullptr;
    }
    const bool only_top = name.starts_with("top.");
    if (only_top) name.remove_prefix(4);
    for (const Json* level : {only_top ? &top : text, &top}) {
      const Json* found = Under(level, name, element);
      if (found != nullptr) return found;
    }
    return nullptr;
  }

 private:
  /// The object under a layer's number, which transformers writes as wide as the last layer's.
  static const Json* OfLayer(const Json& level, uint32_t layer) {
    for (int width = 1; width <= kLayerDigits; ++width) {
      const auto own = level.find(fmt::format("{:0{}}", layer, width));
      if (own != level.end()) return own->is_object() ? &*own : nullptr;
    }
    return nullptr;
  }

  static const Json* Under(const Json* level, std::string_view name, uint32_t element) {
    for (size_t dot = 0; dot != std::string_view::npos; name.remove_prefix(dot + 1)) {
      if (level->is_array()) level = element < level->size() ? &(*level)[element] : nullptr;
      if (level == nullptr || !level->is_object()) return nullptr;
      dot = name.find('.');
      auto it = level->find(std::string(name.substr(0, dot)));
      if (it == level->end()) {  // an object whose keys are some of the layers
        level = OfLayer(*level, element);
        if (level == nullptr) return nullptr;
        it = level->find(std::string(name.substr(0, dot)));
      }
      if (it == level->end() || it->is_null()) return nullptr;
      level = &*it;
      if (dot == std::string_view::npos) break;
    }
    return level;
  }
};

StatusOr<HfConfig> HfConfig::Parse(std::string_view json) {
  auto tree = std::make_shared<Tree>();
  tree->top = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!tree->top.is_object()) return absl::InvalidArgumentError("config.json is not a JSON object");
  const Json* outer = &tree->top;
  if (const auto it = outer->find("thinker_config"); it != outer->end() && it->is_object()) {
    outer = &*it;
  }
  tree->text = outer;
  for (const char* name : kTextConfigs) {
    if (const auto it = outer->find(name); it != outer->end() && it->is_object()) {
      tree->text = &*it;
      break;
    }
  }
  HfConfig config;
  for (const Json* level : {tree->text, static_cast<const Json*>(&tree->top)}) {
    const auto it = level->find("model_type");
    if (it == level->end() || !it->is_string()) continue;
    const auto type = it->get<std::string>();
    auto& types = config.model_types_;
    if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
  }
  if (const auto it = tree->top.find("architectures"); it != tree->top.end() && it->is_array()) {
    for (const Json& name : *it) {
      if (name.is_string()) config.architectures_.push_back(name.get<std::string>());
    }
  }
  for (const char* key : {"dtype", "torch_dtype"}) {
    const Json* dtype = tree->Find(key);
    if (dtype == nullptr || !dtype->is_string()) continue;
    DW_ASSIGN_OR_RETURN(config.dtype_, DTypeOf(dtype->get<std::string>()));
    break;
  }
  config.tree_ = std::move(tree);
  return config;
}

StatusOr<HfConfig> HfConfig::Open(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / "config.json";
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  if (!in || text.view().size() > kMaxConfigBytes) {
    return Errorf(StatusCode::kNotFound,
                  "{} cannot be read; wanted a HuggingFace model directory with a config.json",
                  path.string());
  }
  StatusOr<HfConfig> config = Parse(text.view());
  if (!config.ok()) return Annotate(config.status(), path.string());
  return config;
}

std::optional<double> HfConfig::Field(std::string_view name, uint32_t layer) const {
  const auto [field, suffix] = SplitSuffix(name);
  const Json* value = tree_->Find(field, layer);
  if (suffix == "given") return value != nullptr ? 1 : 0;
  if (value == nullptr) return std::nullopt;
  if (suffix.empty()) return AsNumber(*value);
  if (value->is_string() && suffix == "size") return value->get_ref<const std::string&>().size();
  if (value->is_string() && suffix == "at") {
    const auto& text = value->get_ref<const std::string&>();
    return layer < text.size() ? static_cast<unsigned char>(text[layer]) : 0;
  }
  if (suffix == "size") {
    return value->is_array() ? std::optional<double>(value->size()) : std::nullopt;
  }
  if (suffix == "has") {
    if (value->is_string()) return Lists(value->get_ref<const std::string&>(), layer);
    if (!value->is_array()) return std::nullopt;
    return std::any_of(value->begin(), value->end(),
                       [&](const Json& n) { return AsNumber(n) == double(layer); })
               ? 1
               : 0;
  }
  const bool list = value->is_array();
  if (list && layer >= value->size()) return 0;
  const Json& element = list ? (*value)[layer] : *value;
  if (suffix == "at") return AsNumber(element);
  const std::string_view word = suffix.substr(3);  // "is.WORD"
  return element.is_string() && element.get_ref<const std::string&>() == word ? 1 : 0;
}

}  // namespace deltawire::mcore
