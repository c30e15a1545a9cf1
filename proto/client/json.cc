#include "proto/client/json.h"

#include "common/base/trace.h"
#include "proto/convert.h"
#include "proto/deltawire/v1/common.pb.h"

namespace deltawire {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Returns element `i` of a repeated field, or the single value if i < 0.
Json FieldJson(const Message& m, const FieldDescriptor* field, int i) {
  const auto* r = m.GetReflection();
  const bool one = i < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? r->GetInt64(m, field) : r->GetRepeatedInt64(m, field, i);
    case FieldDescriptor::CPPTYPE_UINT64:
      if (field->type() == FieldDescriptor::TYPE_FIXED64) {
        return fmt::format("{:016x}",
                           one ? r->GetUInt64(m, field) : r->GetRepeatedUInt64(m, field, i));
      }
      return one ? r->GetUInt64(m, field) : r->GetRepeatedUInt64(m, field, i);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? r->GetUInt32(m, field) : r->GetRepeatedUInt32(m, field, i);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? r->GetDouble(m, field) : r->GetRepeatedDouble(m, field, i);
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? r->GetBool(m, field) : r->GetRepeatedBool(m, field, i);
    case FieldDescriptor::CPPTYPE_STRING:
      return one ? r->GetString(m, field) : r->GetRepeatedString(m, field, i);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(one ? r->GetMessage(m, field) : r->GetRepeatedMessage(m, field, i));
    default:
      return nullptr;  // no other type is used in proto/deltawire/v1
  }
}

}  // namespace

Json ToJson(const Message& message) {
  Json json = Json::object();
  const auto* descriptor = message.GetDescriptor();
  for (int f = 0; f < descriptor->field_count(); ++f) {
    const FieldDescriptor* field = descriptor->field(f);
    if (!field->is_repeated()) {
      json[field->name()] = FieldJson(message, field, -1);
      continue;
    }
    Json& list = json[field->name()] = Json::array();
    const int n = message.GetReflection()->FieldSize(message, field);
    for (int i = 0; i < n; ++i) list.push_back(FieldJson(message, field, i));
  }
  // The trace, as in log lines. It is computed here, because messages do not contain it.
  if (const auto* identity = dynamic_cast<const v1::Identity*>(&message)) {
    json["trace"] = fmt::format("{:016x}", TraceOf(FromProto(*identity)).value);
  }
  return json;
}

Json IdentityJson(const Identity& identity) {
  v1::Identity message;
  ToProto(identity, &message);
  return ToJson(message);
}

std::string ToLine(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace deltawire
