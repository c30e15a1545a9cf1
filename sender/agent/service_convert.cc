#include "sender/agent/service_convert.h"

#include "proto/convert.h"

namespace deltawire::sender {

void ToProto(const VersionInfo& in, v1::VersionInfo* out) {
  deltawire::ToProto(in.identity, out->mutable_id());
  out->set_model_bytes(in.model_bytes);
  out->set_delta_bytes(in.delta_bytes);
  out->set_full_bytes(in.full_bytes);
  out->set_elements(in.elements);
  out->set_changed_elements(in.changed_elements);
  out->set_trainer_wait_seconds(in.trainer_wait_seconds);
  out->set_offload_seconds(in.offload_seconds);
  out->set_publish_seconds(in.publish_seconds);
  out->set_ready_unix_nanos(in.ready_unix_nanos);
  out->set_published_unix_nanos(in.published_unix_nanos);
  out->set_rollback(in.rollback);
  out->set_side_files_hash(in.side_files_hash);
}

void ToProto(const Model& model, const Published& state,
             google::protobuf::RepeatedPtrField<v1::TensorChange>* out) {
  if (state.tensors == nullptr) return;
  for (size_t t = 0; t < state.tensors->size(); ++t) {
    const TensorChange& change = (*state.tensors)[t];
    if (change.changed_elements == 0 && change.full_bytes == 0) continue;
    const TensorMeta& meta = model.layout().tensor(t);
    v1::TensorChange* to = out->Add();
    to->set_name(meta.name);
    to->set_elements(model.layout().bytes(t) / DTypeBytes(meta.dtype));
    to->set_changed_elements(change.changed_elements);
    to->set_delta_bytes(change.delta_bytes);
    to->set_full_bytes(change.full_bytes);
  }
}

void ToProto(const FormCounts& in, google::protobuf::RepeatedPtrField<v1::CodecCount>* out) {
  for (size_t i = 0; i < kernels::kForms; ++i) {
    v1::CodecCount* to = out->Add();
    to->set_codec(kernels::kFormNames[i]);
    to->set_chunks(in.chunks[i]);
    to->set_bytes(in.bytes[i]);
  }
}

ReceiverReport FromProto(const v1::ReceiverReport& in) {
  return {.committed = deltawire::FromProto(in.committed()),
          .phase = ParseReceiverPhase(in.phase()),
          .bytes_done = in.bytes_done(),
          .bytes_total = in.bytes_total(),
          .message = in.message(),
          .event = in.event(),
          .sync_request = in.sync_request(),
          .last_pull = deltawire::FromProto(in.last_pull())};
}

VersionInfo InfoOf(const std::shared_ptr<const Published>& state) {
  return state == nullptr ? VersionInfo{} : state->info;
}

std::function<bool()> Gone(grpc::ServerContext* context) {
  return [context] { return context->IsCancelled(); };
}

}  // namespace deltawire::sender
