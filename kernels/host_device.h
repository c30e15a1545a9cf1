// DW_HD marks a function that is compiled for, and runs on, both GPU and CPU, in any thread. It has
// a header of its own, so that code which both share need not lie in either's folder.
#pragma once

#if defined(__CUDACC__)
#define DW_HD __host__ __device__ __forceinline__
#else
#define DW_HD inline
#endif
