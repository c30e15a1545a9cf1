// The common base of all C ABIs, internal to the shared libraries. It keeps each thread's last
// error text, lets no exception out, and reads and fills structs of other versions of the headers.
// Error codes are absl's, which are gRPC's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>

#include "common/base/status.h"

// The size of a struct whose last field is `field`: the smallest struct_size that the library
// accepts, because new fields are only added at the end.
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

/// Runs `call` and returns its code. No exception crosses the C boundary.
template <typename Call>
int Guard(Call call) noexcept {
  try {
    LastError().clear();
    const Status status = call();
    return status.ok() ? 0 : Fail(status);
  } catch (const std::bad_alloc&) {
    // This text fits std::string's inline buffer, so the assignment cannot throw.
    LastError() = "out of memory";
    return static_cast<int>(StatusCode::kResourceExhausted);
  } catch (const std::exception& e) {
    return Fail(Errorf(StatusCode::kInternal, "unexpected: {}", e.what()));
  }
}

inline Status Invalid(const std::string& what) {
  return Status(StatusCode::kInvalidArgument, what);
}

/// Copies the caller's struct, which may come from an older or newer version of the header. Fields
/// that an older struct lacks are zero in the copy.
template <typename T>
StatusOr<T> Read(const T* in, size_t smallest, const char* name) {
  if (in == nullptr) return Errorf(StatusCode::kInvalidArgument, "{} is NULL", name);
  if (in->struct_size < smallest) {
    return Errorf(StatusCode::kInvalidArgument,
                  "{}.struct_size is {}, less than {}; set it to sizeof({})", name, in->struct_size,
                  smallest, name);
  }
  T out{};
  std::memcpy(&out, in, std::min(in->struct_size, sizeof out));
  return out;
}

/// Fills the fields of the caller's struct that its struct_size covers.
template <typename T>
Status Fill(T value, size_t smallest, T* out, const char* name) {
  if (out == nullptr) return {};
  DW_ASSIGN_OR_RETURN(const T old, Read(out, smallest, name));
  value.struct_size = old.struct_size;
  std::memcpy(out, &value, std::min(old.struct_size, sizeof value));
  return {};
}

/// Returns element `i` of an array whose first element states the size of all.
template <typename T>
const T* At(const T* array, size_t i) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(array) + i * array->struct_size);
}

}  // namespace deltawire::c_abi
