// Loads the gather over NCCL when somebody asks for it, so that programs without NCCL load the
// rest. The plugin stays loaded. Threads: any. Errors: kUnimplemented with the loader's words where
// it is missing, of another release, or its libraries are; every rank gets it.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/status.h"
#include "sender/export/gather/collective.h"

namespace deltawire {

/// NewNcclCollective (nccl_collective.h), out of libdeltawire_nccl.so beside the library or program
/// that this is part of.
StatusOr<std::unique_ptr<Collective>> LoadNcclCollective(std::unique_ptr<Collective> control,
                                                         int device, Collective::Deadline deadline);

/// What passes between the two, which are built together: DELTAWIRE_VERSION is compared first.
/// C++ objects cross here, made by one compiler from one tree.
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
