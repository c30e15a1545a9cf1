// The suite `gpu` as a program. It has only main, so that a test can link the suite with a
// simulated CUDA runtime.
#include "bench/gpu/suite.h"

int main(int argc, char** argv) { return deltawire::bench::RunGpuSuite(argc, argv); }
