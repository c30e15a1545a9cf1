#include "common/layout/dtype.h"

#include <array>

#include "common/layout/names.h"

namespace deltawire {
namespace {

struct Entry {
  DType type;
  std::string_view name;
  unsigned bytes;
};

// A type that no code singles out has no enumerator.
constexpr DType Unnamed(unsigned number) { return static_cast<DType>(number); }

// In the order of the enum, so that a type's value is its index.
constexpr std::array<Entry, 19> kTable = {{
    {DType::kF64, "F64", 8},     {DType::kF32, "F32", 4},         {DType::kF16, "F16", 2},
    {DType::kBF16, "BF16", 2},   {DType::kF8E4M3, "F8_E4M3", 1},  {DType::kF8E5M2, "F8_E5M2", 1},
    {DType::kI64, "I64", 8},     {DType::kI32, "I32", 4},         {DType::kI16, "I16", 2},
    {DType::kI8, "I8", 1},       {DType::kU64, "U64", 8},         {DType::kU32, "U32", 4},
    {DType::kU16, "U16", 2},     {DType::kU8, "U8", 1},           {DType::kBool, "BOOL", 1},
    {Unnamed(15), "F8_E8M0", 1}, {Unnamed(16), "F8_E4M3FNUZ", 1}, {Unnamed(17), "F8_E5M2FNUZ", 1},
    {Unnamed(18), "C64", 8},
}};

constexpr auto kTypes = [] {
  std::array<DType, kTable.size()> types{};
  for (size_t i = 0; i < kTable.size(); ++i) types[i] = kTable[i].type;
  return types;
}();

constexpr bool TableIsInEnumOrder() {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<size_t>(kTable[i].type) != i) return false;
  }
  return static_cast<size_t>(DType::kBool) < kTable.size();
}
static_assert(TableIsInEnumOrder());

const Entry& EntryOf(DType t) { return kTable[static_cast<size_t>(t)]; }

}  // namespace

std::string_view DTypeName(DType t) { return EntryOf(t).name; }

unsigned DTypeBytes(DType t) { return EntryOf(t).bytes; }

StatusOr<DType> ParseDType(std::string_view name) {
  std::string known;
  for (const Entry& e : kTable) {
    if (e.name == name) return e.type;
  }
  for (const Entry& e : kTable) {
    if (!known.empty()) known += ", ";
    known += e.name;
  }
  return Errorf(StatusCode::kInvalidArgument, "dtype {} is unknown: expected one of {}",
                Quoted(name), known);
}

std::span<const DType> AllDTypes() { return kTypes; }

}  // namespace deltawire
