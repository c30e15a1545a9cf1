// The vector backend: one table per instruction set that Highway compiled for, bit-identical to the
// scalar backend. Runs near memory speed.
#pragma once

#include <span>

#include "kernels/kernels.h"

namespace deltawire::kernels {

/// Returns the table of the best instruction set of this machine.
const Backend& HighwayBackend();
/// Returns the tables of every instruction set that this machine can run, best first.
std::span<const Backend* const> HighwayBackends();

}  // namespace deltawire::kernels
