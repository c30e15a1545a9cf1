#include "common/base/attempt.h"

#include <sys/random.h>

namespace deltawire {

uint64_t DrawAttempt() {
  uint64_t attempt = 0;
  // A signal can cut the answer short.
  while (getrandom(&attempt, sizeof attempt, 0) != sizeof attempt || attempt == 0) {
  }
  return attempt;
}

}  // namespace deltawire
