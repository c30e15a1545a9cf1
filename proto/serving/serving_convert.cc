#include "proto/serving/serving_convert.h"

#include <algorithm>

#include "common/layout/names.h"

namespace deltawire {
namespace {

/// Returns `text`, or "" if it is longer than `most` or not visible ASCII, because it is shown to
/// other peers.
std::string Visible(const std::string& text, size_t most) {
  const auto visible = [](char c) { return c > ' ' && c <= '~'; };
  return text.size() <= most && std::ranges::all_of(text, visible) ? text : std::string();
}

}  // namespace

ReceiverReport FromProto(const v1::ReceiverReport& in) {
  const auto engines = in.has_engines() ? std::optional(in.engines()) : std::nullopt;
  return {.committed = FromProto(in.committed()),
          .phase = ParseReceiverPhase(in.phase()),
          .bytes_done = in.bytes_done(),
          .bytes_total = in.bytes_total(),
          .message = FitUtf8(in.message(), kMaxReportMessage),
          .event = in.event(),
          .sync_request = in.sync_request(),
          .last_pull = FromProto(in.last_pull()),
          .group = {.round = in.group().round(),
                    .prepared = in.group().prepared(),
                    .refusal = FitUtf8(in.group().refusal(), kMaxReportMessage)},
          .follows = Visible(in.follows(), kMaxServeAddress),
          .engines = {.engines = engines, .oldest = FromProto(in.served())}};
}

SiteOffer OfferOf(const v1::ReceiverReport& in) {
  return {.site = Visible(in.site(), kMaxSiteName),
          .address = Visible(in.serve_address(), kMaxServeAddress)};
}

std::string SiteOf(const v1::OpenPullRequest& in) { return Visible(in.site(), kMaxSiteName); }

VersionInfo PublishedInfo(const StateSource& source) {
  const auto state = source.published();
  return state == nullptr ? VersionInfo{} : state->info;
}

}  // namespace deltawire
