// Messages as JSON, in the form that docs/json.md promises of the tool and of the C ABI. Pure
// functions. Threads: any. Cost: a copy of each value. Errors: none.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/identity.h"

namespace deltawire {

/// Keeps members in the order in which they were set, so that JSON reads like the tables.
using Json = nlohmann::ordered_json;

/// Like ToJson of the message: {"epoch", "version", "lineage", "root", "attempt", "trace"}.
Json IdentityJson(const Identity& identity);
/// A message's fields under their names in the .proto files. 64-bit numbers stay numbers, except
/// hashes and tokens (fixed64), which become 16 hex digits, since not every JSON reader keeps 64
/// bits. An identity also has its `trace` (common/base/trace.h).
Json ToJson(const google::protobuf::Message& message);
/// One line, without its end. Bytes that are no UTF-8 are replaced.
std::string ToLine(const Json& json);

}  // namespace deltawire
