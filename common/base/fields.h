// A struct that names its fields, for conversions that are written once for all such structs, such
// as proto/fields.h. It has a function ForEachField(struct, f), which calls f(name, field) for each
// field.
#pragma once

#include <concepts>
#include <type_traits>

namespace deltawire {

/// T is Struct or const Struct.
template <typename T, typename Struct>
concept FieldsOf = std::same_as<std::remove_const_t<T>, Struct>;

template <typename Struct>
concept HasFields = requires(Struct& s) {
  ForEachField(s, [](const char*, auto&) {});
};

}  // namespace deltawire
