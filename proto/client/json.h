// Messages as JSON, in the form that docs/json.md promises for the tool and the C ABI.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/identity.h"

namespace deltawire {

/// Keeps members in insertion order, so that JSON reads like the tables.
using Json = nlohmann::ordered_json;

/// Like ToJson of the message: {"epoch", "version", "lineage", "root", "attempt", "trace"}.
Json IdentityJson(const Identity& identity);
/// Returns a message's fields under their names in the .proto files. 64-bit numbers stay numbers.
/// Hashes and tokens (fixed64) become 16 hex digits, because not every JSON reader keeps 64 bits.
/// An identity also has its `trace` (common/base/trace.h).
Json ToJson(const google::protobuf::Message& message);
/// Returns one line without a newline. Bytes that are not UTF-8 are replaced.
std::string ToLine(const Json& json);

}  // namespace deltawire
