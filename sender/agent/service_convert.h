// Between the sender's structs and the messages of its services. Pure functions.
#pragma once

#include <grpcpp/server_context.h>

#include <functional>
#include <memory>

#include "common/delta/pull_stats.h"
#include "proto/deltawire/v1/sender.pb.h"
#include "sender/agent/attachments.h"
#include "sender/agent/model.h"

namespace deltawire::sender {

void ToProto(const VersionInfo& in, v1::VersionInfo* out);
/// Of the tensors that changed.
void ToProto(const Model& model, const Published& state,
             google::protobuf::RepeatedPtrField<v1::TensorChange>* out);
void ToProto(const FormCounts& in, google::protobuf::RepeatedPtrField<v1::CodecCount>* out);

ReceiverReport FromProto(const v1::ReceiverReport& in);

/// Empty when nothing is published.
VersionInfo InfoOf(const std::shared_ptr<const Published>& state);

/// Whether the caller has gone; for waits that take slices.
std::function<bool()> Gone(grpc::ServerContext* context);

}  // namespace deltawire::sender
