// Copies a struct's fields (common/base/fields.h) to and from the fields of a message that have the
// same names.
#pragma once

#include <google/protobuf/message.h>
#include <google/protobuf/reflection.h>

#include <cassert>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/fields.h"
#include "common/base/identity.h"
#include "proto/deltawire/v1/common.pb.h"

namespace deltawire {

void ToProto(const Identity& identity, v1::Identity* out);
/// A lineage that is not 32 hex digits becomes zero.
Identity FromProto(const v1::Identity& in);

template <typename T>
inline constexpr bool kIsVector = false;
template <typename T>
inline constexpr bool kIsVector<std::vector<T>> = true;
template <typename T>
inline constexpr bool kIsOptional = false;
template <typename T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

template <HasFields Struct>
void ToProto(const Struct& in, google::protobuf::Message* out) {
  const auto* const reflection = out->GetReflection();
  ForEachField(in, [&]<typename T>(const char* name, const T& value) {
    const auto* const field = out->GetDescriptor()->FindFieldByName(name);
    assert(field != nullptr);
    if constexpr (HasFields<T>) {
      ToProto(value, reflection->MutableMessage(out, field));
    } else if constexpr (kIsOptional<T>) {
      if (value) ToProto(*value, reflection->MutableMessage(out, field));
    } else if constexpr (kIsVector<T>) {
      const auto list = reflection->GetMutableRepeatedFieldRef<typename T::value_type>(out, field);
      for (const auto& element : value) list.Add(element);
    } else if constexpr (std::same_as<T, Identity>) {
      ToProto(value, static_cast<v1::Identity*>(reflection->MutableMessage(out, field)));
    } else if constexpr (std::same_as<T, Hash128>) {
      reflection->SetString(out, field, value.Hex());
    } else if constexpr (std::same_as<T, bool>) {
      reflection->SetBool(out, field, value);
    } else if constexpr (std::same_as<T, double>) {
      reflection->SetDouble(out, field, value);
    } else if constexpr (std::same_as<T, int64_t>) {
      reflection->SetInt64(out, field, value);
    } else if constexpr (std::same_as<T, uint32_t>) {
      reflection->SetUInt32(out, field, value);
    } else if constexpr (std::same_as<T, std::string>) {
      reflection->SetString(out, field, value);
    } else {
      static_assert(std::same_as<T, uint64_t>);
      reflection->SetUInt64(out, field, value);
    }
  });
}

template <HasFields Struct>
Struct FromProto(const google::protobuf::Message& in) {
  Struct out;
  const auto* const reflection = in.GetReflection();
  ForEachField(out, [&]<typename T>(const char* name, T& value) {
    const auto* const field = in.GetDescriptor()->FindFieldByName(name);
    assert(field != nullptr);
    if constexpr (HasFields<T>) {
      value = FromProto<T>(reflection->GetMessage(in, field));
    } else if constexpr (kIsOptional<T>) {
      if (!reflection->HasField(in, field)) return;
      value = FromProto<typename T::value_type>(reflection->GetMessage(in, field));
    } else if constexpr (kIsVector<T>) {
      const auto list = reflection->GetRepeatedFieldRef<typename T::value_type>(in, field);
      value.assign(list.begin(), list.end());
    } else if constexpr (std::same_as<T, Identity>) {
      value = FromProto(static_cast<const v1::Identity&>(reflection->GetMessage(in, field)));
    } else if constexpr (std::same_as<T, Hash128>) {
      value = Hash128::FromHex(reflection->GetString(in, field)).value_or(Hash128());
    } else if constexpr (std::same_as<T, bool>) {
      value = reflection->GetBool(in, field);
    } else if constexpr (std::same_as<T, double>) {
      value = reflection->GetDouble(in, field);
    } else if constexpr (std::same_as<T, int64_t>) {
      value = reflection->GetInt64(in, field);
    } else if constexpr (std::same_as<T, uint32_t>) {
      value = reflection->GetUInt32(in, field);
    } else if constexpr (std::same_as<T, std::string>) {
      value = reflection->GetString(in, field);
    } else {
      static_assert(std::same_as<T, uint64_t>);
      value = reflection->GetUInt64(in, field);
    }
  });
  return out;
}

}  // namespace deltawire
