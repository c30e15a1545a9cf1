// Conversions between gRPC's and our own types, both ways: status codes, tensors_meta, side files,
// coverage, identities, and a pull's figures. Both daemons, the CLI and the trainer's client share
// them.
#pragma once

#include <google/protobuf/repeated_field.h>
#include <grpcpp/support/status.h>

#include <vector>

#include "common/base/assignment.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/delta/pull_request.h"
#include "common/delta/pull_stats.h"
#include "common/delta/receiver_report.h"
#include "common/delta/sender_event.h"
#include "common/delta/version_info.h"
#include "common/layout/coverage.h"
#include "common/layout/layout.h"
#include "common/layout/model_dir.h"
#include "proto/deltawire/v1/common.pb.h"
#include "proto/deltawire/v1/sender.pb.h"
#include "proto/fields.h"

namespace deltawire {

/// Keeps the code: absl's and gRPC's codes have the same numbers by design.
grpc::Status ToGrpc(const Status& s);
/// `context` names the peer and the call, e.g. "sender 127.0.0.1:7700: OpenPull". The message
/// begins with it.
Status FromGrpc(const grpc::Status& s, std::string_view context);

void ToProto(const Layout& layout, google::protobuf::RepeatedPtrField<v1::TensorMeta>* out);
StatusOr<std::vector<TensorMeta>> FromProto(
    const google::protobuf::RepeatedPtrField<v1::TensorMeta>& in);

void ToProto(const std::vector<SideFile>& files,
             google::protobuf::RepeatedPtrField<v1::SideFile>* out);
std::vector<SideFile> FromProto(const google::protobuf::RepeatedPtrField<v1::SideFile>& in);

void ToProto(const Coverage& coverage, google::protobuf::RepeatedPtrField<v1::ChunkRange>* out);
std::vector<ChunkRange> FromProto(const google::protobuf::RepeatedPtrField<v1::ChunkRange>& in);

/// A message has the forms' chunk counts, not their bytes. Here and in a PullRequest's decoding
/// speeds, a codec's field is found by the codec's name.
void ToProto(const PullStats& stats, v1::PullStats* out);
PullStats FromProto(const v1::PullStats& in);

// Others see the texts that a peer sends of itself. So texts that are too long are truncated, and
// sites and addresses that are too long or not visible ASCII count as none.
void ToProto(const PullRequest& request, v1::OpenPullRequest* out);
PullRequest FromProto(const v1::OpenPullRequest& in);

void ToProto(const ReceiverReport& report, v1::ReceiverReport* out);
ReceiverReport FromProto(const v1::ReceiverReport& in);
/// Reads the first report.
SiteOffer OfferOf(const v1::ReceiverReport& in);

void ToProto(const SenderEvent& event, v1::SenderEvent* out);
SenderEvent FromProto(const v1::SenderEvent& in);

/// Largest gRPC message: tensors_meta of a million tensors, and side files with a tokenizer.
inline constexpr int kMaxControlMessage = 512 << 20;

}  // namespace deltawire
