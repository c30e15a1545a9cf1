#include "common/config/group_options.h"

#include <algorithm>

#include "common/base/model_name.h"
#include "common/base/receiver_id.h"

namespace deltawire {
namespace {

bool SameModel(const GroupOptions& a, const GroupOptions& b) {
  return a.model.empty() || b.model.empty() || a.model == b.model;
}

}  // namespace

StatusOr<GroupOptions> ParseGroup(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    return Errorf(StatusCode::kInvalidArgument, "\"{}\" is not [MODEL:]NAME=ID[,ID...]", text);
  }
  GroupOptions group;
  std::string_view name = text.substr(0, equals);
  if (const size_t colon = name.find(':'); colon != std::string_view::npos) {
    group.model = name.substr(0, colon);
    DW_RETURN_IF_ERROR(CheckModelName(group.model));
    name.remove_prefix(colon + 1);
  }
  group.name = name;
  DW_RETURN_IF_ERROR(CheckGroupName(group.name));
  for (std::string_view rest = text.substr(equals + 1);;) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view id = rest.substr(0, comma);
    const auto visible = [](char c) { return c > ' ' && c <= '~'; };
    if (id.empty() || id.size() > kMaxReceiverId || !std::all_of(id.begin(), id.end(), visible)) {
      return Errorf(StatusCode::kInvalidArgument,
                    "\"{}\": the receiver id \"{}\" is not 1 to {} visible ASCII characters", text,
                    id, kMaxReceiverId);
    }
    if (std::find(group.members.begin(), group.members.end(), id) != group.members.end()) {
      return Errorf(StatusCode::kInvalidArgument, "\"{}\" names {} twice", text, id);
    }
    group.members.emplace_back(id);
    if (comma == rest.size()) return group;
    rest.remove_prefix(comma + 1);
  }
}

Status CheckGroups(const std::vector<GroupOptions>& groups) {
  for (size_t i = 0; i < groups.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (!SameModel(groups[i], groups[j])) continue;
      if (groups[i].name == groups[j].name) {
        return Errorf(StatusCode::kInvalidArgument, "--group: {} is named twice", groups[i].name);
      }
      for (const std::string& id : groups[i].members) {
        const auto& others = groups[j].members;
        if (std::find(others.begin(), others.end(), id) == others.end()) continue;
        return Errorf(StatusCode::kInvalidArgument, "--group: {} is in both {} and {}", id,
                      groups[j].name, groups[i].name);
      }
    }
  }
  return {};
}

}  // namespace deltawire
