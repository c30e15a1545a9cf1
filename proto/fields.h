// Copies a struct's fields to and from the fields of a message that have the same names. A struct
// takes part by a function ForEachField(struct, f), which calls f(name, field) for each of them.
#pragma once

#include <google/protobuf/message.h>

#include <cassert>
#include <concepts>
#include <cstdint>
#include <string>

#include "common/base/identity.h"
#include "proto/deltawire/v1/common.pb.h"

namespace deltawire {

void ToProto(const Identity& identity, v1::Identity* out);
/// A lineage that is not 32 hex digits becomes zero.
Identity FromProto(const v1::Identity& in);

template <typename Struct>
concept HasFields = requires(Struct& s) {
  ForEachField(s, [](const char*, auto&) {});
};

template <HasFields Struct>
void ToProto(const Struct& in, google::protobuf::Message* out) {
  const auto* const reflection = out->GetReflection();
  ForEachField(in, [&]<typename T>(const char* name, const T& value) {
    const auto* const field = out->GetDescriptor()->FindFieldByName(name);
    assert(field != nullptr);
    if constexpr (std::same_as<T, Identity>) {
      ToProto(value, static_cast<v1::Identity*>(reflection->MutableMessage(out, field)));
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
    if constexpr (std::same_as<T, Identity>) {
      value = FromProto(static_cast<const v1::Identity&>(reflection->GetMessage(in, field)));
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
