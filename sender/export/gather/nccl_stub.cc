// The substitute for nccl_collective.cc where CUDA or NCCL is missing.
#include "sender/export/gather/nccl_collective.h"

namespace deltawire {

StatusOr<std::unique_ptr<Collective>> NewNcclCollective(std::unique_ptr<Collective> control, int,
                                                        Collective::Deadline) {
  const Status none = absl::UnimplementedError(
      "this program was built without NCCL: build it where nvcc, nccl.h and libnccl are found, or "
      "gather over Gloo");
  control->Abort(none);
  return none;
}

}  // namespace deltawire
