// Translates what is served between proto and structs: versions, and what receivers report.
// Pure functions.
#pragma once

#include "common/serving/attachments.h"
#include "common/serving/state_source.h"
#include "proto/convert.h"
#include "proto/deltawire/v1/sender.pb.h"

namespace deltawire {

void ToProto(const VersionInfo& in, v1::VersionInfo* out);
/// Of a long message only kMaxReportMessage bytes are copied.
ReceiverReport FromProto(const v1::ReceiverReport& in);
/// Of what `source` has published; epoch 0: nothing yet.
VersionInfo PublishedInfo(const StateSource& source);

}  // namespace deltawire
