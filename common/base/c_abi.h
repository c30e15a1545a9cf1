// What all our C ABIs have in common: they keep a call's error, let no exception out, and read and
// fill structs of other versions of their headers. Internal to the shared libraries. Owner of an
// error's text: the thread. Cost: small copies. Errors: Fail keeps the text for the library's
// last-error function; codes are absl's, which are gRPC's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>

#include "common/base/status.h"

// The size of a struct whose last field is `field`. The library uses it as the smallest struct_size
// that it accepts: a struct only ever gets new fields at its end.
#define DW_SIZE_UP_TO(type, field) (offsetof(type, field) + sizeof(type::field))

namespace deltawire::c_abi {

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
    return status.ok() ? 0 : Fail(status);
  } catch (const std::bad_alloc&) {
    // A text this short needs no memory of its own, so that it cannot throw as well.
    LastError() = "out of memory";
    return static_cast<int>(StatusCode::kResourceExhausted);
  } catch (const std::exception& e) {
    return Fail(Errorf(StatusCode::kInternal, "unexpected: {}", e.what()));
  }
}

inline Status Invalid(const std::string& what) {
  return Status(StatusCode::kInvalidArgument, what);
}

/// A copy of the caller's struct, which may come from an older or a newer version of the header. In
/// the copy of an older struct, the fields that it lacks are zero.
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

}  // namespace deltawire::c_abi
