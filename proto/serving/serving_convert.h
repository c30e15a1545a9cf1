// Conversions between messages and structs of what is served: versions, and receivers' reports.
#pragma once

#include "common/serving/attachments.h"
#include "common/serving/state_source.h"
#include "proto/convert.h"
#include "proto/deltawire/v1/sender.pb.h"

namespace deltawire {

/// Truncates a message of more than kMaxReportMessage bytes.
ReceiverReport FromProto(const v1::ReceiverReport& in);
/// Reads the first report. A site or an address that is too long or not text counts as none.
SiteOffer OfferOf(const v1::ReceiverReport& in);
std::string SiteOf(const v1::OpenPullRequest& in);
/// Returns the published version's info, or epoch 0 if there is none.
VersionInfo PublishedInfo(const StateSource& source);

}  // namespace deltawire
