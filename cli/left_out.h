// The files of a model directory that the tool does not read as the model, in words.
#pragma once

#include <string>
#include <vector>

#include "common/layout/model_dir.h"

namespace deltawire::cli {

/// "a, b, c and 4 more".
std::string NamesText(const std::vector<std::string>& names);

/// One line per reason why files of the directory are left out. `foreign`: as ReadSideFiles gave
/// them.
std::vector<std::string> LeftOutLines(const ModelDir& model,
                                      const std::vector<std::string>& foreign);

}  // namespace deltawire::cli
