#include "sender/service_convert.h"

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

void ToProto(const decltype(ReceiverReport::last_pull)& in, v1::PullStats* out) {
  out->set_chunks_full(in.chunks_full);
  out->set_chunks_delta(in.chunks_delta);
  out->set_chunks_unchanged(in.chunks_unchanged);
  out->set_payload_bytes(in.payload_bytes);
  out->set_seconds(in.seconds);
  out->set_transfer_seconds(in.transfer_seconds);
  out->set_apply_seconds(in.apply_seconds);
  out->set_repaired_chunks(in.repaired_chunks);
  out->set_chunks_tight(in.chunks_tight);
  out->set_chunks_dense(in.chunks_dense);
  out->set_refused_chunks(in.refused_chunks);
  out->set_history_chunks(in.history_chunks);
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

void ToProto(const CodecCounts& in, google::protobuf::RepeatedPtrField<v1::CodecCount>* out) {
  for (size_t i = 0; i < CodecCounts::kForms; ++i) {
    v1::CodecCount* to = out->Add();
    to->set_codec(CodecCounts::kNames[i]);
    to->set_chunks(in.chunks[i]);
    to->set_bytes(in.bytes[i]);
  }
}

ReceiverReport FromProto(const v1::ReceiverReport& in) {
  ReceiverReport out;
  out.committed = deltawire::FromProto(in.committed());
  out.phase = in.phase();
  out.bytes_done = in.bytes_done();
  out.bytes_total = in.bytes_total();
  out.message = in.message();
  out.event = in.event();
  out.sync_request = in.sync_request();
  const v1::PullStats& p = in.last_pull();
  out.last_pull = {p.chunks_full(),   p.chunks_delta(),    p.chunks_unchanged(),
                   p.payload_bytes(), p.seconds(),         p.transfer_seconds(),
                   p.apply_seconds(), p.repaired_chunks(), p.chunks_tight(),
                   p.chunks_dense(),  p.refused_chunks(),  p.history_chunks()};
  return out;
}

VersionInfo InfoOf(const std::shared_ptr<const Published>& state) {
  return state == nullptr ? VersionInfo{} : state->info;
}

std::function<bool()> Gone(grpc::ServerContext* context) {
  return [context] { return context->IsCancelled(); };
}

}  // namespace deltawire::sender
