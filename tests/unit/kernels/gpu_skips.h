// Skips cases of the GPU tests where there is no device. A run that has skipped all of its cases
// says how many, behind Catch's "all tests passed", and exits with DELTAWIRE_SKIP_CODE.
#pragma once

namespace deltawire::kernels::test {

/// Prints "SKIPPED: why" and returns true where there is no device; the case then returns.
bool NoGpu();

}  // namespace deltawire::kernels::test
