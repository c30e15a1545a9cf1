// The handles of the C ABI, and helpers that fill its structs, shared by its source files and
// internal to the library. The caller of the C ABI owns each handle.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "common/base/c_abi.h"
#include "sender/export/abi/deltawire_export.h"
#include "sender/export/client/trainer_client.h"
#include "sender/export/device/device_queues.h"

struct dw_client {
  explicit dw_client(const dw_client_options& o)
      : client(o.endpoint, o.model, o.rank, o.world == 0 ? 1 : o.world,
               std::chrono::milliseconds(o.timeout_ms == 0 ? 30000 : o.timeout_ms)) {
    client.SetCopyThreads(o.copy_threads);
    if (o.publisher != nullptr) client.SetPublisher(o.publisher);
    client.SetNotice(
        [](const std::string& text) { std::fprintf(stderr, "deltawire: %s\n", text.c_str()); });
  }
  deltawire::TrainerClient client;
  deltawire::DeviceQueues devices;
};

struct dw_offload {
  dw_client* client = nullptr;
  std::unique_ptr<deltawire::TrainerClient::Offload> offload;
  size_t tensors = 0;
  deltawire::Hash128 fingerprint;  // of the client's layout when it began
  std::string diffed_on = {};      // as dw_offload_diffed_on has returned it
};

struct dw_mapping {
  std::shared_ptr<deltawire::HalfMapping> file;
};

namespace deltawire::c_abi {

constexpr size_t kTensorMetaSize = DW_SIZE_UP_TO(dw_tensor_meta, ndim);
constexpr size_t kRegisteredSize = DW_SIZE_UP_TO(dw_registered, fingerprint);

/// Writes 32 hex digits and a NUL, or "" for no lineage.
inline void CopyLineage(const Identity& identity, char (&to)[33]) {
  if (identity.lineage != Hash128()) identity.lineage.Hex().copy(to, sizeof to - 1);
}

inline dw_registered Registered(const Layout& layout, const Identity& published) {
  dw_registered out{};
  out.epoch = published.id.epoch;
  out.version = published.id.version;
  CopyLineage(published, out.lineage);
  out.root = published.root;
  out.total_bytes = layout.total_bytes();
  const std::string fingerprint = layout.fingerprint().Hex();
  fingerprint.copy(out.fingerprint, sizeof out.fingerprint - 1);
  return out;
}

}  // namespace deltawire::c_abi
