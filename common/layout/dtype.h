// The element types of safetensors files, with their names and widths. The names come from the
// safetensors format (F64 ... F8_E5M2, I64 ... U8, BOOL, BF16).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/status.h"

namespace deltawire {

enum class DType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};

std::string_view DTypeName(DType t);           ///< e.g. "BF16"
unsigned DTypeBytes(DType t);                  ///< bytes per element for diffs: 1, 2, 4 or 8
StatusOr<DType> ParseDType(std::string_view);  ///< the error lists the known names
std::span<const DType> AllDTypes();

}  // namespace deltawire
