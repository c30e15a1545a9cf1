// How often a text has another: for tests that look for marks in a page. Pure. Threads: any. No
// errors.
#pragma once

#include <string>

namespace deltawire::metrics {

inline size_t Count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

}  // namespace deltawire::metrics
