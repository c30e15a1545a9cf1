// Shared by the C ABI's source files, internal to the library: its handles, its errors, and reading
// structs of other versions of the header. Owner of a handle: the caller of the C ABI. Threads: as
// the C functions that use it. Cost: small copies. Errors: Fail keeps the text for dw_last_error.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "sender/export/abi/deltawire_export.h"
#include "sender/export/client/trainer_client.h"

struct dw_client {
  explicit dw_client(const dw_client_options& o)
      : client(o.endpoint, o.model, o.rank, o.world == 0 ? 1 : o.world,
               std::chrono::milliseconds(o.timeout_ms == 0 ? 30000 : o.timeout_ms)) {
    client.SetCopyThreads(o.copy_threads);
    if (o.publisher != nullptr) client.SetPublisher(o.publisher);
  }
  deltawire::TrainerClient client;
};

struct dw_offload {
  std::unique_ptr<deltawire::TrainerClient::Offload> offload;
  size_t tensors = 0;
};

// The size of a struct that ends with `field`: what the library asks of a caller at least, since
// structs only ever grow.
#define DW_SIZE_UP_TO(type, field) (offsetof(type, field) + sizeof(type::field))

namespace deltawire::c_abi {

constexpr size_t kTensorMetaSize = DW_SIZE_UP_TO(dw_tensor_meta, ndim);
constexpr size_t kRegisteredSize = DW_SIZE_UP_TO(dw_registered, fingerprint);

inline std::string& LastError() {
  thread_local std::string text;
  return text;
}

inline int Fail(const Status& status) {
  LastError() = std::string(MessageOf(status));
  return static_cast<int>(status.code());
}

/// Runs `call` and returns its code; no exception crosses the C boundary.
template <typename Call>
int Guard(Call call) noexcept {
  try {
    LastError().clear();
    const Status status = call();
    return status.ok() ? DW_OK : Fail(status);
  } catch (const std::bad_alloc&) {
    return DW_RESOURCE_EXHAUSTED;
  } catch (const std::exception& e) {
    return Fail(Errorf(StatusCode::kInternal, "unexpected: {}", e.what()));
  }
}

inline Status Invalid(const std::string& what) {
  return Status(StatusCode::kInvalidArgument, what);
}

/// A copy of the caller's struct, which may come from an older or a newer version of the header: of
/// an older one the missing fields are zero.
template <typename T>
StatusOr<T> Read(const T* in, size_t smallest, const char* name) {
  if (in == nullptr) return Errorf(StatusCode::kInvalidArgument, "{} is NULL", name);
  if (in->struct_size < smallest) {
    return Errorf(StatusCode::kInvalidArgument,
                  "{}.struct_size is {}, at least {} is wanted; set it to sizeof({})", name,
                  in->struct_size, smallest, name);
  }
  T out{};
  std::memcpy(&out, in, std::min(in->struct_size, sizeof out));
  return out;
}

/// Fills those fields of the caller's struct that its struct_size covers.
template <typename T>
Status Fill(T value, size_t smallest, T* out, const char* name) {
  if (out == nullptr) return {};
  DW_ASSIGN_OR_RETURN(const T old, Read(out, smallest, name));
  value.struct_size = old.struct_size;
  std::memcpy(out, &value, std::min(old.struct_size, sizeof value));
  return {};
}

/// Element `i` of an array whose elements all have the size that the first one states.
template <typename T>
const T* At(const T* array, size_t i) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(array) + i * array->struct_size);
}

/// Writes 32 hex digits and a NUL; "" for no lineage.
inline void CopyLineage(const Identity& identity, char (&to)[33]) {
  if (identity.lineage != Hash128()) identity.lineage.Hex().copy(to, sizeof to - 1);
}

/// The result of Register, as the C struct.
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
