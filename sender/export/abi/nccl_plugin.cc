// The functions of libdeltawire_nccl.so that nccl_plugin_loader.cc looks up.
#include "sender/export/abi/nccl_plugin.h"

#include "sender/export/gather/nccl_collective.h"

#define DW_PLUGIN_API extern "C" __attribute__((visibility("default")))

DW_PLUGIN_API const char* dw_nccl_plugin_version() { return DELTAWIRE_VERSION; }

DW_PLUGIN_API void dw_nccl_plugin_open(deltawire::NcclRequest* request) {
  request->made =
      deltawire::NewNcclCollective(std::move(request->control), request->device, request->deadline);
}
