#include "receiver/pull/part_sink.h"

namespace deltawire::receiver {

StatusOr<MutableBytes> PartSink::Begin(const wire::FrameHeader& header) {
  if (!part_.contains(header.chunk)) {
    return Errorf(StatusCode::kDataLoss, "sender {} sent chunk {}, which is not of its part",
                  agent_, header.chunk);
  }
  return sink_.Begin(header);
}

Status PartSink::Finish(const wire::FrameHeader& header) {
  DW_RETURN_IF_ERROR(sink_.Finish(header));
  progress_(bytes_ += header.payload_bytes);
  return absl::OkStatus();
}

}  // namespace deltawire::receiver
