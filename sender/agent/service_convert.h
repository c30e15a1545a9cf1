// Translates between the sender's structs and the messages of its services.
#pragma once

#include <grpcpp/server_context.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/delta/pull_stats.h"
#include "common/serving/attachments.h"
#include "proto/deltawire/v1/sender.pb.h"
#include "sender/agent/fleet/assigner.h"
#include "sender/agent/fleet/groups.h"
#include "sender/agent/model.h"

namespace deltawire::sender {

/// Appends one entry for each tensor that `state` changed.
void ToProto(const Model& model, const Published& state,
             google::protobuf::RepeatedPtrField<v1::TensorChange>* out);
void ToProto(const FormCounts& in, google::protobuf::RepeatedPtrField<v1::CodecCount>* out);

void ToProto(const std::string& name, const GroupOutcome& in, v1::GroupOutcome* out);
void ToProto(const GroupView& in, v1::GroupStatus* out);
/// The upstreams of the attached receivers of all models.
class SiteTree {
 public:
  SiteTree(const std::vector<ReceiverView>& views, const Assigner& assigner);
  /// Writes one receiver's place.
  void Write(const ReceiverView& view, v1::ReceiverInfo* out) const;

 private:
  using Key = std::pair<std::string, std::string>;  // of a model
  std::map<Key, std::string> ids_;                  // by address
  std::map<Key, SitePlace> places_;                 // by id
};

/// The phase of a member in a sync's progress.
std::string_view SyncPhase(const Groups::Progress& member);

/// Returns a function that tells whether the caller has gone. It must not outlive `context`.
std::function<bool()> Gone(grpc::ServerContext* context);

}  // namespace deltawire::sender
