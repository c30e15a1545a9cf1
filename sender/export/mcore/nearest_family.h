// The family that comes nearest to a model which none fits, for an error's text: its name, the
// tensors that differ, and a file to begin with. Pure. Threads: any. Cost: one plan of the model
// for every family. No errors.
#pragma once

#include <string>

#include "common/layout/layout.h"
#include "sender/export/mcore/family.h"

namespace deltawire::mcore {

/// `listing`: the checkpoint's tensors, or null. Empty if no family can plan the model.
std::string DescribeNearest(const FamilySet& families, const HfConfig& config,
                            const Layout* listing);

}  // namespace deltawire::mcore
