// The names of an engine's processes, by which a new process is told from several servers behind
// one address. Its owner synchronizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltawire::receiver {

class ProcessNames {
 public:
  enum class Seen : uint8_t {
    kSame,     ///< as the answer before, or no name
    kFirst,    ///< the first name
    kNew,      ///< another process is in its place
    kSeveral,  ///< an earlier process answers again
  };
  /// Records the name in an answer; "": the answer has none.
  Seen See(const std::string& name);

 private:
  std::string now_;                  // empty: not known
  std::vector<std::string> before_;  // oldest first
};

}  // namespace deltawire::receiver
