// A loader for the gather over NCCL, so that the rest also runs where NCCL is missing. The process
// keeps the plugin loaded. If the plugin or one of its libraries is missing, or is of another
// release, every rank gets kUnimplemented with the loader's message.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/status.h"
#include "sender/export/gather/collective.h"

namespace deltawire {

/// Calls NewNcclCollective (nccl_collective.h) in libdeltawire_nccl.so, which is beside the library
/// or program that contains this code.
StatusOr<std::unique_ptr<Collective>> LoadNcclCollective(std::unique_ptr<Collective> control,
                                                         int device, Collective::Deadline deadline);

/// The loader's request to the plugin. C++ objects may cross here, because one compiler builds both
/// sides from one tree: the loader compares DELTAWIRE_VERSION first.
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
