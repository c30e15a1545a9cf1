// The mark DW_HD for functions that are compiled for both GPU and CPU. It has its own header, so
// that shared code need not lie in either's folder.
#pragma once

#if defined(__CUDACC__)
#define DW_HD __host__ __device__ __forceinline__
#else
#define DW_HD inline
#endif
