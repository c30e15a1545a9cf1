// The second file of a buffer that has two, between updates: it is made before the first version,
// which would wait for it, and brought up to each committed one. Errors name the directory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "receiver/buffer/buffer.h"

namespace deltawire::receiver {

/// False where every update goes to a fresh file, so that CatchUpSecondFile has no use for past
/// deltas.
bool CanCatchUp(const Buffer& buffer);
/// Whether no version is committed and the second file does not exist.
bool LacksSecondFile(const Buffer& buffer);
/// Makes the second file if it is lacking. kCancelled when `stop`, which is called from any thread,
/// returned true.
Status MakeSecondFile(Buffer& buffer, const std::function<bool()>& stop);

struct CaughtUp {
  bool whole = false;                    ///< the hidden file equals the committed one
  std::vector<uint32_t> corrupt_chunks;  ///< chunks of the committed file
};
/// Brings the hidden file up to the committed one, by `deltas` where they fit, else by copying. The
/// result is not whole when others have the hidden file open, or when `stop`, which is called from
/// any thread, returned true while nobody waited to open that file.
StatusOr<CaughtUp> CatchUpSecondFile(Buffer& buffer, std::span<const AppliedDelta> deltas,
                                     const std::function<bool()>& stop);

}  // namespace deltawire::receiver
