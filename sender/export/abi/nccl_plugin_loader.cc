#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "sender/export/abi/nccl_plugin.h"

namespace deltawire {
namespace {

Status Missing(const std::string& why) {
  return Errorf(StatusCode::kUnimplemented,
                "no gather over NCCL here: {}; build deltawire where nvcc, nccl.h and libnccl are "
                "found and keep {} beside its library, or gather over Gloo",
                why, kNcclPluginFile);
}

std::string LoaderSays() {
  const char* text = dlerror();
  return text == nullptr ? "the loader says nothing" : text;
}

StatusOr<NcclPluginOpen> Load() {
  Dl_info self{};
  static const char kHere = 0;
  if (dladdr(&kHere, &self) == 0 || self.dli_fname == nullptr) return Missing(LoaderSays());
  std::error_code error;
  const auto path =
      std::filesystem::absolute(self.dli_fname, error).parent_path() / kNcclPluginFile;
  void* const plugin = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (plugin == nullptr) return Missing(LoaderSays());
  const auto version = reinterpret_cast<NcclPluginVersion>(dlsym(plugin, kNcclPluginVersion));
  const auto open = reinterpret_cast<NcclPluginOpen>(dlsym(plugin, kNcclPluginOpen));
  if (version == nullptr || open == nullptr) return Missing(LoaderSays());
  if (std::string(version()) != DELTAWIRE_VERSION) {
    return Missing(fmt::format("{} is of release {}, this is {}", path.string(), version(),
                               DELTAWIRE_VERSION));
  }
  return open;
}

}  // namespace

StatusOr<std::unique_ptr<Collective>> LoadNcclCollective(std::unique_ptr<Collective> control,
                                                         int device,
                                                         Collective::Deadline deadline) {
  const StatusOr<NcclPluginOpen> open = Load();
  if (!open.ok()) {
    control->Abort(open.status());
    return open.status();
  }
  NcclRequest request{std::move(control), device, deadline};
  (*open)(&request);
  return std::move(request.made);
}

}  // namespace deltawire
