// A translation of the errors of kernels/gpu.h into Status.
#pragma once

#include "common/base/status.h"
#include "kernels/gpu.h"

namespace deltawire {

inline Status FromGpu(const kernels::GpuStatus& s) {
  switch (s.error) {
    case kernels::GpuError::kNone:
      return absl::OkStatus();
    case kernels::GpuError::kMemory:
      return Status(StatusCode::kResourceExhausted, s.message);
    case kernels::GpuError::kNotBuilt:
      return Status(StatusCode::kUnimplemented, s.message);
    case kernels::GpuError::kNoDevice:
    case kernels::GpuError::kOldDriver:
      return Status(StatusCode::kFailedPrecondition, s.message);
    default:
      return Status(StatusCode::kInternal, s.message);
  }
}

}  // namespace deltawire
