// The text rules for names from files and peers: UTF-8, and quotes for messages. Quoted text is
// always valid UTF-8 and bounded, so it is safe in a log line and in a protobuf string.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace deltawire {

/// Returns the length in bytes of the well-formed UTF-8 sequence at the start of `s` (no overlong
/// forms, no surrogates, nothing above U+10FFFF), or 0 when `s` does not start with one.
size_t Utf8SequenceLength(std::string_view s);

bool IsUtf8(std::string_view s);

/// Returns as much of `s` as fits into `most` bytes without cutting a character. Bytes that are not
/// UTF-8 become '?'.
std::string FitUtf8(std::string_view s, size_t most);

/// Quotes `s` for messages: control characters and broken UTF-8 become \xNN, and a long text is cut
/// after about 160 bytes.
std::string Quoted(std::string_view s);

/// Appends `s` as a JSON string. Bytes that are not UTF-8 become U+FFFD.
void AppendJsonString(std::string_view s, std::string& out);

}  // namespace deltawire
