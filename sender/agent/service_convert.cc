#include "sender/agent/service_convert.h"

#include "proto/convert.h"

namespace deltawire::sender {

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

VersionInfo InfoOf(const std::shared_ptr<const Published>& state) {
  return state == nullptr ? VersionInfo{} : state->info;
}

std::function<bool()> Gone(grpc::ServerContext* context) {
  return [context] { return context->IsCancelled(); };
}

}  // namespace deltawire::sender
