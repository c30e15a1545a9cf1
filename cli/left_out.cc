#include "cli/left_out.h"

#include <algorithm>

#include "common/layout/weight_index.h"

namespace deltawire::cli {
namespace {

constexpr size_t kNamesShown = 4;

}  // namespace

std::string NamesText(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(kNamesShown, names.size()); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kNamesShown) text += fmt::format(" and {} more", names.size() - kNamesShown);
  return text;
}

std::vector<std::string> LeftOutLines(const ModelDir& model,
                                      const std::vector<std::string>& foreign) {
  std::vector<std::string> lines;
  if (!model.unlisted().empty()) {
    const bool index = model.decided_by() == kWeightIndexName;
    const char* them = model.unlisted().size() == 1 ? "it" : "them";
    lines.push_back(fmt::format(
        "left out: {} ({})", NamesText(model.unlisted()),
        index ? fmt::format("{} decides which files are the model, and does not list {}",
                            kWeightIndexName, them)
              : fmt::format("without {}, {} is the model, and {} not part of it", kWeightIndexName,
                            model.decided_by(),
                            model.unlisted().size() == 1 ? "it is" : "they are")));
  }
  if (!foreign.empty()) {
    lines.push_back(fmt::format("left out: {} (weights in a format other than safetensors)",
                                NamesText(foreign)));
  }
  return lines;
}

}  // namespace deltawire::cli
