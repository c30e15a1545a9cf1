// Translates what is served between proto and structs: versions, and what receivers report.
// Pure functions.
#pragma once

#include "common/serving/attachments.h"
#include "common/serving/state_source.h"
#include "proto/convert.h"
#include "proto/deltawire/v1/sender.pb.h"

namespace deltawire {

void ToProto(const VersionInfo& in, v1::VersionInfo* out);
/// A message of more than kMaxReportMessage bytes is cut.
ReceiverReport FromProto(const v1::ReceiverReport& in);
/// What the first report says. A site or an address that is too long, or no text, is none.
SiteOffer OfferOf(const v1::ReceiverReport& in);
std::string SiteOf(const v1::OpenPullRequest& in);
/// The info of the version that `source` has published; epoch 0 if there is none.
VersionInfo PublishedInfo(const StateSource& source);

}  // namespace deltawire
