// DW_HD: a function that runs on the GPU as well as on the CPU, and is compiled for both.
// Only a qualifier; so that what CPU and GPU share does not stand in either's folder.
#pragma once

#if defined(__CUDACC__)
#define DW_HD __host__ __device__ __forceinline__
#else
#define DW_HD inline
#endif
