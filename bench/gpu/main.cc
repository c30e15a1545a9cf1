// A program of the suite by itself, so that a test has another on a runtime that pretends to be
// CUDA's.
#include "bench/gpu/suite.h"

int main(int argc, char** argv) { return deltawire::bench::RunGpuSuite(argc, argv); }
