// The lines about files of a model directory that the tool does not read as part of the model.
#pragma once

#include <string>
#include <vector>

#include "common/layout/model_dir.h"

namespace deltawire::cli {

/// Returns text such as "a, b, c and 4 more".
std::string NamesText(const std::vector<std::string>& names);

/// Returns one line for each reason to leave files out. `foreign` comes from ReadSideFiles.
std::vector<std::string> LeftOutLines(const ModelDir& model,
                                      const std::vector<std::string>& foreign);

}  // namespace deltawire::cli
