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

void ToProto(const std::string& name, const GroupOutcome& in, v1::GroupOutcome* out) {
  out->set_name(name);
  out->set_round(in.round);
  out->set_committed(in.committed);
  deltawire::ToProto(in.target, out->mutable_target());
  out->set_message(in.message);
  out->set_members(in.members);
  out->set_late(in.late);
  out->set_prepare_seconds(in.prepare_seconds);
  out->set_spread_seconds(in.spread_seconds);
  out->set_word_seconds(in.word_seconds);
}

void ToProto(const GroupView& in, v1::GroupStatus* out) {
  out->set_name(in.name);
  out->set_standing(in.standing);
  out->set_phase(std::string(ToString(in.status.phase)));
  out->set_round(in.status.round);
  deltawire::ToProto(in.status.target, out->mutable_target());
  deltawire::ToProto(in.status.decision.state, out->mutable_committed());
  for (const GroupView::Member& member : in.members) {
    v1::GroupMemberStatus* m = out->add_members();
    m->set_receiver_id(member.id);
    m->set_state(std::string(ToString(member.state)));
    m->set_message(member.message);
  }
  ToProto(in.name, in.status.last, out->mutable_last());
  out->set_commits(in.status.commits);
  out->set_aborts(in.status.aborts);
}

SiteTree::SiteTree(const std::vector<ReceiverView>& views, const Assigner& assigner) {
  for (const ReceiverView& view : views) {
    if (view.offer.site.empty()) continue;
    if (!view.offer.address.empty()) ids_.emplace(Key(view.model, view.offer.address), view.id);
    if (places_.contains({view.model, view.id})) continue;
    for (auto& [id, place] : assigner.places(view.model)) {
      places_.emplace(Key(view.model, id), place);
    }
  }
}

void SiteTree::Write(const ReceiverView& view, v1::ReceiverInfo* out) const {
  out->set_site(view.offer.site);
  out->set_serve_address(view.offer.address);
  const auto id = ids_.find({view.model, view.report.follows});
  out->set_follows(id == ids_.end() ? view.report.follows : id->second);
  const auto place = places_.find({view.model, view.id});
  if (place == places_.end()) return;
  out->set_assigned(place->second.parent);
  out->set_not_handed_out(place->second.not_handed_out);
}

std::string_view SyncPhase(const Groups::Progress& member) {
  const ReceiverPhase said = member.report.phase;
  switch (member.state) {
    case GroupMemberState::kCommitted:
      return ToString(ReceiverPhase::kCommitted);
    case GroupMemberState::kPrepared:
      return ToString(ReceiverPhase::kPrepared);
    case GroupMemberState::kRefused:
    case GroupMemberState::kLate:
      return ToString(ReceiverPhase::kFailed);
    case GroupMemberState::kAway:
    case GroupMemberState::kAsked:
      break;
  }
  const bool busy = said == ReceiverPhase::kPulling || said == ReceiverPhase::kApplying;
  return ToString(busy ? said : ReceiverPhase::kAsked);
}

std::function<bool()> Gone(grpc::ServerContext* context) {
  return [context] { return context->IsCancelled(); };
}

}  // namespace deltawire::sender
