// The vector backend: one table per instruction set that Highway compiled for.
// Bit-identical to the scalar backend. Stateless; thread-safe. Cost: near memory speed.
#pragma once

#include <span>

#include "kernels/kernels.h"

namespace deltawire::kernels {

/// The table of the best instruction set of this machine.
const Backend& HighwayBackend();
/// The tables of every instruction set that this machine can run, best first.
std::span<const Backend* const> HighwayBackends();

}  // namespace deltawire::kernels
