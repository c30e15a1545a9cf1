// A stream of events from untrusted JSON: one pass with no tree, no recursion and bounded depth. A
// reader derives from JsonEvents, tracks its position in the document as a state, and returns an
// error for events that do not fit there. The first error ends the pass.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace deltawire {

class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual Status StartObject() = 0;
  virtual Status EndObject() = 0;
  virtual Status StartArray() = 0;
  virtual Status EndArray() = 0;
  virtual Status Key(std::string& key) = 0;         ///< may be moved from
  virtual Status String(std::string& value) = 0;    ///< may be moved from
  virtual Status Unsigned(uint64_t value) = 0;      ///< a whole number in [0, 2^64)
  virtual Status Other(std::string_view kind) = 0;  ///< any other scalar, e.g. "null"
};

/// Feeds `text` to `events`. Returns an event's error, or kInvalidArgument with the byte position
/// for text that is malformed, not UTF-8 or nested deeper than 16.
Status ReadJson(std::string_view text, JsonEvents& events);

}  // namespace deltawire
