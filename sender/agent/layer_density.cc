#include "sender/agent/layer_density.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <map>
#include <optional>

namespace deltawire::sender {
namespace {

struct Place {
  std::string stack, part;
  uint32_t layer = 0;
};

bool IsNumber(absl::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), absl::ascii_isdigit);
}

/// The first number in a name is its layer's; later ones are experts'.
std::optional<Place> PlaceOf(const std::string& name) {
  std::vector<absl::string_view> words = absl::StrSplit(name, '.');
  const auto number = std::find_if(words.begin(), words.end(), IsNumber);
  Place place;
  if (number == words.begin() || number == words.end() || number + 1 == words.end() ||
      !absl::SimpleAtoi(*number, &place.layer) || place.layer >= LayerDensity::kMostLayers) {
    return std::nullopt;
  }
  place.stack = absl::StrJoin(words.begin(), number, ".");
  std::vector<absl::string_view> part(number + 1, words.end());
  std::erase_if(part, IsNumber);
  if (part.size() > 1 && (part.back() == "weight" || part.back() == "bias")) part.pop_back();
  place.part = absl::StrJoin(part, ".");
  return place;
}

struct Sum {
  uint64_t changed = 0, elements = 0;
};
using ByLayer = std::map<uint32_t, Sum>;
using ByPart = std::map<std::string, ByLayer>;

void AddStack(const std::string& prefix, const ByPart& parts, LayerDensity& out) {
  for (const auto& [part, layers] : parts) {
    if (out.parts.size() == LayerDensity::kMostParts) {
      ++out.more_parts;
      continue;
    }
    out.parts.push_back(prefix + part);
    for (uint32_t layer = 0; layer < out.layers; ++layer) {
      const auto found = layers.find(layer);
      const bool there = found != layers.end() && found->second.elements > 0;
      out.ratios.push_back(there ? static_cast<double>(found->second.changed) /
                                       static_cast<double>(found->second.elements)
                                 : -1);
    }
  }
}

}  // namespace

LayerDensity DensityByLayer(const std::vector<TensorDensity>& tensors) {
  LayerDensity out;
  std::map<std::string, ByPart> stacks;
  std::map<std::string, size_t> sizes;
  for (const TensorDensity& tensor : tensors) {
    const auto place = PlaceOf(tensor.name);
    if (!place) {
      out.changed_outside += tensor.changed;
      out.elements_outside += tensor.elements;
      continue;
    }
    Sum& sum = stacks[place->stack][place->part][place->layer];
    sum.changed += tensor.changed;
    sum.elements += tensor.elements;
    ++sizes[place->stack];
    out.layers = std::max(out.layers, place->layer + 1);
  }
  if (stacks.empty()) return out;
  const std::string largest =
      std::max_element(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      })->first;
  AddStack("", stacks[largest], out);
  for (const auto& [stack, parts] : stacks) {
    if (stack != largest) AddStack(stack + " ", parts, out);
  }
  return out;
}

}  // namespace deltawire::sender
