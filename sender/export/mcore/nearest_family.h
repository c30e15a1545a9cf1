// The family nearest to a model that no family fits, for an error's text: its name, the tensors
// that differ, and a file to begin with. It plans the model once for every family, with the
// checkpoint's own beginning of names.
#pragma once

#include <string>

#include "common/layout/layout.h"
#include "sender/export/mcore/family.h"

namespace deltawire::mcore {

/// `listing` has the checkpoint's tensors, or is null: then only a family of a similar name is
/// near.
std::string DescribeNearest(const FamilySet& families, const HfConfig& config,
                            const Layout* listing);

}  // namespace deltawire::mcore
