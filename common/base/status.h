// The one error vocabulary: absl::Status and StatusOr, with fmt-formatted messages. A message says
// what happened, to which file, tensor, peer or version, and what to do. Other libraries' errors
// are converted at one seam each (Asio in common/net/io_impl.h, gRPC in proto/convert.h).
#pragma once

#include <spdlog/fmt/fmt.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace deltawire {

using absl::Status;
using absl::StatusCode;
using absl::StatusOr;

/// Returns the message as std::string_view: Debian's abseil has a string_view type of its own,
/// which neither fmt nor std accepts.
inline std::string_view MessageOf(const Status& s) {
  return {s.message().data(), s.message().size()};
}

template <typename... Args>
Status Errorf(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

/// Returns the same code with `context` and ": " before the message.
inline Status Annotate(const Status& s, std::string_view context) {
  if (s.ok()) return s;
  return Status(s.code(), fmt::format("{}: {}", context, MessageOf(s)));
}

/// Returns the status of a failed system call. `what` names the call, e.g. "open /path".
inline Status ErrnoError(std::string_view what, int err = errno) {
  StatusCode code = StatusCode::kInternal;
  switch (err) {
    case ENOENT:
      code = StatusCode::kNotFound;
      break;
    case EACCES:
    case EPERM:
      code = StatusCode::kPermissionDenied;
      break;
    case EEXIST:
      code = StatusCode::kAlreadyExists;
      break;
    case ENOSPC:
    case ENOMEM:
    case EDQUOT:
      code = StatusCode::kResourceExhausted;
      break;
    case EADDRINUSE:
      code = StatusCode::kAlreadyExists;
      break;
    default:
      break;
  }
  return Status(code, fmt::format("{}: {}", what, std::strerror(err)));
}

}  // namespace deltawire

#define DW_CONCAT_INNER_(a, b) a##b
#define DW_CONCAT_(a, b) DW_CONCAT_INNER_(a, b)

/// Returns the status of `expr` from the enclosing function unless it is OK.
#define DW_RETURN_IF_ERROR(expr)             \
  do {                                       \
    ::deltawire::Status dw_status_ = (expr); \
    if (!dw_status_.ok()) return dw_status_; \
  } while (false)

/// Assigns the value of the StatusOr `expr` to `lhs`, or returns its status.
#define DW_ASSIGN_OR_RETURN(lhs, expr) \
  DW_ASSIGN_OR_RETURN_IMPL_(DW_CONCAT_(dw_or_, __LINE__), lhs, expr)
#define DW_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) return tmp.status();             \
  lhs = std::move(*tmp)
