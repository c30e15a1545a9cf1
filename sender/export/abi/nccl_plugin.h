// Loads the gather over NCCL on request, so that the rest also loads where NCCL is missing. Owner:
// the process, which keeps the plugin loaded. Threads: any. Cost: one dlopen. Errors:
// kUnimplemented, on every rank, with the loader's message: the plugin or one of its libraries is
// missing, or the plugin is of another release.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/status.h"
#include "sender/export/gather/collective.h"

namespace deltawire {

/// Calls NewNcclCollective (nccl_collective.h) in libdeltawire_nccl.so, which lies beside the
/// library or program that contains this code.
StatusOr<std::unique_ptr<Collective>> LoadNcclCollective(std::unique_ptr<Collective> control,
                                                         int device, Collective::Deadline deadline);

/// Passed from the loader to the plugin. C++ objects may cross here, since both sides are built
/// from one tree by one compiler: the loader compares DELTAWIRE_VERSION first.
struct NcclRequest {
  std::unique_ptr<Collective> control;
  int device = 0;
  Collective::Deadline deadline;
  StatusOr<std::unique_ptr<Collective>> made = absl::UnknownError("not answered");
};
inline constexpr const char* kNcclPluginFile = "libdeltawire_nccl.so";
inline constexpr const char* kNcclPluginVersion = "dw_nccl_plugin_version";
inline constexpr const char* kNcclPluginOpen = "dw_nccl_plugin_open";
using NcclPluginVersion = const char* (*)();
using NcclPluginOpen = void (*)(NcclRequest* request);

}  // namespace deltawire
